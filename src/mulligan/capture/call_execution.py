"""One call as it is made: its attempts, what is recorded of each, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import Token
from inspect import iscoroutinefunction
from typing import Any, NoReturn

import msgspec

from mulligan.capture.call_guard import CIRCUIT_OPEN, Aim, Guarding, NotMade, Unfit
from mulligan.capture.context import Here, Kit, reset
from mulligan.capture.first_attempt import First
from mulligan.capture.prerequisite_calls import Preparing
from mulligan.capture.result_checks import Judge
from mulligan.capture.run import ActiveRun, outcome_of
from mulligan.capture.run_judge import mark_exception
from mulligan.capture.value_recording import CHANGEABLE, Keeping, copied
from mulligan.classify.kinds import TOOL_INVALID_ARGUMENTS
from mulligan.core import conversation
from mulligan.core.events import AnyEvent, RecoveryPlanned, StepStarted
from mulligan.core.failure import Failure, Remedy, TookEffect
from mulligan.core.fast_path import IMMUTABLE_TYPES
from mulligan.core.links import CallFacts, Receiver
from mulligan.core.records import (
    VERIFY,
    Change,
    Fix,
    Outcome,
    Precedent,
    Prerequisite,
    Recovery,
    RecoveryStop,
    Step,
    StepType,
)
from mulligan.prompt import Prompt
from mulligan.recover.budget import ToolLimits
from mulligan.recover.plan import (
    BLOCKED,
    VERIFIED_EXECUTED,
    VERIFIED_NOT_EXECUTED,
    AttemptMove,
    BackoffMove,
    Move,
    QueryMove,
    RecoveryFailed,
    RecoveryMoves,
    RecoveryQueries,
    plan_recovery,
)
from mulligan.recover.policy import Policy
from mulligan.recover.repair import Suggestion
from mulligan.recover.schema import compile_schema
from mulligan.recover.tool import Tool
from mulligan.redaction import to_plain_data

STREAM = object()
"""What a function answers whose result is still to come: its step ends when the stream does."""
OFFERED = 3
"""Suggestions that are left to the model or a person."""
MIN_TOLD_CONFIDENCE = 0.5
"""A suggestion that is less likely to be right is not shown to a model."""
OURS = "mulligan:"
"""How the notes begin that we leave on an exception."""


def _began(error: Exception) -> bool:
    return True


class Answered(Exception):
    """An attempt was made already, and answered: our own word between two methods, which nobody else hears."""

    def __init__(self, result: Any) -> None:
        self.result = result


class Mended:
    """A call that was turned away before anything could happen, and how it was put right."""

    __slots__ = ("arguments", "failure", "name", "recovery")

    def __init__(self, name: str, arguments: Mapping[str, Any], failure: Failure, recovery: Recovery) -> None:
        self.name = name
        self.arguments = arguments
        self.failure = failure
        self.recovery = recovery


Planning = Callable[["Attempts", Mapping[str, Any], Tool, Policy, RecoveryQueries], RecoveryMoves]
"""Another way to recover than that of tools: a model's."""


class Attempts:
    """One call as it is made: its steps, what they answered, and how it ended.

    The players call it between the user's function and the plan. Nothing it does for itself may raise: what comes out
    of a player is the function's result or the function's own exception.
    """

    def __init__(
        self,
        kit: Kit,
        run: ActiveRun,
        tool: Tool,
        arguments: Mapping[str, Any],
        function: Callable[[Mapping[str, Any]], Any],
        *,
        type: StepType = "tool",
        policy: Policy | None = None,
        has_begun: Callable[[Exception], bool] = _began,
        judge: Judge | None = None,
        keeping: Keeping | None = None,
        first: First | None = None,
        guard: ToolLimits | None = None,
        owner: object = None,
        receiver: Receiver | None = None,
        timeout: float | None = None,
        rejects: Collection[int] = (),
        check: Callable[[Mapping[str, Any]], Any] | None = None,
        mended: Mended | None = None,
        planning: Planning | None = None,
        is_async: bool = False,
        aim: Aim | None = None,
        item_arguments: tuple[str, ...] = (),
    ) -> None:
        self.kit = kit
        self.run = run
        self.tool = tool
        self.is_async = is_async
        self.function = function
        self.failure: Failure | None = None
        self.given_up: RecoveryFailed | None = None
        self.ending: RecoveryStop | None = None
        self.note = ""
        """What the model should hear of a call that worked, but not as it was made."""
        self.is_answered = False
        """Whether its answer goes to a model, which then needs no notes beside it."""
        self.turn: tuple[int, int] | None = None
        """The loop and the number of the model turn that asked for it."""
        self._facts: CallFacts | None = None
        self._item_arguments = item_arguments
        self._arguments = self._given = arguments
        self._type: StepType = type
        self._has_begun = has_begun
        """Whether an error comes from inside the function: one of the call itself proves that nothing happened."""
        self._judge = judge
        self._keeping = keeping
        self._policy = policy or kit.policy
        self._rejects = rejects
        self._check = check
        """The developer's own: did this call happen?"""
        self._result: Any = None
        self._error: Exception | None = None
        self._move: Move | None = None
        self._is_over = False
        self._is_cancelled = False
        self._is_admitted = False
        self._first: int | None = None
        self._step: Step | None = None
        """The attempt being made; the last one that ended is `_last`."""
        self._last: Step | None = None
        self._copying: Callable[[Mapping[str, Any]], Any] = to_plain_data
        """How what it is given was copied when it began: whether that has changed is told by a second copy."""
        self._before: dict[str, Any] | None = None
        """The same where less than all is kept of it."""
        self._untold: tuple[Step, Any] | None = None
        """A failed attempt that is told as soon as it is known what comes after it."""
        self._made = 0
        self._planned: Recovery | None = None
        """What was waited for, until the attempt after it is made."""
        self._waits: list[float] = []
        self._changes: list[Change] = []
        self._preparing = Preparing(kit, run, tool) if tool.learn == "repair" and kit.tools is not None else None
        self._first_attempt = first
        self._mended = mended
        self._began = self._started = kit.timer() if first is None else first.began
        self._stopped: float | None = None
        """When the function had ended, where that is known: what we make of it afterwards is not its time."""
        self._here: Here | None = None
        self._token: Token[Here | None] | None = None
        self._deadline: Token[float | None] | None = None
        self._timeout = timeout
        self._receiver = receiver
        self.guarding = Guarding(kit, run, tool, self._policy, guard, type=type, owner=owner, aim=aim)
        self.guarding.bound(None if timeout is None else self._began + timeout)
        self.instead: Callable[..., Any] | None = None
        """What is called in this attempt instead of the function: another model's."""
        self.step_metadata: dict[str, Any] | None = None
        """What is to be kept with the attempt that comes next."""
        self.upcoming: AnyEvent | None = None
        """What is to be told before it."""
        questions = RecoveryQueries(
            lookup_precedents=self._recall,
            lookup_fixes=None if kit.fixes is None else self._known,
            run_prerequisite=None
            if self._preparing is None
            else self._preparing.acall
            if is_async
            else self._preparing.call,
            verify=None if check is None else self._averify if iscoroutinefunction(check) else self._verify,
            random=kit.chance,
            earlier_calls=run.earlier_calls,
            changed_arguments=self._changed,
            seconds_left=self.guarding.remaining,
            take_retry_budget=self.guarding.spend,
            blocking_reason=self.guarding.halted,
            admit_retry=self.guarding.turned_away,
        )
        self._moves: RecoveryMoves = (
            plan_recovery(arguments, tool, self._policy, questions, None if mended is None else mended.recovery)
            if planning is None
            else planning(self, arguments, tool, self._policy, questions)
        )

    @property
    def number(self) -> int:
        """Which call of its run it is: the number of its first attempt."""
        return self._first or 0

    @property
    def words(self) -> Prompt:
        """What is said of it to a model, without what is secret in its arguments."""
        return self.kit.prompt.for_arguments(*self.given)

    @property
    def given(self) -> list[Mapping[str, Any]]:
        """What it was made with, first and last. Of a model's call, what is not the conversation, which it knows."""
        made = [self._given] if self._arguments is self._given else [self._given, self._arguments]
        if self._type != "model":
            return made
        return [
            {name: each[name] for name in each if name != conversation.conversation_argument(each)} for each in made
        ]

    def next(self, answer: Any) -> Move | None:
        """The next move, or None when there are no more."""
        move: Move | None = None
        try:
            if self._mended is not None:
                self._turned_away(self._mended)
            if not self._is_over:
                move = self._moves.send(answer)
        except StopIteration as stop:
            self.given_up = stop.value
        except Exception:  # noqa: BLE001 - the call itself is made all the same
            self.kit.fault("Recovery planning")
            if self._made == 0:
                move = AttemptMove(self._arguments)
        self._move = move
        # A question may still turn out to be the last thing: then what was told before it would lack the reason.
        if not isinstance(move, QueryMove) or move.query == self._recall:
            if self._untold is not None:
                self._tell(move)
            elif self._planned is not None:
                self._unmade(move)
        return move

    def _turned_away(self, mended: Mended) -> None:
        """Records the attempt that was none, so that what follows is seen to be its repair."""
        self._mended = None
        self._made = 1
        if self.kit.is_silent and not self.run.kit.is_silent:
            return
        number = self._first = self.run.next_number()
        self._last = Step(
            run=self.run.id,
            seq=number,
            call=number,
            parent=self.kit.step_of(self.run),
            type=self._type,
            name=mended.name,
            server=self.tool.server,
            arguments=self._kept(mended.arguments),
            outcome="failure",
            started_at=self.kit.now(),
            failure=self._keeping.failure(mended.failure, mended.arguments) if self._keeping else mended.failure,
            key=self.tool.recorded_key,
        )
        self._facts = self._note_begin()
        self.run.publish_step(self._last, self.kit, self._facts, is_final=False)

    def _kept(self, arguments: Mapping[str, Any], function: Callable[..., Any] | None = None) -> Any:
        if self._keeping is None:
            return self._copying(arguments)  # the function may change what it was given
        kept, said = self._keeping.arguments(arguments, function is None)
        self.run.set_context_if_unset(said)
        return kept

    def _changed(self) -> list[str]:
        """The lists, dictionaries and sets that the last attempt was given and that are not what they were then.

        Neither are they put back nor replaced: the caller may hold them for what is put into them, and others, too.
        """
        given, last = self._given, self._last
        if (
            last is None
            or last.attempt != self._made
            or all(type(value) in IMMUTABLE_TYPES for value in given.values())
        ):
            return []
        if self._keeping is None:
            before, now = last.arguments, self._copying(given)
        elif self._keeping.is_model:
            before, now = last.arguments, self._keeping.arguments(given)[0]
        else:
            before, now = self._before or {}, self._keeping.changeable(given)
        return [
            name for name, value in given.items() if isinstance(value, CHANGEABLE) and now.get(name) != before.get(name)
        ]

    def started(self, move: AttemptMove) -> Mapping[str, Any]:
        """Begins an attempt; answers with what to call the function with."""
        self._made += 1
        self._planned = None
        self._given = move.arguments
        self.instead = move.function
        first, self._first_attempt = self._first_attempt, None
        if first is not None:
            self._is_admitted = True
            self._resume(first)
        try:
            self._begin(move)
        except Exception:  # noqa: BLE001 - unrecorded, and made
            self.kit.fault("Recording the start of a call")
        if not self._is_admitted:
            self._is_admitted = True
            self._admitted(move)
        return move.arguments

    def _admitted(self, move: AttemptMove) -> None:
        """Raises `NotMade` where the call is answered without being made."""
        try:
            self.guarding.admit(move.arguments, move.has_substitute)
        except NotMade:
            raise
        except Exception:  # noqa: BLE001 - unguarded, and made
            self.kit.fault("The call guard")

    def _resume(self, first: First) -> NoReturn:
        """Takes over an attempt that was made and failed before there was any need of us."""
        self._first, self._step, self._stopped = first.number, first.step(), first.ended
        known = self._note_begin()
        before = first.facts
        # What the run knew when the attempt began: failures that were delivered meanwhile were unknown to it.
        self._facts = msgspec.structs.replace(
            known,
            failures_before=before.failures_before if before is not None else 0,
            handled=before.handled if before is not None else (),
        )
        self._copying, self._before = copied, first.before
        error, first.error = first.error, None
        if error is None:
            raise Answered(first.answer)
        # From its own frames on: that it passed through our hands before says nothing to a reader.
        raise error

    def _note_begin(self) -> CallFacts:
        """Note what the run knows before the first attempt."""
        facts = self.run.call_facts(turn=self.turn, receiver=self._receiver)
        scope = self.run.scope_of_call(self._item_arguments, self._arguments)
        return msgspec.structs.replace(
            facts,
            item=scope,
            item_arguments=self._item_arguments,
            privileged=self.tool.privileged,
            is_destructive=self.tool.destructive,
        )

    def _begin(self, move: AttemptMove) -> None:
        if self._facts is None:
            self._facts = self._note_begin()
        inside = self.kit.step_of(self.run)
        is_left_out = self.kit.is_silent and not self.run.kit.is_silent
        number = 0 if is_left_out else self.run.next_number()
        self._first = self._first or number
        if move.recovery is not None:
            self._changes.extend(move.recovery.changes)
        self._copying = to_plain_data
        self._before = None if self._keeping is None else self._keeping.changeable(move.arguments)
        self._step = Step(
            run=self.run.id,
            seq=number,
            call=self._first,
            attempt=self._made,
            parent=inside,
            type=self._type,
            name=self.tool.name,
            server=self.tool.server,
            arguments=self._kept(move.arguments, move.function),
            started_at=self.kit.now(),
            metadata=self.step_metadata,
            recovery=move.recovery if self._keeping is None else self._keeping.recovery(move.recovery),
            key=self.tool.recorded_key,
        )
        here = self._here = Here(self.run, number or inside, self.kit.layer(), is_open=False)
        if here.layer is None and self.tool.mode != "observe" and self._policy.attempts > 1:
            here.is_open = True
        if self.upcoming is not None:
            self.kit.tell(self.upcoming)
        self.step_metadata = self.upcoming = None
        self.kit.tell(StepStarted(self._step))
        self._token = self.kit.here.set(here)
        if self._timeout is not None:
            self._deadline = self.kit.deadline.set(self.guarding.deadline)
        self._started = self.kit.timer()

    def succeeded(self, result: Any) -> Failure | None:
        """The function has answered. The failure that its answer is; mostly there is none."""
        self._error = self.failure = None
        self._result = result
        self._leave()
        if result is STREAM:
            return None
        if self._stopped is None:
            self._stopped = self.kit.timer()
        if self._judge is not None:
            self.failure = self._judge.failure(self.kit, result, self._given, self._rejects)
            if self.failure is not None and self.tool.mode == "repair":
                result = self._mend(result)
        self.guarding.executed()
        self._end("success" if self.failure is None else outcome_of(self.failure), result)
        return self.failure

    def _mend(self, result: Any) -> Any:
        """The answer put right, where there is only one way to read it."""
        assert self._judge is not None
        mended = self._judge.repair(result, self._given)
        if mended is None or self.failure is None:
            return result
        if self._step is not None:
            told = {**(self._step.metadata or {}), "mended": self.failure.message}
            self._step = msgspec.structs.replace(self._step, metadata=told)
        self.failure = None
        self._result = mended
        return mended

    @property
    def changes(self) -> Sequence[Change]:
        """What was changed on the way to the last attempt."""
        return self._changes

    @property
    def made(self) -> int:
        """Attempts so far."""
        return self._made

    @property
    def keeps_shape_only(self) -> bool:
        return self._keeping is not None and self._keeping.is_shape

    @property
    def is_streaming(self) -> bool:
        """Whether the answer is a stream that has begun: its step is still open."""
        return self._result is STREAM

    def streamed(self, items: int) -> None:
        """The stream that was the answer has come to its end."""
        self._end("success", {"$stream": items})

    def failed(self, error: Exception) -> Failure | None:
        """The failure of an attempt; nothing where the error is not the function's but our own."""
        if type(error) is Answered:
            return self.succeeded(error.result)
        match self._move:
            case BackoffMove():
                self._is_over = True  # to go on without waiting is what a rate limit was there to prevent
                self.kit.fault("Backoff")
                return None
            case QueryMove():
                self.kit.fault("A recovery query")
                return None
        if self._stopped is None:
            self._stopped = self.kit.timer()
        self._leave()
        self._error = error
        self.failure = self._classified(error)
        self.run.mark_reported(error)
        mark_exception(error, self.run.id, self.number)
        self._end(outcome_of(self.failure))
        return self.failure

    def _classified(self, error: Exception) -> Failure:
        if isinstance(error, NotMade):
            return error.failure
        rejects = {"rejection_statuses": self._rejects} if self._rejects else {}
        failure = self.kit.failure(error, source=self._type, tool=self.tool.name, arguments=self._given, **rejects)
        if isinstance(error, Unfit):
            return failure
        if self._has_begun(error):
            self.guarding.executed()
            return failure
        return Failure.of(
            TOOL_INVALID_ARGUMENTS,
            failure.message,
            took_effect=TookEffect.NO,
            fingerprint=failure.fingerprint,
            detail=failure.detail,
            evidence=("TypeError before the function began", *failure.evidence),
        )

    def broke_off(self, error: Exception) -> None:
        """The stream that was the answer failed after its first item: nothing more is tried."""
        self.failed(error)
        if self.failure is not None:
            self.given_up = RecoveryFailed(self.failure, "the first items of the stream were already delivered")
        try:
            self._tell(None)
            self._note(error)
        except Exception:  # noqa: BLE001 - some exceptions refuse every change to them
            self.kit.fault("Adding the exception note")

    def cancelled(self) -> None:
        """Cancellation is not a failure: it is recorded as what it is, and passes."""
        self._leave()
        self.guarding.cancelled()
        self._is_cancelled = True
        if self._untold is not None:
            self._tell(None)
        elif self._planned is not None:
            self._unmade(None)
        self._end("cancelled")

    def _leave(self) -> None:
        if self._here is not None:
            self._here.is_open = False
        if self._token is not None:
            reset(self.kit.here, self._token)
            self._token = None
        if self._deadline is not None:
            reset(self.kit.deadline, self._deadline)
            self._deadline = None

    def _end(self, outcome: Outcome, result: Any = None) -> None:
        step, self._step = self._step, None
        stopped, self._stopped = self._stopped, None
        if step is None:
            return
        try:
            seconds = (self.kit.timer() if stopped is None else stopped) - self._started
            if outcome != "cancelled":
                self.guarding.ended(self._given, self.failure, self.instead)
            failure, tokens = self.failure, None
            if self._keeping is not None:
                failure = self._keeping.failure(failure, self._given)
                if self._keeping.is_model:
                    tokens = self.run.deduplicate_tokens(step.seq, step.parent, self._keeping.tokens(result))
                result = self._keeping.result(result)
            effects = None if failure is None else self.tool.effects
            self._last = msgspec.structs.replace(
                step, outcome=outcome, failure=failure, duration_seconds=seconds, tokens=tokens, effects=effects
            )
            self._untold = self._last, result
            if self.failure is None or outcome == "cancelled":
                self._tell(None)
        except Exception:  # noqa: BLE001 - unrecorded, and made
            self.kit.fault("Recording the end of a call")

    def _tell(self, move: Move | None) -> None:
        """Publishes the attempt that has ended; where it was the last, with why."""
        if isinstance(move, QueryMove) and move.query == self._known:
            return  # memory is asked first: whether this was the last attempt is not decided yet
        untold, self._untold = self._untold, None
        if untold is None:
            return
        try:
            step, result = untold
            if self.failure is not None and step.outcome != "cancelled":
                self.ending = self._surrendered(move, self.failure)
            kept = self.ending
            if kept is not None and self._keeping is not None:
                kept = self._keeping.ending(kept)
            ended = msgspec.structs.replace(step, result=result, stop=kept)
            self._publish(ended, is_final=step.outcome != "failure" or kept is not None)
        except Exception:  # noqa: BLE001 - unrecorded, and made
            self.kit.fault("Recording the end of a call")

    def _unmade(self, move: Move | None) -> None:
        """Publishes why an attempt that was planned and waited for is not made after all."""
        try:
            last, failure = self._last, self.failure
            if last is None or failure is None or isinstance(move, AttemptMove | BackoffMove):
                return
            planned, self._planned = self._planned, None
            self.ending = self._surrendered(move, failure)
            if not last.seq:
                return  # it is left out of the record
            step = msgspec.structs.replace(
                last,
                seq=self.run.next_number(),
                attempt=self._made + 1,
                outcome="cancelled",
                result=None,
                failure=None,
                tokens=None,
                metadata=None,
                started_at=self.kit.now(),
                duration_seconds=0.0,
                recovery=planned if self._keeping is None else self._keeping.recovery(planned),
                stop=self.ending if self._keeping is None or self.ending is None else self._keeping.ending(self.ending),
            )
            self._publish(step, is_final=True)
        except Exception:  # noqa: BLE001 - unrecorded, and given up all the same
            self.kit.fault("Recording the stop reason")

    def _surrendered(self, move: Move | None, failure: Failure) -> RecoveryStop | None:
        """Why the call is given up, where the move says that it is."""
        if isinstance(move, QueryMove) and move.query == self._recall:
            _, why, offered = move.arguments
        elif self._is_cancelled:
            return RecoveryStop(reason="the call was cancelled")
        elif move is None:
            why, offered = (
                (self.given_up.reason if self.given_up else "recovery failed with an internal error, see the log"),
                (),
            )
        else:
            return None
        if CIRCUIT_OPEN not in why and self.guarding.is_circuit_open():
            why = f"{why}; {CIRCUIT_OPEN}"
        spiral = self.guarding.given_up(self._arguments, failure)
        if spiral and not self.is_answered:
            self.run.add_note(spiral)
        # Once a streak: a poller would fill its run with notes. Its exceptions have them all.
        if self.guarding.is_note_new and not self.is_answered:
            self.run.add_note(self.guarding.repeat_note)
        left = tuple(
            Recovery(remedy=Remedy.REPAIR, changes=each.changes, source=each.source, confidence=each.confidence)
            for each in offered
            # What memory says is told with its record, as what worked before.
            if each.changes and not each.prerequisites and each.source != "memory"
        )
        return RecoveryStop(reason=why, suggestions=left[:OFFERED], spiral=spiral)

    def planned(self, move: BackoffMove) -> float:
        # Publish before sleeping, so that a process killed while it waits still leaves a trace of why.
        if self._last is not None:
            planned = move.recovery if self._keeping is None else self._keeping.recovery(move.recovery)
            self.kit.tell(RecoveryPlanned(self._last, planned or move.recovery))
        self._planned = move.recovery
        self._waits.append(move.recovery.backoff_seconds)
        return move.recovery.backoff_seconds

    def answer_query(self, move: QueryMove) -> Any:
        return move.query(*move.arguments)

    async def aanswer_query(self, move: QueryMove) -> Any:
        if iscoroutinefunction(move.query):
            return await move.query(*move.arguments)
        import asyncio  # loaded by whoever awaits us

        return await asyncio.to_thread(move.query, *move.arguments)

    def _recall(self, failure: Failure, why: str, offered: Sequence[Suggestion]) -> Sequence[Precedent]:
        if self.tool.learn == "off":
            return ()
        found = self.kit.recall(self.tool.name, self.tool.key, failure, self._given)
        if failure.took_effect is TookEffect.UNKNOWN and not self.tool.is_retry_safe:
            # It may have happened: that others made the same call again is no advice to do it twice.
            found = [each for each in found if each.method != "retry"]
        return found or [known for each in offered if (known := _only_alike(each)) is not None]

    def _known(self, failure: Failure, arguments: Mapping[str, Any]) -> Sequence[Fix]:
        if self.kit.fixes is None:
            return ()
        schema = self.tool.schema()
        digest = compile_schema(schema).digest if schema else ""
        return self.kit.fixes(self.tool.name, self.tool.key, failure, arguments, digest)

    def _verify(self, arguments: Mapping[str, Any], failure: Failure) -> object:
        assert self._check is not None
        started, began = self.kit.now(), self.kit.timer()
        return self._settled(self._check(arguments), failure, started, began)

    async def _averify(self, arguments: Mapping[str, Any], failure: Failure) -> object:
        assert self._check is not None
        started, began = self.kit.now(), self.kit.timer()
        return self._settled(await self._check(arguments), failure, started, began)

    def _settled(self, answer: Any, failure: Failure, started: int, began: float) -> object:
        """What the developer's check makes of a call whose outcome was unknown."""
        if answer is None:
            return None
        if answer is False:
            self.failure = msgspec.structs.replace(
                failure, took_effect=TookEffect.NO, evidence=(*failure.evidence, VERIFIED_NOT_EXECUTED)
            )
            return self.failure
        self.note = self.words.verified_note(self.tool.name)
        self._substitute(answer, Recovery(remedy=Remedy.RETRY, source=VERIFY), started, began)
        return VERIFIED_EXECUTED

    def answered_by(self, answer: Any, started: int, began: float) -> None:
        """The user's own function has answered in the place of a model."""
        self._substitute(answer, Recovery(remedy=Remedy.REPLAN, source="fallback"), started, began)

    def _substitute(self, answer: Any, after: Recovery, started: int, began: float) -> None:
        """Takes an answer that was not the function's for the call's, and records where it came from."""
        self._tell(self._move)
        last, self._error, self.failure, self._result = self._last, None, None, answer
        if last is not None:
            self._last = msgspec.structs.replace(
                last,
                seq=self.run.next_number(),
                attempt=self._made + 1,
                outcome="success",
                result=answer if self._keeping is None else self._keeping.result(answer),
                started_at=started,
                duration_seconds=self.kit.timer() - began,
                failure=None,
                recovery=after,
            )
            self._publish(self._last, is_final=True)

    def _publish(self, step: Step, *, is_final: bool) -> None:
        """Publish an attempt that has ended. Links are judged by its arguments, also where less is recorded."""
        keeping = self._keeping
        recorded, reduce = step.arguments, None
        if keeping is not None and not keeping.is_model:
            step = msgspec.structs.replace(step, arguments=to_plain_data(self._given))

            def reduce(judged: Step) -> Step:
                return msgspec.structs.replace(judged, arguments=recorded, links=keeping.links(judged.links))

        self.run.publish_step(step, self.kit, self._facts, is_final=is_final, reduce=reduce)
        if step.outcome == "success" and self._type != "model" and not self.run.is_implicit:
            scope = self._facts.item if self._facts is not None else ()
            arguments = step.arguments if isinstance(step.arguments, Mapping) else {}
            self.run.note_success(step.tool_key, arguments, scope)

    def ended(self) -> Any:
        """The result, or the original exception with a note of what was tried.

        A result that is a failure is a result: whoever called the function knows what to make of it.
        """
        error, self._error = self._error, None  # an exception that holds us, held by us, would live too long
        try:
            if error is not None:
                self._note(error)
            elif self.failure is None:
                if self._changes:
                    self.note = self.words.note(self.tool.name, self._changes)
                if self._preparing is not None and self._preparing.made:
                    first = [Prerequisite(tool=each.tool, arguments=each.arguments) for each in self._preparing.made]
                    self.note = " ".join(
                        filter(None, (self.note, self.words.prerequisites_made(self.tool.name, first)))
                    )
                if self.note and not self.is_answered:
                    self.run.add_note(self.note)
        except Exception:  # noqa: BLE001 - some exceptions refuse every change to them
            self.kit.fault("Adding the exception note")
        if error is not None:
            raise error
        return self._result

    def _note(self, error: Exception) -> None:
        if self.kit.layer() is not None or self.failure is None:
            return  # whoever retries knows more than we do, and will say it
        known: list[str] = getattr(error, "__notes__", [])
        # An exception kept and raised again and again would otherwise gather the note of every call.
        known[:] = [note for note in known if not note.startswith(OURS)]
        told = self.epitaph(
            self.given_up or RecoveryFailed(self.failure, "recovery failed with an internal error, see the log")
        )
        try:
            error.add_note(told)
        except (AttributeError, TypeError):
            return  # some exceptions are frozen, and leave without a note

    def epitaph(self, given_up: RecoveryFailed) -> str:
        words = self.words
        told = words.exception_note(
            given_up.failure,
            attempts=0 if BLOCKED in given_up.failure.evidence else self._made,
            seconds=self.kit.timer() - self._began,
            backoffs=self._waits,
            stop_reason=given_up.reason if self.ending is None else self.ending.reason,
            run="" if self.kit.is_silent else self.run.id,
        )
        offered = self.ending.suggestions if self.ending is not None else ()
        spiral = self.ending.spiral if self.ending is not None else ""
        return "\n".join(
            [
                told,
                *filter(None, (self.guarding.repeat_note, spiral)),
                *(f"{OURS} {each}" for each in words.suggestions(offered[:2])),
                *(f"{OURS} {words.precedent(each)}" for each in given_up.precedents[:2]),
            ]
        )


def _only_alike(offered: Suggestion) -> Precedent | None:
    """What memory suggests although this very failure was never overcome, as it is told."""
    record = offered.record
    is_drawn = record is not None and record.type == "exemplar"
    if record is None or not record.showable or offered.confidence < MIN_TOLD_CONFIDENCE:
        return None
    if record.similarity >= 1 and not is_drawn:
        return None  # told as what recovered this failure before
    return Precedent(
        method="prerequisite" if offered.prerequisites else "agent",
        changes=offered.changes,
        prerequisites=tuple(Prerequisite(tool=each.tool, arguments=each.arguments) for each in offered.prerequisites),
        successes=record.successes,
        occurrences=record.trials,
        similarity=0.0 if is_drawn else record.similarity,
    )
