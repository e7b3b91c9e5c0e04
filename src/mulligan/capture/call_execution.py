"""The execution of one call: plays its attempts, the moves of its recovery plan between them, and its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

from mulligan.capture.attempt import LastAttempt, PreparedCall
from mulligan.capture.attempt_judge import STREAM, AttemptJudge
from mulligan.capture.call_answer import CallAnswer, CallStop
from mulligan.capture.call_errors import CallBlockedError, SchemaMismatchError
from mulligan.capture.call_memory import CallMemory
from mulligan.capture.call_record import CallRecord
from mulligan.capture.captured_call import CapturedCall
from mulligan.capture.context import CaptureContext
from mulligan.capture.first_attempt import FirstAttempt
from mulligan.capture.invocation import InvocationBuilder
from mulligan.capture.limits import CallLimits
from mulligan.capture.lost_call import note_cut_off, note_lost_answer
from mulligan.capture.model_record import ModelRecord
from mulligan.capture.player import CallMoves, Invocation, Reply, is_on_event_loop
from mulligan.capture.run import ActiveRun
from mulligan.core.events import RecoveryPlanned
from mulligan.core.records import WAIT_METADATA, RecoveryStop
from mulligan.recover.plan import AttemptMove, Move, QueryMove, RecoveryFailed, RecoveryMoves, StopMove
from mulligan.recover.policy import Tool
from mulligan.recover.retry_schedule import BackoffMove, WaitMove

PlayedMoves = Generator[Invocation | QueryMove, Reply | None, Any]
"""Generator of moves for the player. It receives a reply to each move and returns a result."""


class CallExecution:
    """One call from its first attempt to its end, as a player makes it.

    It stands between plan and player: the plan decides what follows, and each part of the call has an object of its
    own. Internal errors are logged and suppressed: a call ends with the function's result or the function's exception.
    """

    def __init__(
        self,
        prepared: PreparedCall,
        first: FirstAttempt | None,
        start_plan: Callable[[CallExecution], RecoveryMoves],
    ) -> None:
        call = prepared.call
        self.prepared = prepared
        self._first = first
        """The attempt that the wrapper has made, until the plan receives it."""
        self._start_plan = start_plan
        self.attempt = LastAttempt(prepared.arguments, (call.args, call.kwargs), started_at=call.start_time)
        self.limits = CallLimits(prepared)
        self.judge = AttemptJudge(prepared, self.attempt, self.limits)
        self.record = CallRecord(prepared, self.attempt, ModelRecord(call))
        self.memory = CallMemory(prepared, self.attempt)
        self.stop = CallStop(prepared, self.attempt, self.limits)
        self.answer = CallAnswer(prepared, self.attempt, self.limits, self.memory, self.stop)
        self.builder = InvocationBuilder(prepared, self.attempt, self.limits, self.record)
        self.is_played_async = False
        self.limits.begin()

    @property
    def call(self) -> CapturedCall:
        return self.prepared.call

    @property
    def capture(self) -> CaptureContext:
        return self.prepared.call.capture

    @property
    def run(self) -> ActiveRun:
        return self.prepared.call.run

    @property
    def tool(self) -> Tool:
        return self.prepared.tool

    @property
    def number(self) -> int | None:
        return self.prepared.call.number

    def run_scope(self) -> ActiveRun | contextlib.nullcontext[ActiveRun]:
        """Return a context manager for the run of this call. It ends the run of a standalone call."""
        if self.call.is_standalone:
            self.run.is_implicit = True
            return self.run
        return contextlib.nullcontext(self.run)  # the caller has entered it already

    def moves(self) -> CallMoves:
        """Yield the moves of this call to the player. Each receives its result and its exception.

        The plan yields what to do next. An `AttemptMove` of it leaves here as an `Invocation` of the function, except
        the first one if the wrapper has already made that attempt.
        """
        if self.prepared.form.repaired_request is not None:
            self.record.record_rejected(self.prepared.form.repaired_request)
        plan = self._start_plan(self)
        answer: Any = None
        while (move := self._advance_plan(plan, answer)) is not None:
            answer = None
            match move:
                case AttemptMove():
                    answer = yield from self._attempt(move)
                case BackoffMove() | WaitMove():
                    self._note_backoff(move)
                    _, error = (yield move) or (None, None)
                    if error is not None:
                        self.capture.log_internal_error("Backoff", error)
                        plan.close()  # an attempt without its backoff is what a rate limit prevents
                case QueryMove():
                    answer = yield from self._query(move)
        yield None

    def _attempt(self, move: AttemptMove) -> PlayedMoves:
        """Make an attempt, or continue with the one that the wrapper made. Return its failure, or None."""
        result: Any = None
        error: Exception | None = None
        if self._first is not None:
            result, error = self._take_first(self._first)
        else:
            try:
                if move.recovery is not None:
                    self.answer.changes += tuple(move.recovery.changes)
                invocation = self.builder.start(move)
            except (CallBlockedError, SchemaMismatchError) as rejection:
                error = rejection
            else:
                result, error = (yield invocation) or (None, None)
        failure = self.judge.end_returned(result) if error is None else self.judge.end_failed(error)
        if failure is not None and move.recovery is not None and move.recovery.source == "reflection":
            # In a thread of the player: the outcome is stored.
            note = self.capture.reflector.note_failed_repair
            yield from self._query(QueryMove(note, (self.run.id, self.call.number or 0), "The outcome of a reflection"))
        result = error = None  # a frame that refers to its own exception is a reference cycle
        step, run = self.record.step, self.run
        has_failed = step is not None and self.attempt.outcome == "failure"
        if has_failed and step is not None and not run.is_implicit and run.judge.needs_items(step):
            # When a tool fails for the first time in its run. A move, because a store may be slow, and an async
            # caller's event loop must not wait for it.
            arguments = step.tool_key, self.capture.item_arguments
            query = QueryMove(run.judge.load_items, arguments, "Looking up the arguments that name items")
            yield from self._query(query)
        return failure

    def _take_first(self, first: FirstAttempt) -> tuple[Any, Exception | None]:
        """Continue with the attempt that the wrapper has made. Return its result and its exception."""
        self._first, self.builder.is_admitted = None, True
        self.attempt.number, self.attempt.ended_at = 1, first.ended_at
        with self.capture.guard("Recording the start of a call"):
            self.record.record_start(first)
            self.limits.lost_answer = self.builder.find_lost_answer()
        result, error = first.result, first.error
        first.result = first.error = None  # an exception whose frames hold it would live too long
        return result, error

    def _query(self, move: QueryMove) -> PlayedMoves:
        answer, error = (yield move) or (None, None)
        if error is not None:
            self.capture.log_internal_error(move.name, error)
        return answer

    def _advance_plan(self, plan: RecoveryMoves, answer: Any) -> Move | None:
        """Send the answer to the plan and return its next move, or None.

        Records the last attempt only now: its record says whether recovery stops, and why.
        """
        move: Move | None = None
        is_planned = False
        with self.capture.guard("Recovery planning"):
            try:
                move = plan.send(answer)
            except StopIteration as stop:
                self.stop.recovery_failed = stop.value
                self.memory.note_advice(stop.value)
            is_planned = True
        if not is_planned and self.attempt.number == 0:
            move = AttemptMove(self.prepared.arguments)  # the call itself is made in any case
        record = self.record
        if isinstance(move, BackoffMove) and move.waits_for:
            # The record says what the call waits for, so that other processes can tell.
            waiting = {"target": move.waits_for, "next_probe_seconds": round(move.probe_seconds, 1)}
            self.attempt.metadata = {WAIT_METADATA: waiting}
        # After a query, the plan may still stop, and an attempt recorded before it would lack the stop reason.
        if not isinstance(move, QueryMove) or isinstance(move, StopMove):
            if record.step is not None and self.attempt.has_ended:
                record.record_end(self._read_stop(move))
            elif record.planned is not None and not isinstance(move, AttemptMove | BackoffMove | WaitMove):
                record.record_skipped(self._read_stop(move))
        return move

    def _read_stop(self, move: Move | None) -> RecoveryStop | None:
        """Return why recovery stops, if it does, and tell the run."""
        stop, limits, step = self.stop.read_move(move, self.judge.retry_layer), self.limits, self.record.step
        if stop is not None and self.attempt.failure is not None and not self.stop.is_cancelled:
            with self.capture.guard("Noting that recovery stopped"):
                if step is not None and limits.was_executed and self._may_be_repeated:
                    attempt = self.attempt
                    note_lost_answer(self.call, attempt.passed, step, attempt.failure, self.builder.identity)
                self.answer.note_stop()
        return stop

    @property
    def _may_be_repeated(self) -> bool:
        """Whether it matters that the same call may be made again."""
        return not self.prepared.tool.is_retry_safe or bool(self.run.lost_answers)

    def _note_backoff(self, move: BackoffMove | WaitMove) -> None:
        backoffs = self.answer.backoffs
        if isinstance(move, WaitMove):
            self.answer.backoffs = (*backoffs[:-1], sum(backoffs[-1:]) + move.seconds)
            return
        self.record.planned, last_step = move.recovery, self.record.last_step
        if last_step is not None:
            # Listeners see the planned recovery before the backoff; no store needs it.
            recovery = self.call.rules.value_recorder.recovery(move.recovery) or move.recovery
            self.capture.publish_safely(RecoveryPlanned(last_step, recovery))
        if move.sleep_seconds:
            self.answer.backoffs += (move.sleep_seconds,)

    def can_wait(self) -> bool:
        """Return whether the call may sleep. A sync call on the thread of an event loop would stop all its tasks."""
        if self.is_played_async or not is_on_event_loop():
            return True
        tool = self.prepared.tool
        self.capture.warn_once(
            tool.key,
            "event loop",
            "%s is not async and was called on the event loop, which a backoff would block. It is retried once, at "
            "once. Define it with `async def`, or call it with `await asyncio.to_thread(%s, ...)` or "
            "`await turn.acall(...)`. This warning appears once per tool.",
            tool.name,
            tool.name,
        )
        return False

    def end(self) -> Any:
        """Return the result, or raise the original exception with a note about what was tried.

        A result that is a failure is returned: the caller knows what it means.
        """
        attempt = self.attempt
        self.call.is_in_progress = False
        self.limits.leave_target()
        error, attempt.error = attempt.error, None  # an exception whose frames hold it would live too long
        with self.capture.guard("Adding the exception note"):
            if error is not None:
                self.answer.add_exception_note(error)
            elif attempt.failure is None:
                self.answer.note_success()
        if error is None:
            return attempt.result
        try:
            raise error
        finally:
            del error  # an exception whose frames hold it would live too long

    def end_cancelled(self, error: BaseException) -> None:
        """Record that the call was interrupted, which is no failure."""
        attempt, record = self.attempt, self.record
        self.call.is_in_progress = False
        attempt.leave(self.capture)
        self.limits.leave_target()
        self.stop.is_cancelled = True
        if record.step is not None and not attempt.has_ended:
            attempt.failure = attempt.result = None
            record.is_cut_off = record.step.attempt == 1 and self.capture.cuts_call_off(error)
            self.judge.end("cancelled")
            with self.capture.guard("Noting a lost answer"):
                note_cut_off(self.call, attempt.passed, record.step, error, lambda: self.builder.identity)
        if record.step is not None:
            record.record_end(self._read_stop(None))
        elif record.planned is not None:
            record.record_skipped(self._read_stop(None))

    @property
    def is_streaming(self) -> bool:
        """Whether the result is a stream that has begun: its attempt is still in progress."""
        return self.attempt.result is STREAM

    def end_stream(self, items: int, error: BaseException | None) -> None:
        """Record the end of the stream. After its first item nothing is attempted again."""
        if error is None:
            self.attempt.result = {"$stream": items}
            self.judge.end("success")
            self.record.record_end(None)
        elif isinstance(error, Exception) and not self.capture.is_control_flow(error):
            failure = self.judge.end_failed(error)
            reason = "the first items of the stream were already delivered"
            self.stop.recovery_failed = RecoveryFailed(failure, reason)
            with self.capture.guard("Adding the exception note"):
                self.record.record_end(self._read_stop(None))
                self.answer.add_exception_note(error)
        else:
            self.end_cancelled(error)
