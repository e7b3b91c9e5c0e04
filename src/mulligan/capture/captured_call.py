"""One call of a wrapped function: its arguments, and its place among runs and enclosing calls."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from mulligan.capture.call_scope import CallScope, RecoveryScope, lock
from mulligan.capture.context import CaptureContext
from mulligan.capture.run import ActiveRun
from mulligan.capture.wrapped_function import CallRules, WrappedFunction
from mulligan.core.call_facts import CallFacts
from mulligan.core.records import digest
from mulligan.redaction import to_plain_data

KEY_BYTES = 16
_encode_json = msgspec.json.Encoder(order="deterministic").encode


class CapturedCall(CallScope[ActiveRun], eq=False):
    """A call as its function receives it. It is also the scope of the first attempt, and encloses the later ones."""

    wrapped: WrappedFunction
    rules: CallRules
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    run_id: str = ""
    """The id of its run, which a standalone call has before the run exists."""
    started_at: float = 0.0
    """Seconds since the Unix epoch, if the wrapper makes the first attempt."""
    is_standalone: bool = False
    """Whether the call is outside any run. Its own run is created on request, which is rare."""
    has_ended: bool = False
    """Whether it ended without a run."""
    start_time: float = 0.0
    answers_model: bool = False
    """Whether the answer goes to a model, which then needs no notes beside it."""
    has_marked_effects: bool = False
    """Whether the enclosing attempts count this call among those that may have executed."""
    argument_version: int = 0
    """How often the arguments were changed: repairs get another idempotency key."""
    key_seed: bytes = b""
    """What the idempotency keys of this call are derived from, once it has one."""

    @property
    def capture(self) -> CaptureContext:
        return self.rules.capture

    @property
    def run(self) -> ActiveRun:
        """The run. That of a standalone call is created by calls inside it, or because it failed."""
        if self.known_run is None:
            with lock():  # several tasks of the call may ask at once
                if self.known_run is None:
                    run = ActiveRun(
                        self.capture,
                        "",
                        self.rules.run_options,
                        is_standalone=True,
                        id=self.run_id,
                        started_at=int(self.started_at * 1000),
                    )
                    run.next_number()  # that of this call
                    run.is_open = not self.has_ended
                    if self.known_run is None:  # otherwise a signal handler has created it meanwhile
                        self.known_run = run
        assert self.known_run is not None
        return self.known_run

    @property
    def owner(self) -> object:
        """The object whose method is called: the same arguments of another object are another call."""
        return self.wrapped.owner(self.args)

    @property
    def is_left_out(self) -> bool:
        """Whether the call is not recorded although its run is."""
        return self.rules.is_off and not self.run.capture.is_recording_off

    @property
    def is_within_recovery(self) -> bool:
        """Whether an enclosing attempt that serves recovery makes this call."""
        return any(isinstance(scope, RecoveryScope) for scope in self.enclosing_attempts())

    @property
    def injected_values(self) -> dict[str, Any]:
        """The values of injected parameters, which are neither recorded nor changed."""
        return self.wrapped.signature.bind_injected(self.args, self.kwargs)

    def split_arguments(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Split arguments by name for a call of the function, with the injected values of this call."""
        return self.wrapped.signature.split_arguments({**self.injected_values, **arguments}, self.args)

    def find_waiting_call(self) -> CapturedCall | None:
        """Return the outermost call that answers a model, this one or one around it."""
        waiting_call: CapturedCall | None = None
        scope: CallScope[ActiveRun] | None = self
        while scope is not None:
            if isinstance(scope, CapturedCall) and scope.answers_model:
                waiting_call = scope
            scope = scope.enclosing
        return waiting_call

    def collect_facts(self, arguments: Mapping[str, Any], turn: tuple[int, int] | None = None) -> CallFacts:
        """Return what the run knows when this call starts. `turn` is the turn of a model that requested it."""
        options = self.wrapped.options
        reads_only = options.effects == "none" and options.type != "model"
        return self.run.judge.call_facts(
            arguments,
            self.rules.items,
            privileged=tuple(options.privileged),
            is_destructive=options.destructive,
            turn=turn,
            receiver=self.wrapped.receiver(self.args),
            lost_answers=self.run.lost_answers if reads_only else (),
            reads_only=reads_only,
        )

    def mark_effects(self) -> None:
        """Tell the enclosing attempts that this call, which has effects="once", is about to execute."""
        if self.enclosing is not None and not self.has_marked_effects:
            self.has_marked_effects = True
            self.add_executed_call(self.wrapped.name)

    def withdraw_effects(self) -> None:
        """Tell the enclosing attempts that this call did not execute after all, nor a call inside it."""
        if self.has_marked_effects and not self.executed_calls:
            self.has_marked_effects = False
            self.remove_executed_call(self.wrapped.name)

    def idempotency_key(self) -> str:
        """Return the key of the current attempt: the same for all attempts of this call with the same arguments.

        That of a call inside another one is derived from the key of that one: if the outer call is repeated, its n-th
        call of this tool with equal arguments gets the same key again.
        """
        with lock():
            if not self.key_seed:
                self.key_seed = self._make_key_seed()
        return digest(self.key_seed + str(self.argument_version).encode(), KEY_BYTES).hex()

    def _make_key_seed(self) -> bytes:
        attempt = self.enclosing
        outer_call = None if attempt is None else find_call(attempt)
        if attempt is None or outer_call is None:
            return os.urandom(KEY_BYTES)
        arguments = self.wrapped.signature.bind(self.args, self.kwargs)
        identity = digest(_encode_json([self.rules.template.tool_key, to_plain_data(arguments)]), KEY_BYTES)
        counts = attempt.key_counts = attempt.key_counts or {}
        number = counts[identity] = counts.get(identity, 0) + 1
        return digest(f"{outer_call.idempotency_key()} {number} ".encode() + identity, KEY_BYTES)


def find_call(scope: CallScope[ActiveRun] | None) -> CapturedCall | None:
    """Return the call whose attempt a scope belongs to, or None."""
    while scope is not None and not isinstance(scope, CapturedCall):
        scope = scope.enclosing
    return scope
