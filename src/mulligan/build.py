"""Components: builds the parts of one `Mulligan` from one `Settings`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mulligan.capture.context import CaptureContext
from mulligan.capture.framework_classes import CONTROL_FLOW, INJECTED_TYPES
from mulligan.capture.run import current_run
from mulligan.contract.store import DEFAULT_TENANT, REFLECTION_KIND, KeyValueStore, Store
from mulligan.core import fork_safety
from mulligan.core.events import EventStream
from mulligan.core.failure import Failure, Kind, SettingsError
from mulligan.core.holdout import HoldOutLessons
from mulligan.core.kinds import KINDS
from mulligan.prompt import Prompt
from mulligan.record.recorder import Recorder, recorders
from mulligan.redaction import Redactor
from mulligan.redaction.lazy_property import lazy_property
from mulligan.settings import Level, Settings
from mulligan.store.urls import StoreLocation, is_remote

if TYPE_CHECKING:
    from mulligan.record.memory_lookup import MemoryLookup


def build_redactor(
    settings: Settings,
    level: Level | None = None,
    key: bytes = b"",
    *,
    personal: bool = True,
    keeps_quantities: bool = True,
) -> Redactor:
    try:
        return Redactor(
            level=level or settings.level,
            names=settings.redact_names,
            patterns=settings.redact_patterns,
            allowed=settings.redact_ignore,
            unredacted_arguments=settings.unredacted_arguments,
            keeps_quantities=keeps_quantities,
            key=key,
            personal=personal,
        )
    except ValueError as error:
        raise SettingsError(str(error)) from None


def build_classifier(settings: Settings) -> Callable[..., Failure]:
    """Build the classifier function, including the user's kinds and rules."""
    if settings.kinds or settings.rules:
        from mulligan.classify.classifier import Classifier

        return Classifier.from_settings({"kinds": settings.kinds, "rules": settings.rules}).classify
    return classify_lazily


def build_kinds(settings: Settings) -> Mapping[str, Kind]:
    """Build the table of kinds, including those that the settings declare."""
    if not settings.kinds:
        return KINDS
    from mulligan.classify.rules.custom import parse_kinds_and_rules  # lazy: few users declare kinds

    declared_kinds, _ = parse_kinds_and_rules({"kinds": settings.kinds})
    return {**KINDS, **{str(kind): kind for kind in declared_kinds}}


def classify_lazily(error: object = None, **evidence: Any) -> Failure:
    """Classify an error with the built-in rules, which are imported at the first failure."""
    with fork_safety.import_lock:
        from mulligan.classify.classifier import classify
    return classify(error, **evidence)


def build_reflector(reflect: Any, key: str = "") -> Any:
    """Build the reflector from the setting `reflect`: an address, `module:function`, a function, a client or itself.

    Return None without one.
    """
    if reflect is None or reflect == "":
        return None
    from mulligan.capture.reflector import Reflector, build_endpoint_model  # lazy: few programs have a reflector

    if isinstance(reflect, Reflector):
        return reflect
    if isinstance(reflect, str) and "://" in reflect:
        return Reflector(build_endpoint_model(reflect, key), name=reflect.partition("#")[2])
    if isinstance(reflect, str):
        import importlib  # lazy: only for this setting

        module, _, path = reflect.partition(":")
        try:
            reflect = operator.attrgetter(path)(importlib.import_module(module))
        except (ImportError, AttributeError, ValueError) as error:
            raise SettingsError(f"Cannot import reflect {reflect!r}: {error}. Use module:function.") from None
        return build_reflector(reflect)
    return Reflector(reflect)


def connect_reflector(reflector: Any, store: KeyValueStore, clock: Callable[[], float]) -> None:
    """Let a reflector share its limits per day and the outcomes of its answers with other processes."""
    reflector.connect(
        lambda key: store.get(DEFAULT_TENANT, REFLECTION_KIND, key),
        lambda key, old, new: store.compare_and_set(DEFAULT_TENANT, REFLECTION_KIND, key, old, new),
        clock,
    )


def _describe_run_access(settings: Settings) -> str:
    """Return what shows a run of this process: the command, or the dashboard if the token may only send."""
    may_only_send = is_remote(settings.store_url) and settings.token.startswith("mul_ingest_")
    return f"{settings.store_url.rstrip('/')}/runs/" if may_only_send else "mulligan show "


class Components:
    """The components of one `Mulligan`. Raises `SettingsError` for invalid settings.

    `open_store` replaces the store, for sandboxes. `stream` is that of earlier components, with its listeners.
    `max_lookup_seconds` limits the delay of a failed call by memory. `capture` overrides options of the context, such
    as the clock.
    """

    def __init__(
        self,
        settings: Settings,
        open_store: Callable[[], Store] | None = None,
        stream: EventStream | None = None,
        max_lookup_seconds: float | None = None,
        **capture: Any,
    ) -> None:
        self.settings = settings
        self.is_sandbox = open_store is not None
        redactor = build_redactor(settings)
        location = StoreLocation(
            settings.store_url, lambda: settings.folder, fsync=settings.fsync, token=settings.token
        )
        self.classify = build_classifier(settings)
        if settings.prices:
            from mulligan.core.prices import parse_prices  # lazy: few users set prices

            parse_prices(settings.prices)
        self.stream = stream or EventStream(redactor)
        has_journal = open_store is None and location.is_persistent
        self.recorder = Recorder(
            open_store or location.open_or_fallback,
            self.stream,
            journal_folder=location.journals if has_journal else None,
            fsync=settings.fsync,
            should_consolidate=open_store is None and not is_remote(settings.store_url),
            prices=settings.prices,
        )
        self._location = location if has_journal else None
        self._max_lookup_seconds, self._base_url = max_lookup_seconds, settings.base_url
        self._prompt_fixes: dict[str, tuple[str, ...]] = {}
        self.stream.set_sink(self.recorder)
        if settings.log != "off":
            from mulligan.logging import EventLog  # lazy: few programs log, and the import takes a while

            self.stream.set_log(EventLog(settings.log), is_verbose=settings.log == "debug")
        reflector = build_reflector(settings.reflect, settings.reflect_key)
        if reflector is not None:
            connect_reflector(reflector, self.key_value_store, lambda: self.capture.clock())
        context_options: dict[str, Any] = {
            "publish": self.stream.publish,
            "put_success": self.recorder.put_success,
            "listeners": self.stream.listeners,
            "classify": self.classify,
            "kinds": build_kinds(settings),
            "prompt": Prompt(build_redactor(settings, "local", personal=False)),
            "policy": settings.policy,
            "mode": settings.mode,
            "record": settings.record,
            "agent": settings.agent,
            "environment": settings.environment,
            "show_run": _describe_run_access(settings),
            "reflector": reflector,
            "lookup_precedents": lambda *query: self.recall.precedents(*query),
            "item_arguments": lambda *query: self.recall.item_arguments(*query),
            "on_model_turn": self._mark_model_turn,
            "lookup_fixes": lambda *query: self.recall.fixes(*query),
            "lookup_facts": lambda *query: self.recall.facts(*query),
            "lookup_profiles": lambda *query: self.recall.value_profiles(*query),
            "render_lessons": self.render_lessons,
            "prompt_fixes": self._prompt_fixes,
            "learn": settings.learn,
            "holdout": settings.holdout,
            "holdout_repairs": settings.holdout_repairs,
            "control_flow": CONTROL_FLOW.union(settings.control_flow),
            "injected_types": INJECTED_TYPES.union(settings.injected_types),
        }
        self.capture: CaptureContext = CaptureContext(**context_options | capture)

    @lazy_property
    def recall(self) -> MemoryLookup:
        """What the store knows about failures, from the first failure on."""
        with fork_safety.import_lock:
            from mulligan.record.memory_lookup import MemoryLookup  # lazy: needed after a failure only

            return self.__dict__.get("recall") or MemoryLookup(
                self.recorder,
                self._location,
                now=lambda: self.capture.now(),
                agent=self._current_agent,
                max_delay_seconds=self._max_lookup_seconds,
                prompt_fixes=self._prompt_fixes,
                base_url=self._base_url,
            )

    @lazy_property
    def key_value_store(self) -> KeyValueStore:
        with fork_safety.import_lock:
            from mulligan.record.memory_lookup import RecorderKeyValueStore  # lazy: for sessions and reflectors
        return RecorderKeyValueStore(self.recorder, None if self._location is None else self._location.open_or_fallback)

    def close(self, seconds: float) -> None:
        """Store the last records, for good: what is not stored in this time stays in the journal."""
        self.recorder.close(seconds)
        recorders.discard(self.recorder)  # otherwise the exit of the process would wait once more

    def _mark_model_turn(self, run: Any) -> None:
        with fork_safety.import_lock:
            from mulligan.learn.session import mark_model_turn  # lazy: tools alone have no turns
        mark_model_turn(self.stream, run)

    def _current_agent(self) -> str:
        run = current_run(self.capture)
        return run.record.agent if run is not None else self.settings.agent

    def render_lessons(
        self,
        tools: Sequence[str],
        max_tokens: int,
        hold_out: HoldOutLessons | None = None,
        *,
        include_proposed: bool = False,
    ) -> str:
        prompt = self.capture.prompt
        return self.recall.render_lessons(prompt, tools, max_tokens, hold_out, include_proposed=include_proposed)
