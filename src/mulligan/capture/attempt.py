"""A call that a player makes, and the latest of its attempts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextvars import Token
from typing import Any

import msgspec

from mulligan.capture.call_scope import CallScope
from mulligan.capture.captured_call import CapturedCall
from mulligan.capture.context import CaptureContext, reset
from mulligan.capture.lost_call import PassedArguments
from mulligan.capture.run import ActiveRun
from mulligan.capture.value_recording import States, ValueRecorder, copy_arguments
from mulligan.core.failure import Failure
from mulligan.core.records import Outcome, Recovery, SuspectedFailure
from mulligan.core.value_snapshots import IMMUTABLE_TYPES
from mulligan.recover.policy import Policy, Tool
from mulligan.redaction.plain_data import is_resource


class RepairedRequest(msgspec.Struct, frozen=True):
    """A model's request that was rejected before anything could execute, and its repair."""

    name: str
    arguments: Mapping[str, Any]
    failure: Failure
    recovery: Recovery


class CallForm(msgspec.Struct, kw_only=True):
    """How a call is made, where it differs from a plain call of the function."""

    open_stream: Callable[[Any], Any] | None = None
    """Converts the function's return value, if it is a stream."""
    adapt: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    """Changes how the function is called, for example in a thread."""
    repaired_request: RepairedRequest | None = None
    must_check: bool = False
    """Whether arguments are checked against the schema before each attempt."""
    has_json_arguments: bool = False
    """Whether the arguments are JSON: each attempt converts them to the annotated types."""


class PreparedCall(msgspec.Struct, eq=False):
    """A call with all that its recovery needs: the arguments by name, the tool and the policy."""

    call: CapturedCall
    arguments: Mapping[str, Any]
    """The arguments of the first attempt, by name."""
    tool: Tool
    policy: Policy
    form: CallForm
    tool_names: Collection[str] = ()
    """Names of the tools that the model may call, if it requested this call."""
    turn: tuple[int, int] | None = None
    """The loop and the number of the model turn that requested the call."""


class LastAttempt(msgspec.Struct, eq=False):
    """The latest attempt of a call: what it passes to the function, and how it has ended."""

    arguments: Mapping[str, Any]
    passed: PassedArguments
    """What the function receives."""
    number: int = 0
    """Its number: 1 for the first."""
    recovery: Recovery | None = None
    """What recovery has decided before it; None for the first."""
    replacement: Callable[..., Any] | None = None
    """The function that it calls instead of the wrapped one: that of another model."""
    started_at: float = 0.0
    ended_at: float | None = None
    """When the function returned or raised: the time for classification does not count."""
    result: Any = None
    error: Exception | None = None
    failure: Failure | None = None
    suspected: SuspectedFailure | None = None
    """What looks like a failure in its result, although it succeeded."""
    outcome: Outcome = "success"
    """Its outcome, once it has ended."""
    metadata: dict[str, Any] | None = None
    """What its record says beside the fields of a step."""
    recorded_arguments: Mapping[str, Any] | None = None
    """The arguments as they are recorded; None if recording them failed."""
    values: Mapping[str, Any] | None = None
    """A copy of the arguments, if these are not recorded in full. Links are judged by it."""
    states: States | None = None
    """What plain objects among the arguments held before it. Not recorded."""
    scope: CallScope[ActiveRun] | None = None
    _context_tokens: tuple[Token[Any], Token[Any] | None] | None = None
    """Tokens that restore the scope and the deadline."""

    @property
    def has_ended(self) -> bool:
        return self.ended_at is not None

    def enter(self, capture: CaptureContext, scope: CallScope[ActiveRun], deadline: float | None) -> None:
        """Make the scope of the attempt the current one, and its deadline, if it has one of its own."""
        self.scope = scope
        self._context_tokens = (
            capture.current_scope.set(scope),
            None if deadline is None else capture.deadline.set(deadline),
        )

    def leave(self, capture: CaptureContext) -> None:
        if self.scope is not None:
            self.scope.is_retrying = self.scope.is_in_progress = False
        tokens, self._context_tokens = self._context_tokens, None
        if tokens is not None:
            reset(capture.current_scope, tokens[0])
            if tokens[1] is not None:
                reset(capture.deadline, tokens[1])

    def find_changed_arguments(self, recorder: ValueRecorder) -> list[str]:
        """Return the arguments that the attempt has modified in place.

        They are neither restored nor replaced: the caller may pass an object to be filled, and other code may share it.
        """
        arguments = self.arguments
        names = [name for name, value in arguments.items() if type(value) not in IMMUTABLE_TYPES]
        if self.recorded_arguments is None or not names:
            return []
        states: States = {}
        before, states_before = self.recorded_arguments if self.values is None else self.values, self.states or {}
        if recorder.is_model:
            now = recorder.arguments(arguments, self.replacement is not None, states)[0]
        else:
            now = copy_arguments(arguments, states)
        return [
            name
            for name in names
            if not is_resource(arguments[name])
            and (now.get(name) != before.get(name) or states.get(name) != states_before.get(name))
        ]
