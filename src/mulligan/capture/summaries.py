"""Summaries of long texts for compression: by the user's function, or by the wrapped model within a budget."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mulligan import prompt
from mulligan.capture.call_execution import CallExecution
from mulligan.capture.call_scope import ContextValue, RecoveryScope
from mulligan.capture.model_record import usage_fields
from mulligan.capture.player import run_sync
from mulligan.capture.run_judge import outcome_of
from mulligan.capture.signature import code_of
from mulligan.core import conversation
from mulligan.core.failure import Failure, Remedy
from mulligan.core.records import Recovery, Step, count_tokens
from mulligan.core.token_usage import TokenUsage
from mulligan.recover.policy import Arguments
from mulligan.recover.tokens import estimate_tokens

DEFAULT_MAX_SUMMARY_CALLS = 10
DEFAULT_MAX_SUMMARY_TOKENS = 100_000
MIN_SUMMARY_CHARS = 400
MAX_SUMMARY_CHARS = 2000
MAX_CACHED_SUMMARIES = 256
"""Summaries of one function that are reused by later calls: a conversation that grows overflows again and again."""
UNSUMMARIZED_ARGUMENTS = frozenset(
    "tools tool_choice functions function_call response_format stream stream_options parallel_tool_calls".split()
)
SUMMARY_RECOVERY = Recovery(remedy=Remedy.COMPRESS, source="model")
CUT_RECOVERY = Recovery(remedy=Remedy.COMPRESS, source="structure")


class SummaryCache:
    """Summaries by the hash of what was summarized. The oldest are dropped first."""

    def __init__(self) -> None:
        self._summaries: dict[bytes, str] = {}

    def remember(self, summarize: Callable[[str], Any], context: str = "") -> Callable[[str], Any]:
        """Return `summarize` with each text summarized once. `context` is what else a summary depends on."""

        async def asummarize_once(text: str) -> Any:
            key = _hash(context, text)
            return self._summaries.get(key) or self._put(key, await summarize(text))

        def summarize_once(text: str) -> Any:
            key = _hash(context, text)
            return self._summaries.get(key) or self._put(key, summarize(text))

        return asummarize_once if inspect.iscoroutinefunction(code_of(summarize)) else summarize_once

    def _put(self, key: bytes, summary: Any) -> Any:
        if isinstance(summary, str) and summary:
            with contextlib.suppress(StopIteration, RuntimeError):  # another thread changes it too
                while len(self._summaries) >= MAX_CACHED_SUMMARIES:
                    self._summaries.pop(next(iter(self._summaries)), None)
            self._summaries[key] = summary
        return summary


def _hash(*texts: str) -> bytes:
    from hashlib import blake2b  # lazy: loads OpenSSL, needed only for compression

    digest = blake2b(digest_size=16)
    for text in texts:
        digest.update(f"{len(text)} ".encode() + text.encode("utf-8", "surrogatepass"))
    return digest.digest()


class ModelSummarizer:
    """Requests summaries from the wrapped model, within a budget of calls and tokens for one call.

    It calls the function itself, without recovery: a summary that fails is not attempted again, and what it should have
    summarized is cut instead. Each request is recorded as a step of its own, with its tokens. Its messages are not
    recorded: the conversation before and after the compression has them.
    """

    def __init__(
        self, execution: CallExecution, arguments: Arguments, name: str, max_calls: int, max_tokens: int
    ) -> None:
        self._execution = execution
        self._value_recorder = execution.call.rules.value_recorder.without_messages()
        self._conversation = arguments[name]
        self._name = name
        self._other_arguments = {
            argument: value for argument, value in arguments.items() if argument not in UNSUMMARIZED_ARGUMENTS
        }
        self._calls_left = max_calls
        self._tokens_left: float = max_tokens

    @property
    def context(self) -> str:
        """What a summary depends on besides its text: instructions and the model."""
        names = (*conversation.INSTRUCTION_ARGUMENTS, "model")
        return conversation.to_text([self._other_arguments.get(name) for name in names])

    def as_query(self) -> Callable[..., Any]:
        """Return the request as a function of a text and of the maximum characters of its summary."""
        request = self._request
        return request if self._execution.call.wrapped.is_async else lambda *args: run_sync(request(*args))

    def as_text_query(self) -> Callable[[str], Any]:
        """Return the request as a function of the text alone."""

        async def request(text: str) -> str | None:
            return await self._request(text, choose_summary_chars(text))

        return request if self._execution.call.wrapped.is_async else lambda text: run_sync(request(text))

    async def _request(self, text: str, max_chars: int) -> str | None:
        """Return a summary, an empty text if the token budget is too small for this one, or None if nothing is left."""
        execution, wrapped = self._execution, self._execution.call.wrapped
        request_text = prompt.summary_request(text, max_chars)
        estimate = estimate_tokens(request_text) + max_chars / 3
        seconds = execution.limits.seconds_left()
        if self._calls_left < 1 or (seconds is not None and seconds <= 0):
            return None
        if estimate > self._tokens_left:
            return ""
        self._calls_left -= 1
        messages: Any = request_text
        if isinstance(self._conversation, list | tuple):
            messages = [conversation.user_message(self._conversation, request_text)]
        arguments = {**self._other_arguments, self._name: messages}
        positional, keywords = execution.call.split_arguments(arguments)
        function = execution.limits.with_timeout(wrapped.function)
        step, started = self._start_step(arguments), execution.capture.timer()
        # Wrapped models inside the function only record: the call that is compressed is the one that recovers.
        number = (step.seq if step is not None else 0) or execution.number
        scope = RecoveryScope(execution.run, number, None, True, enclosing=execution.call)
        answer: Any = None
        failure: Failure | None = None
        with ContextValue(execution.capture.current_scope, lambda: scope):
            try:
                answer = function(*positional, **keywords)
                if wrapped.is_async:
                    answer = await answer
            except Exception as error:  # noqa: BLE001 - the text is cut instead
                self._calls_left = 0
                failure = execution.capture.classify_safely(error, source="model", tool=_step_name(execution))
            finally:
                scope.is_retrying = scope.is_in_progress = False
        usage = self._value_recorder.usage(answer)
        self._tokens_left -= count_tokens(usage.tokens) if usage else estimate
        if step is not None:
            seconds_taken = execution.capture.timer() - started
            with execution.capture.guard("Recording a summary"):
                self._end_step(step, answer, failure, arguments, usage, seconds_taken)
        return conversation.answer_text(answer).strip() or None

    def _start_step(self, arguments: Mapping[str, Any]) -> Step | None:
        execution = self._execution
        with execution.capture.guard("Recording a summary"):
            recorded, _ = self._value_recorder.arguments(arguments)
            return execution.run.start_step(
                is_numbered=not execution.call.is_left_out,
                type="model",
                name=_step_name(execution),
                arguments=recorded,
                parent=execution.number,
                recovery=SUMMARY_RECOVERY,
            )
        return None

    def _end_step(
        self,
        step: Step,
        answer: Any,
        failure: Failure | None,
        arguments: Mapping[str, Any],
        usage: TokenUsage | None,
        seconds: float,
    ) -> None:
        execution, recorder = self._execution, self._value_recorder
        step = msgspec.structs.replace(
            step,
            duration_seconds=seconds,
            outcome="success" if failure is None else outcome_of(failure),
            failure=recorder.failure(failure, arguments),
            result=recorder.result(answer),
            **usage_fields(execution.run.count_usage(step.seq, None, usage), arguments, None),
        )
        execution.run.publish_step(step, execution.capture, is_final=failure is None)
        if failure is not None and step.seq:
            cut_step = msgspec.structs.replace(
                step,
                seq=execution.run.next_number(),
                attempt=2,
                duration_seconds=0.0,
                outcome="success",
                failure=None,
                recovery=CUT_RECOVERY,
            )
            execution.run.publish_step(cut_step, execution.capture)


def choose_summary_chars(text: str) -> int:
    """Return how long the summary of a text may be, in characters."""
    # How many characters of a text one character of its summary stands for.
    return min(max(len(text) // 8, MIN_SUMMARY_CHARS), MAX_SUMMARY_CHARS)


def _step_name(execution: CallExecution) -> str:
    # Not the name of the model: a summary is neither a retry of its call nor evidence about it.
    return f"{execution.tool.name} summary"
