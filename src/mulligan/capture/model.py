"""Recovery of model calls: options, checks of the answer, compression and fallbacks."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mulligan import conversation, prompt
from mulligan.capture import messages
from mulligan.capture.answers import Judge
from mulligan.capture.signature import code_of
from mulligan.classify.overflow import overflow
from mulligan.classify.taxonomy import MODEL_INVALID_OUTPUT, MODEL_OUTPUT_LIMIT
from mulligan.events import ContextCompacted
from mulligan.failure import Failure, SettingsError
from mulligan.records import Compaction
from mulligan.recover import output
from mulligan.recover.budget import target_of_model
from mulligan.recover.compress import THRESHOLD, Compressed, Sizes
from mulligan.recover.model import ANSWERED, Fallback, Model, recovery
from mulligan.recover.plan import Questions, Recovering
from mulligan.recover.policy import Policy
from mulligan.recover.tool import Arguments, Tool
from mulligan.redaction import plain
from mulligan.success import thawed

if TYPE_CHECKING:
    from collections.abc import Collection

    from mulligan.capture.attempts import Attempts
    from mulligan.capture.first import First
    from mulligan.capture.kit import Kit
    from mulligan.capture.wrap import Wrapped

log = logging.getLogger("mulligan")

ASKS_FOR_JSON = frozenset({"response_format", "text", "config", "generation_config", "generationConfig"})
PIECE = 8000
"""Characters of removed text per stored piece. Recording would shorten longer pieces."""
NOT_FOR_A_SUMMARY = frozenset(
    "tools tool_choice functions function_call response_format stream stream_options parallel_tool_calls".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Options for the recovery of model calls."""

    compress: Callable[..., Any] | Literal["model"] | None = None
    fallback: Callable[..., Any] | None = None
    fallback_models: Iterable[str | Callable[..., Any] | Fallback] = ()
    refresh_auth: Callable[..., Any] | None = None
    max_compress_retries: int = 1
    compress_over: int = THRESHOLD

    def __post_init__(self) -> None:
        if self.compress is not None and self.compress != "model" and not callable(self.compress):
            raise SettingsError(f'compress is a function that makes a text shorter, or "model", got {self.compress!r}.')
        for name in ("fallback", "refresh_auth"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise SettingsError(f"{name} is a function, got {getattr(self, name)!r}.")
        for name, least in (("max_compress_retries", 0), ("compress_over", 200)):
            number = getattr(self, name)
            if type(number) is not int or number < least:
                raise SettingsError(f"{name} is a whole number, {least} or more, got {number!r}.")
        given = self.fallback_models
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise SettingsError(f"fallback_models is a list of models, such as ['gpt-4.1'], got {given!r}.")
        made = tuple(each if isinstance(each, Fallback) else Fallback(each) for each in given)
        object.__setattr__(self, "fallback_models", made)

    def refuse_async(self, name: str) -> None:
        """Raise `SettingsError` if an option is async and the wrapped function is not."""
        for option in ("compress", "fallback", "refresh_auth"):
            function = getattr(self, option)
            if callable(function) and inspect.iscoroutinefunction(code_of(function)):
                raise SettingsError(f"{option} is async and {name} is not. Give a function that needs no await.")


class ModelJudge(Judge):
    """Detects unusable answers of a model: empty, or invalid where a format was requested."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__("model", name, "raised", "success")

    @property
    def is_needed(self) -> bool:
        return True

    def condemns(self, result: Any, first: First | Mapping[str, Any] | None = None) -> bool:
        try:
            if not isinstance(first, Mapping):
                first = _given(first)
            return output.fault(result, first) is not None
        except Exception:  # noqa: BLE001 - the answer may be any object; an unreadable one is not an error
            return False

    def failure(
        self, kit: Kit, result: Any, arguments: Mapping[str, Any], rejects: Collection[int] = ()
    ) -> Failure | None:
        try:
            wrong = output.fault(result, arguments)
        except Exception:  # noqa: BLE001 - the answer may be any object; an unreadable one is not an error
            return None
        if wrong is None:
            return None
        if wrong.said is not None:
            return kit.failure({"error": plain(wrong.said)}, source="model", tool=self._name, is_error=True)
        kind = MODEL_OUTPUT_LIMIT if wrong.is_cut else MODEL_INVALID_OUTPUT
        known = kit.failure(text=wrong.reason, source="model", tool=self._name)
        return Failure.of(kind, wrong.reason, fingerprint=known.fingerprint, evidence=("what it answered",))

    def mended(self, result: Any, arguments: Mapping[str, Any]) -> Any:
        """Repair an answer that can be read in only one way; otherwise return None."""
        try:
            wrong = output.fault(result, arguments)
            while wrong is not None:  # several calls may each need a repair
                result = output.mended(result, wrong)
                if result is None:
                    return None
                wrong = output.fault(result, arguments)
        except Exception:  # noqa: BLE001 - the answer may be any object; an unreadable one stays as it is
            return None
        return result


_NO_ARGUMENTS: Mapping[str, Any] = {}


def _given(first: First | None) -> Mapping[str, Any]:
    """Return the arguments of a first attempt that define the output format."""
    if first is None or ASKS_FOR_JSON.isdisjoint(first.made.named):
        return _NO_ARGUMENTS
    return {name: thawed(value) for name, value in first.made.named.items() if name in ASKS_FOR_JSON}


class ModelCalls:
    """The recovery of the calls of one wrapped model."""

    def __init__(self, wrapped: Wrapped, options: ModelOptions) -> None:
        self._wrapped = wrapped
        self.options = options
        if not wrapped.is_async:
            options.refuse_async(wrapped.name)
        self._fallbacks = tuple(
            each if isinstance(each.model, str) else Fallback(self._as_called(each.model), each.window)
            for each in options.fallback_models
            if isinstance(each, Fallback)
        )

    def _as_called(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Adapt another model's function to be sync or async like the wrapped one."""
        is_async = inspect.iscoroutinefunction(code_of(function))
        if is_async and not self._wrapped.is_async:
            raise SettingsError(f"a fallback model is async and {self._wrapped.name} is not.")
        if is_async or not self._wrapped.is_async or self._wrapped.is_async_stream:
            return function

        async def called(*args: Any, **kwargs: Any) -> Any:
            import asyncio  # lazy: loaded by async callers

            return await asyncio.to_thread(function, *args, **kwargs)

        called.__name__ = getattr(function, "__name__", "fallback")
        return called

    def aim(self, arguments: Arguments, function: Callable[..., Any] | None) -> str:
        """Return the target of an attempt, for the circuit breaker. Each fallback function has its own."""
        if function is not None:
            return f"function {getattr(function, '__name__', id(function))}"
        name = arguments.get("model", self._wrapped.signature.default("model"))
        return target_of_model(arguments, getattr(self._wrapped.function, "endpoint", ""), name)

    def recovery(self, call: Attempts, arguments: Arguments, tool: Tool, policy: Policy, ask: Questions) -> Recovering:
        options = self.options
        summarise, rewrite = _summarisers(options.compress)
        model = Model(
            sizes=_sizes,
            words=lambda failure: call.words.again(failure, limit=WORDS),
            compacted=lambda made: _compacted(call, made),
            warn=lambda told: log.warning("%s: %s", tool.name, told),
            summarise=summarise,
            rewrite=rewrite,
            retell=self._retelling(arguments) if options.compress == "model" else None,
            refresh=None if options.refresh_auth is None else _refreshing(options.refresh_auth),
            answer=None if options.fallback is None else _answering(options.fallback, call),
            name=self._wrapped.signature.default("model"),
            fallbacks=self._fallbacks,
            compressions=options.max_compress_retries,
            threshold=options.compress_over,
        )
        return recovery(arguments, tool, policy, ask, model)

    def _retelling(self, arguments: Arguments) -> Callable[[str, int], Any] | None:
        """Return a function that asks the model to summarize removed messages."""
        wrapped = self._wrapped
        place = conversation.place(arguments)
        if place is None or wrapped.is_stream or wrapped.is_async_stream:
            return None
        rest = {name: value for name, value in arguments.items() if name not in NOT_FOR_A_SUMMARY}

        def asked(text: str, limit: int) -> Any:
            given = arguments[place]
            said = prompt.retell(text, limit)
            messages = [conversation.spoken(given, said)] if isinstance(given, list | tuple) else said
            positional, named = wrapped.signature.spread({**rest, place: messages})
            return wrapped.function(*positional, **named)

        def retell(text: str, limit: int) -> str:
            return _text(asked(text, limit))

        async def aretell(text: str, limit: int) -> str:
            return _text(await asked(text, limit))

        return aretell if wrapped.is_async else retell


WORDS = 600
"""Characters of a provider's error message that are repeated to the model."""


def _text(answer: Any) -> str:
    told = messages.answer(answer)
    return told if isinstance(told, str) else str(told.get("text", "")) if isinstance(told, dict) else ""


def _sizes(failure: Failure) -> Sizes:
    said = overflow(f"{failure.message}\n{failure.detail}")
    return Sizes() if said is None else Sizes(window=said.window, requested=said.requested, answer=said.answer)


def _summarisers(
    compress: Callable[..., Any] | str | None,
) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """Return the user's function as a text compressor or as a conversation compressor; the other is None."""
    if compress is None or isinstance(compress, str):
        return None, None
    try:
        first = next(iter(inspect.signature(compress).parameters.values()))
    except (StopIteration, TypeError, ValueError):
        return compress, None
    is_whole = first.name in (*conversation.CONVERSATION, "turns", "msgs") and first.name not in ("input", "prompt")
    is_whole = is_whole or str(first.annotation).lower().startswith(
        ("list", "sequence", "typing.list", "<class 'list'")
    )
    return (None, compress) if is_whole else (compress, None)


def _refreshing(refresh: Callable[..., Any]) -> Callable[[Failure], Any]:
    takes = _takes(refresh)

    def ask(failure: Failure) -> Any:
        answer = refresh(failure) if takes else refresh()
        return True if answer is None else answer

    async def aask(failure: Failure) -> Any:
        answer = await (refresh(failure) if takes else refresh())
        return True if answer is None else answer

    return aask if inspect.iscoroutinefunction(code_of(refresh)) else ask


def _takes(function: Callable[..., Any]) -> bool:
    try:
        return bool(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return False


def _answering(fallback: Callable[..., Any], call: Attempts) -> Callable[[Arguments, Failure], object]:
    """Adapt the user's fallback: it receives the failure, and the call's arguments that it names."""

    def given(arguments: Arguments, failure: Failure) -> tuple[list[Any], dict[str, Any]]:
        try:
            parameters = list(inspect.signature(fallback).parameters.values())
        except (TypeError, ValueError):
            return [failure], {}
        named: dict[str, Any] = {}
        positional: list[Any] = []
        is_told = any(each.name == "failure" for each in parameters)
        for each in parameters:
            if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
                continue
            if each.name == "failure":
                named["failure"] = failure
            elif each.name in arguments:
                named[each.name] = arguments[each.name]
            elif each.default is each.empty and not is_told:
                is_told = True
                named[each.name] = failure
        if any(each.kind is each.POSITIONAL_ONLY for each in parameters):
            positional = [named.pop(each.name) for each in parameters if each.kind is each.POSITIONAL_ONLY]
        return positional, named

    def ask(arguments: Arguments, failure: Failure) -> object:
        started = call.kit.now(), call.kit.timer()
        positional, named = given(arguments, failure)
        call.answered_by(fallback(*positional, **named), *started)
        return ANSWERED

    async def aask(arguments: Arguments, failure: Failure) -> object:
        started = call.kit.now(), call.kit.timer()
        positional, named = given(arguments, failure)
        call.answered_by(await fallback(*positional, **named), *started)
        return ANSWERED

    return aask if inspect.iscoroutinefunction(code_of(fallback)) else ask


def _compacted(call: Attempts, made: Compressed) -> None:
    """Prepare the compaction event, and store the removed text with the next attempt."""
    run = call.run.record
    call.about = {
        "compressed": {
            "by": made.by,
            "messages": made.steps,
            "chars_before": made.chars_before,
            "chars_after": made.chars_after,
            "tokens_before": made.tokens_before,
            "tokens_after": made.tokens_after,
        }
    }
    if not call.keeps_shape_only and made.cut:
        call.about["cut"] = [{"message": number, "text": _pieces(text)} for number, text in made.cut]
    call.upcoming = ContextCompacted(
        Compaction(
            run=run.id,
            session=run.session,
            attempt=call.made + 1,
            reason="overflow",
            steps=made.steps,
            chars_before=made.chars_before,
            chars_after=made.chars_after,
            tokens_before=made.tokens_before,
            tokens_after=made.tokens_after,
        )
    )


def _pieces(text: str) -> Sequence[str] | str:
    """Split a long text at word boundaries: redaction would not recognize half a secret."""
    if len(text) <= PIECE:
        return text
    found: list[str] = []
    at = 0
    while at < len(text):
        end = at + PIECE
        if end < len(text):
            cut = max(text.rfind("\n", at, end), text.rfind(" ", at, end))
            end = cut + 1 if cut > at else end
        found.append(text[at:end])
        at = end
    return found
