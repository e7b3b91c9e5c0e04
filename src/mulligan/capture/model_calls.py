"""Recovery of model calls: options, checks of the answer, compression and fallbacks."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from mulligan.capture.call_execution import CallExecution
from mulligan.capture.context import CaptureContext
from mulligan.capture.player import run_in_thread
from mulligan.capture.result_checks import ResultChecker
from mulligan.capture.signature import code_of
from mulligan.capture.summaries import (
    DEFAULT_MAX_SUMMARY_CALLS,
    DEFAULT_MAX_SUMMARY_TOKENS,
    ModelSummarizer,
    SummaryCache,
)
from mulligan.capture.wrapped_function import Target, WrappedFunction
from mulligan.classify.error_numbers import parse_overflow
from mulligan.core import conversation
from mulligan.core.events import ContextCompacted
from mulligan.core.failure import Failure, Remedy, SettingsError
from mulligan.core.kinds import MODEL_CONTENT_POLICY, MODEL_INVALID_OUTPUT, MODEL_OUTPUT_LIMIT
from mulligan.core.records import Compaction, Recovery
from mulligan.core.value_snapshots import restore_value
from mulligan.recover import model_output
from mulligan.recover.compress import DEFAULT_COMPRESS_ABOVE_CHARS, CompressionResult
from mulligan.recover.model import ANSWER_GIVEN, Fallback, Model, plan_model_recovery
from mulligan.recover.plan import RecoveryMoves, RecoveryQueries
from mulligan.recover.policy import Arguments, Policy, Tool
from mulligan.recover.target_state import MAX_TARGET_CHARS, describe_target, target_of
from mulligan.recover.tokens import Sizes
from mulligan.redaction import to_plain_data

log = logging.getLogger(__name__)

OUTPUT_FORMAT_ARGUMENTS = frozenset({"response_format", "text", "config", "generation_config", "generationConfig"})
CONVERSATION_PARAMETERS = frozenset({*conversation.CONVERSATION_ARGUMENTS, "turns", "msgs"} - {"input", "prompt"})
"""Names of the parameter of a user's function that compresses a whole conversation."""
FALLBACK_RECOVERY = Recovery(remedy=Remedy.REPLAN, source="fallback")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Options for the recovery of model calls."""

    compress: Callable[..., Any] | Literal["model"] | None = None
    fallback: Callable[..., Any] | None = None
    fallback_models: Iterable[str | Callable[..., Any] | Fallback] = ()
    refresh_auth: Callable[..., Any] | None = None
    max_compressions: int = 1
    compress_above_chars: int = DEFAULT_COMPRESS_ABOVE_CHARS
    max_summary_calls: int = DEFAULT_MAX_SUMMARY_CALLS
    max_summary_tokens: int = DEFAULT_MAX_SUMMARY_TOKENS

    def __post_init__(self) -> None:
        if self.compress is not None and self.compress != "model" and not callable(self.compress):
            raise SettingsError(
                f'Invalid compress {self.compress!r}. Use a function that shortens a text, or "model". '
                "Without it, long texts are cut; max_compressions=0 turns compression off."
            )
        for name in ("fallback", "refresh_auth"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise SettingsError(f"Invalid {name} {getattr(self, name)!r}. Use a function.")
        for name, minimum in (
            ("max_compressions", 0),
            ("compress_above_chars", 200),
            ("max_summary_calls", 0),
            ("max_summary_tokens", 0),
        ):
            number = getattr(self, name)
            if type(number) is not int or number < minimum:
                raise SettingsError(f"Invalid {name} {number!r}. Use an integer, {minimum} or more.")
        models = self.fallback_models
        if isinstance(models, str | bytes) or not isinstance(models, Iterable):
            raise SettingsError(f"Invalid fallback_models {models!r}. Use a list of models, for example ['gpt-4.1'].")
        fallbacks = tuple(model if isinstance(model, Fallback) else Fallback(model) for model in models)
        object.__setattr__(self, "fallback_models", fallbacks)

    @property
    def has_fallback(self) -> bool:
        return self.fallback is not None or bool(self.fallback_models)

    def reject_async(self, name: str) -> None:
        """Raise `SettingsError` if an option is async and the wrapped function is not."""
        for option in ("compress", "fallback", "refresh_auth"):
            function = getattr(self, option)
            if callable(function) and inspect.iscoroutinefunction(code_of(function)):
                raise SettingsError(f"{option} is async and {name} is not. Use a function that is not async.")


class ModelResultChecker(ResultChecker):
    """Detects unusable answers of a model: empty, or invalid where a format was requested."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__("model", name, False, "success", "none")

    @property
    def is_needed(self) -> bool:
        return True

    def may_fail(self, result: Any, arguments: Mapping[str, Any]) -> bool:
        formats = {name: restore_value(arguments[name]) for name in OUTPUT_FORMAT_ARGUMENTS.intersection(arguments)}
        return _find_output_error(result, formats) is not None

    def is_failure(self, result: Any, arguments: Mapping[str, Any]) -> bool:
        return self.may_fail(result, arguments)

    def failure(
        self, capture: CaptureContext, result: Any, arguments: Mapping[str, Any], rejects: Collection[int] = ()
    ) -> Failure | None:
        output_error = _find_output_error(result, arguments)
        if output_error is None:
            return None
        if output_error.provider_error is not None:
            return capture.classify_safely(
                {"error": to_plain_data(output_error.provider_error)}, source="model", tool=self._name, is_error=True
            )
        kind = MODEL_OUTPUT_LIMIT if output_error.is_cut else MODEL_INVALID_OUTPUT
        if output_error.is_filtered:
            kind = MODEL_CONTENT_POLICY
        classified = capture.classify_safely(text=output_error.reason, source="model", tool=self._name)
        return Failure.of(kind, output_error.reason, fingerprint=classified.fingerprint, evidence=("what it answered",))

    def repair(self, result: Any, arguments: Mapping[str, Any]) -> Any:
        """Repair an answer that can be read in only one way; otherwise return None."""
        try:
            output_error = model_output.find_output_error(result, arguments)
            while output_error is not None:  # several calls may each need a repair
                result = model_output.repair_output(result, output_error)
                if result is None:
                    return None
                output_error = model_output.find_output_error(result, arguments)
        except Exception:  # noqa: BLE001 - the answer may be any object; an unreadable one stays as it is
            return None
        return result


def _find_output_error(result: Any, arguments: Mapping[str, Any]) -> model_output.OutputProblem | None:
    try:
        return model_output.find_output_error(result, arguments)
    except Exception:  # noqa: BLE001 - the answer may be any object; an unreadable one is not an error
        return None


def add_model_recovery(wrapped: WrappedFunction) -> None:
    calls = ModelCalls(wrapped, wrapped.options.model)
    wrapped.planner, wrapped.target_resolver = calls.plan, calls.resolve_target
    wrapped.result_checker = ModelResultChecker(wrapped.name)


class ModelCalls:
    """The recovery of the calls of one wrapped model."""

    def __init__(self, wrapped: WrappedFunction, options: ModelOptions) -> None:
        self._wrapped = wrapped
        self.options = options
        self._summaries = SummaryCache()
        if not wrapped.is_async:
            options.reject_async(wrapped.name)
        self._fallbacks = tuple(
            fallback if isinstance(fallback.model, str) else replace(fallback, model=self._match_async(fallback.model))
            for fallback in options.fallback_models
            if isinstance(fallback, Fallback)
        )

    def _match_async(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Adapt another model's function to be sync or async like the wrapped one."""
        is_async = inspect.iscoroutinefunction(code_of(function))
        if is_async and not self._wrapped.is_async:
            raise SettingsError(
                f"A fallback model is async and {self._wrapped.name} is not. Use a function that is not async."
            )
        if is_async or not self._wrapped.is_async or self._wrapped.is_async_stream:
            return function

        async def called(*args: Any, **kwargs: Any) -> Any:
            return await run_in_thread(function, *args, **kwargs)

        called.__name__ = getattr(function, "__name__", "fallback")
        return called

    def resolve_target(self, arguments: Arguments, function: Callable[..., Any] | None) -> Target:
        """Return the target of an attempt: endpoint, model and key. Each fallback function is one."""
        wrapped = self._wrapped
        if function is not None:
            name = getattr(function, "__name__", type(function).__name__)
            return Target((wrapped.key, id(function)), name)
        model = str(arguments.get("model", wrapped.signature.default("model")) or "")[:MAX_TARGET_CHARS]
        endpoint = getattr(wrapped.function, "endpoint", "")
        host = target_of(arguments) or target_of({"url": endpoint})
        hash_key = getattr(wrapped.function, "key_hash", None)
        account = "" if hash_key is None else hash_key()
        tool = "" if endpoint else wrapped.key
        return Target((tool, host, model, account), describe_target(model or host, wrapped.name))

    def plan(
        self, execution: CallExecution, arguments: Arguments, tool: Tool, policy: Policy, ask: RecoveryQueries
    ) -> RecoveryMoves:
        options = self.options
        summarise, rewrite = _split_compressor(options.compress)
        summarize_gap: Callable[[str, int], Any] | None = None
        if rewrite is not None:
            rewrite = _until_deadline(rewrite, execution)
        if summarise is not None:
            summarise = self._summaries.remember(_until_deadline(summarise, execution))
        elif options.compress == "model" and (summarizer := self._make_summarizer(execution, arguments)) is not None:
            summarise = self._summaries.remember(summarizer.as_text_query(), summarizer.context)
            summarize_gap = summarizer.as_query()
        # Characters of a provider's error message that are repeated to the model.
        model = Model(
            sizes=_sizes,
            describe_failure=lambda failure: execution.answer.prompt.retry_instruction(failure, limit=600),
            on_compacted=lambda compressed: _note_compaction(execution, compressed),
            warn=lambda message: log.warning("%s: %s", tool.name, message),
            summarise=summarise,
            rewrite=rewrite,
            summarize_gap=summarize_gap,
            refresh=None if options.refresh_auth is None else make_refresher(options.refresh_auth),
            answer=None if options.fallback is None else _make_fallback(options.fallback, execution),
            name=self._wrapped.signature.default("model"),
            fallbacks=self._fallbacks,
            max_compressions=options.max_compressions,
            compress_above_chars=options.compress_above_chars,
        )
        return plan_model_recovery(arguments, tool, policy, ask, model)

    def _make_summarizer(self, execution: CallExecution, arguments: Arguments) -> ModelSummarizer | None:
        """Return what asks the model itself for summaries, unless it streams."""
        name, wrapped = conversation.conversation_argument(arguments), self._wrapped
        is_stream = wrapped.is_stream or wrapped.is_async_stream or getattr(wrapped.function, "returns_manager", False)
        if name is None or is_stream:
            return None
        options = self.options
        return ModelSummarizer(execution, arguments, name, options.max_summary_calls, options.max_summary_tokens)


def _sizes(failure: Failure) -> Sizes:
    stated = parse_overflow(f"{failure.message}\n{failure.detail}")
    return Sizes(window=stated.window, requested=stated.requested, answer=stated.answer) if stated else Sizes()


def _split_compressor(
    compress: Callable[..., Any] | str | None,
) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """Return the user's function as a text compressor or as a conversation compressor; the other is None."""
    if compress is None or isinstance(compress, str):
        return None, None
    try:
        first_parameter = next(iter(inspect.signature(compress).parameters.values()))
    except (StopIteration, TypeError, ValueError):
        return compress, None
    takes_conversation = first_parameter.name in CONVERSATION_PARAMETERS or str(
        first_parameter.annotation
    ).lower().startswith(("list", "sequence", "typing.list", "<class 'list'"))
    return (None, compress) if takes_conversation else (compress, None)


def _until_deadline(compress: Callable[..., Any], execution: CallExecution) -> Callable[..., Any]:
    """Return the user's function, not called after the deadline of the call. If it is async, it is cancelled then."""
    is_async = inspect.iscoroutinefunction(code_of(compress))
    function = execution.limits.with_timeout(compress) if is_async else compress

    def has_time() -> bool:
        seconds = execution.limits.seconds_left()
        return seconds is None or seconds > 0

    async def acompress(value: Any) -> Any:
        return await function(value) if has_time() else None

    return acompress if is_async else lambda value: function(value) if has_time() else None


def make_refresher(
    refresh: Callable[..., Any], convert: Callable[[Any], Any] = lambda answer: True if answer is None else answer
) -> Callable[[Failure], Any]:
    """Adapt the user's function that refreshes credentials, which may take the failure."""
    try:
        takes_failure = bool(inspect.signature(refresh).parameters)
    except (TypeError, ValueError):
        takes_failure = False
    return convert_answer(lambda failure: refresh(failure) if takes_failure else refresh(), refresh, convert)


def convert_answer(
    ask: Callable[..., Any], function: Callable[..., Any], convert: Callable[[Any], Any]
) -> Callable[..., Any]:
    """Return `ask` with its answer converted: async if the user's function is."""

    async def aconverted(*args: Any) -> Any:
        return convert(await ask(*args))

    def converted(*args: Any) -> Any:
        return convert(ask(*args))

    return aconverted if inspect.iscoroutinefunction(code_of(function)) else converted


def _make_fallback(fallback: Callable[..., Any], execution: CallExecution) -> Callable[[Arguments, Failure], object]:
    """Adapt the user's fallback: it receives the failure, and the call's arguments that it names."""

    started = 0, 0.0

    def ask(arguments: Arguments, failure: Failure) -> Any:
        nonlocal started
        started = execution.capture.now(), execution.capture.timer()
        positional, keywords = _bind_fallback(fallback, {**execution.call.injected_values, **arguments}, failure)
        return fallback(*positional, **keywords)

    def use(answer: Any) -> object:
        execution.record.use_answer(answer, FALLBACK_RECOVERY, *started)
        return ANSWER_GIVEN

    return convert_answer(ask, fallback, use)


def _bind_fallback(
    fallback: Callable[..., Any], arguments: Arguments, failure: Failure
) -> tuple[list[Any], dict[str, Any]]:
    try:
        signature = inspect.signature(fallback)
    except (TypeError, ValueError):
        return [failure], {}
    parameters = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    required = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    # The failure is passed under its name, or else as the first argument that the call does not have.
    unnamed = [] if "failure" in signature.parameters else [name for name in required if name not in arguments]
    values = {**arguments, (unnamed or ["failure"])[0]: failure}
    keywords = {parameter.name: values[parameter.name] for parameter in parameters if parameter.name in values}
    positional = [
        keywords.pop(parameter.name) for parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY
    ]
    return positional, keywords


def _note_compaction(execution: CallExecution, compressed: CompressionResult) -> None:
    """Prepare the compaction event, and store the removed text with the next attempt."""
    run = execution.run.record
    sizes: dict[str, Any] = {
        "chars_before": compressed.chars_before,
        "chars_after": compressed.chars_after,
        "tokens_before": compressed.tokens_before,
        "tokens_after": compressed.tokens_after,
    }
    # Actions of one compression that are recorded, the first ones.
    actions = compressed.actions[:100]
    execution.record.next_metadata = {
        "compressed": {
            "by": compressed.shortened_by,
            "messages": compressed.steps,
            **sizes,
            "actions": [msgspec.to_builtins(action) for action in actions],
        }
    }
    if not execution.call.rules.value_recorder.is_shape and compressed.shortened_texts:
        execution.record.next_metadata["cut"] = [
            {"message": number, "text": _split_text(text)} for number, text in compressed.shortened_texts
        ]
    execution.record.pending_event = ContextCompacted(
        Compaction(
            run=run.id,
            session=run.session,
            attempt=execution.attempt.number + 1,
            reason="overflow",
            steps=compressed.steps,
            **sizes,
            actions=actions,
        )
    )


def _split_text(text: str) -> Sequence[str] | str:
    """Split a long text at word boundaries: redaction would not recognize half a secret."""
    pieces: list[str] = []
    start = 0
    # Characters of removed text per stored piece. Recording would shorten longer pieces.
    while (end := start + 8000) < len(text):
        boundary = max(text.rfind("\n", start, end), text.rfind(" ", start, end))
        end = boundary + 1 if boundary > start else end
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]] if pieces else text
