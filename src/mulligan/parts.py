"""Components: builds the parts of one `Mulligan` from one `Settings`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mulligan.capture.kit import Kit
from mulligan.classify.classifier import Classifier, classify
from mulligan.events import Stream
from mulligan.failure import Failure, SettingsError
from mulligan.prompt import Prompt
from mulligan.recover.budget import Budget
from mulligan.redaction import Redactor
from mulligan.remember import session as sessions
from mulligan.remember.place import Place
from mulligan.remember.recall import Recall
from mulligan.remember.recording.recorder import Recorder
from mulligan.remember.shelf import RecorderShelf
from mulligan.remember.store import Store
from mulligan.remember.urls import is_remote
from mulligan.settings import Level, Settings


def redactor_of(settings: Settings, level: Level | None = None, key: bytes = b"", *, personal: bool = True) -> Redactor:
    """Build the redactor for these settings, optionally at another redaction level."""
    try:
        return Redactor(
            level=level or settings.level,
            names=settings.secret,
            patterns=settings.patterns,
            allowed=settings.allowed,
            listed=settings.listed,
            key=key,
            personal=personal,
        )
    except ValueError as error:
        raise SettingsError(str(error)) from None


def classify_of(settings: Settings) -> Callable[..., Failure]:
    """Build the classifier function, including the user's kinds and rules."""
    if settings.kinds or settings.rules:
        return Classifier.from_settings({"kinds": settings.kinds, "rules": settings.rules}).classify
    return classify


class Parts:
    """The components of one `Mulligan`. Raises `SettingsError` for invalid settings.

    `open_store` replaces the store, for sandboxes. `kit` overrides options of the capture context, such as the clock.
    """

    def __init__(self, settings: Settings, opening: Callable[[], Store] | None = None, **kit: Any) -> None:
        self.settings = settings
        self.is_rehearsal = opening is not None
        redactor = redactor_of(settings)
        place = Place(settings.store_url, lambda: settings.folder, fsync=settings.fsync, token=settings.token)
        self.classify = classify_of(settings)
        self.stream = Stream(redactor)
        keeps_a_journal = opening is None and place.is_lasting
        self.recorder = Recorder(
            opening or place.opened_somewhere,
            self.stream,
            journals=place.journals if keeps_a_journal else None,
            fsync=settings.fsync,
            learns=opening is None and not is_remote(settings.store_url),
        )
        self.shelf = RecorderShelf(self.recorder, place.opened_somewhere if keeps_a_journal else None)
        self.recall = Recall(
            self.recorder, place if keeps_a_journal else None, now=lambda: self.kit.now(), agent=self._agent
        )
        self.stream.carry(self.recorder)
        own: dict[str, Any] = {
            "publish": self.stream.publish,
            "succeed": self.stream.succeed,
            "keep": self.recorder.keep,
            "watchers": self.stream.watchers,
            "classify": self.classify,
            "prompt": Prompt(redactor_of(settings, "local", personal=False)),
            "policy": settings.policy,
            "mode": settings.mode,
            "record": settings.record,
            "agent": settings.agent,
            "environment": settings.environment,
            "recall": self.recall.precedents,
            "item_arguments": self.recall.item_arguments,
            "answered": lambda run: sessions.answered(self.stream, run),
            "fixes": self.recall.fixes,
            "pitfalls": self.pitfalls,
            "learn": settings.learn,
            "budget": Budget(settings.policy),
        }
        self.kit = Kit(**own | kit)

    def _agent(self) -> str:
        run = self.kit.current()
        return run.record.agent if run is not None else self.settings.agent

    def pitfalls(self, tools: Sequence[str], budget: int, *, proposals: bool = False) -> str:
        return self.recall.pitfalls(self.kit.prompt, tools, budget, proposals=proposals)
