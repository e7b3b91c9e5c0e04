"""What is recorded of a model call beside arguments and result: its conversation, its answer and its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.capture.captured_call import CapturedCall
from mulligan.capture.value_recording import find_user_texts
from mulligan.core import fork_safety

if TYPE_CHECKING:
    from mulligan.capture.message_recording import StreamAnswer
    from mulligan.core.token_usage import TokenUsage


class ModelRecord(msgspec.Struct):
    """The part of a call's record that only a call of a model has. Of another call, it is empty."""

    call: CapturedCall
    stream_usage: TokenUsage | None = None
    """The token usage of a stream that has ended."""
    stream_answer: StreamAnswer | None = None
    """The answer of a stream that has ended, if the model records conversations."""

    def note_user_messages(self, arguments: Mapping[str, Any]) -> None:
        """Note what the user wrote, if this is a model call before the first tool call of a loop."""
        call = self.call
        if call.rules.value_recorder.is_model and call.known_run is not None and call.known_run.awaits_user_messages:
            with call.capture.guard("Reading a conversation"):
                call.known_run.note_user_messages(find_user_texts(arguments))

    def record_conversation(self, arguments: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
        """Record the messages that a model receives, if it records conversations. Return their numbers as ranges."""
        call = self.call
        if call.rules.value_recorder.has_messages:
            with call.capture.guard("Recording a conversation"):
                recording = _message_recording()
                numbers = call.run.record_messages(recording.parse_conversation(arguments))
                return tuple(recording.to_ranges(numbers))
        return ()

    def record_answer(self, answer: Any) -> int | None:
        """Record the answer of a model, if it records conversations. Return its number."""
        call = self.call
        if call.rules.value_recorder.has_messages:
            with call.capture.guard("Recording an answer"):
                if self.stream_answer is not None:
                    message = self.stream_answer.build_message()
                else:
                    message = _message_recording().parse_answer(answer)
                return next(iter(call.run.record_messages([message])), None) if message is not None else None
        return None

    def collect_stream(self) -> StreamAnswer | None:
        """Return what collects the answer of a stream, if the model records conversations."""
        return _message_recording().StreamAnswer() if self.call.rules.value_recorder.has_messages else None

    def read_usage(
        self, number: int, parent: int | None, arguments: Any, answer: Any, *, is_other_model: bool = False
    ) -> TokenUsage | None:
        """Return the tokens of an attempt, unless a nested model call has reported them.

        `is_other_model` means that another function answered: the arguments do not name its model.
        """
        call, recorder = self.call, self.call.rules.value_recorder
        if not recorder.is_model:
            return None
        usage = call.run.count_usage(number, parent, self.stream_usage or recorder.usage(answer))
        if usage is not None:
            model = arguments.get("model") if isinstance(arguments, dict) and not is_other_model else None
            call.run.set_model_turn(model if isinstance(model, str) else None, usage)
        return usage


def usage_fields(
    usage: TokenUsage | None, arguments: Any, metadata: dict[str, Any] | None, *, is_other_model: bool = False
) -> dict[str, Any]:
    """Return the fields of a step that its token usage determines.

    `is_other_model` means that another function answered: the arguments do not name its model.
    """
    if usage is None:
        return {"tokens": None, "metadata": metadata}
    facts: dict[str, Any] = {"model": usage.model or ""} if is_other_model else {}
    facts |= usage.to_metadata(arguments)
    return {"tokens": usage.tokens, "metadata": {**(metadata or {}), **facts} or None}


def _message_recording() -> Any:
    """Import the parser of messages with the first recorded conversation."""
    with fork_safety.import_lock:
        from mulligan.capture import message_recording
    return message_recording
