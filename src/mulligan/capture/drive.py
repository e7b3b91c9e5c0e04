"""Plays the moves of a recovery, once sync and once async: one step each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from mulligan import prompt
from mulligan.capture.kit import Kit
from mulligan.capture.tracer import ActiveRun
from mulligan.classify.taxonomy import TOOL_INVALID_ARGUMENTS
from mulligan.events import RecoveryPlanned, StepStarted
from mulligan.failure import Failure, Ran
from mulligan.records import Outcome, Precedent, Recovery, Step, StepType
from mulligan.recover.plan import Ask, GivenUp, Move, Questions, Recovering, Tool, Try, Wait, recovery
from mulligan.recover.policy import Policy

log = logging.getLogger("mulligan")

STREAM = object()
"""What a function answers whose result is still to come: its step ends when the stream does."""


class Attempts:
    """One call as it is made: its steps, what they answered, and how it ended."""

    def __init__(
        self,
        kit: Kit,
        run: ActiveRun,
        tool: Tool,
        arguments: Mapping[str, Any],
        function: Callable[[Mapping[str, Any]], Any],
        *,
        type: StepType = "tool",
        server: str | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.kit = kit
        self.run = run
        self.tool = tool
        self.function = function
        self.arguments = arguments
        self.type: StepType = type
        self.server = server
        self.steps: list[Step] = []
        self.result: Any = None
        self.error: Exception | None = None
        self.failure: Failure | None = None
        self.given_up: GivenUp | None = None
        self._began = kit.timer()
        self._started = self._began
        self._step: Step | None = None
        parent = kit.step.get()
        self._parent = parent.number if parent is not None and parent.run is run else None
        questions = Questions(recall=self._recall, chance=kit.chance)
        self.moves: Recovering = recovery(arguments, tool, policy or kit.policy, questions)

    def next(self, answer: Any) -> Move | None:
        """The next move, or None when there are no more."""
        try:
            return self.moves.send(answer)
        except StopIteration as stop:
            self.given_up = stop.value
        except Exception:
            log.exception("recovery of %s failed; the call goes on without it", self.tool.name)
            if not self.steps:
                return Try(self.arguments)
        return None

    def started(self, move: Try) -> Mapping[str, Any]:
        number = self.run.next_number()
        self._step = Step(
            run=self.run.id,
            seq=number,
            call=self.steps[0].call if self.steps else number,
            attempt=len(self.steps) + 1,
            parent=self._parent,
            type=self.type,
            name=self.tool.name,
            server=self.server,
            arguments=move.arguments,
            started=self.kit.now(),
            after=move.after,
        )
        self.kit.publish(StepStarted(self._step))
        self._started = self.kit.timer()
        return move.arguments

    def succeeded(self, result: Any) -> None:
        self.error = self.failure = None
        self.result = result
        if result is not STREAM:
            self._ended("success", result=result)

    def streamed(self, items: int) -> None:
        """The stream that was the answer has come to its end."""
        self._ended("success", result={"$stream": items})

    def failed(self, error: Exception) -> Failure:
        step = self._step
        arguments = step.arguments if step is not None else self.arguments
        failure = self.kit.classify(error, source=self.type, tool=self.tool.name, arguments=arguments)
        if _never_began(error):
            failure = Failure.of(
                TOOL_INVALID_ARGUMENTS,
                failure.message,
                ran=Ran.NO,
                fingerprint=failure.fingerprint,
                detail=failure.detail,
                evidence=("TypeError before the function began", *failure.evidence),
            )
        self.error = error
        self.failure = failure
        self.run.has_seen(error)
        self._ended("failure" if failure.counts else "refused", failure=failure)
        return failure

    def cancelled(self) -> None:
        """Cancellation is not a failure: it is recorded as what it is, and passes."""
        self._ended("cancelled")

    def _ended(self, outcome: Outcome, result: Any = None, failure: Failure | None = None) -> None:
        if self._step is None:
            return
        seconds = self.kit.timer() - self._started
        step = msgspec.structs.replace(self._step, outcome=outcome, result=result, failure=failure, seconds=seconds)
        self._step = None
        self.steps.append(msgspec.structs.replace(step, result=None))
        self.run.publish(step)

    def planned(self, recovery: Recovery) -> float:
        # Publish before sleeping, so that a process killed while it waits still leaves a trace of why.
        self.kit.publish(RecoveryPlanned(self.steps[-1], recovery))
        return recovery.seconds

    def answered(self, move: Ask) -> Any:
        try:
            return move.question(*move.arguments)
        except Exception:
            log.exception("a question of recovery failed for %s", self.tool.name)
            return None

    async def aanswered(self, move: Ask) -> Any:
        import asyncio  # loaded by whoever awaits us

        return await asyncio.to_thread(self.answered, move)

    def _recall(self, failure: Failure) -> Sequence[Precedent]:
        return self.kit.recall(self.tool.name, failure, self.run.id)

    def ended(self) -> Any:
        """The result, or the original exception with a note of what was tried."""
        if self.error is None:
            self._announce()
            return self.result
        error, self.error = self.error, None  # an exception that holds us, held by us, would live too long
        if self.given_up is not None and not any(each.startswith("mulligan:") for each in _notes(error)):
            error.add_note(self.epitaph(self.given_up))
        raise error

    def epitaph(self, given_up: GivenUp) -> str:
        told = prompt.epitaph(
            given_up.failure,
            attempts=len(self.steps),
            seconds=self.kit.timer() - self._began,
            waits=[step.after.seconds for step in self.steps if step.after],
            why=given_up.why,
            run=self.run.id,
        )
        return "\n".join([told, *(f"mulligan: {prompt.precedent(each)}" for each in given_up.precedents[:2])])

    def _announce(self) -> None:
        changes = self.steps[-1].after.changes if self.steps and self.steps[-1].after else ()
        if changes:
            self.run.notes.append(prompt.note(self.tool.name, changes))


def play(call: Attempts) -> Any:
    """Makes a call and recovers it, in this thread."""
    answer: Any = None
    while (move := call.next(answer)) is not None:
        answer = None
        match move:
            case Try():
                token = call.kit.is_recovering.set(True)
                try:
                    result = call.function(call.started(move))
                except Exception as error:  # noqa: BLE001 - whatever it is, it is what we are here for
                    answer = call.failed(error)
                except BaseException:
                    call.cancelled()
                    raise
                else:
                    call.succeeded(result)
                finally:
                    call.kit.is_recovering.reset(token)
            case Wait():
                call.kit.sleep(call.planned(move.recovery))
            case Ask():
                answer = call.answered(move)
    return call.ended()


async def aplay(call: Attempts) -> Any:
    """Makes a call and recovers it, in this task."""
    answer: Any = None
    while (move := call.next(answer)) is not None:
        answer = None
        match move:
            case Try():
                token = call.kit.is_recovering.set(True)
                try:
                    result = await call.function(call.started(move))
                except Exception as error:  # noqa: BLE001 - whatever it is, it is what we are here for
                    answer = call.failed(error)
                except BaseException:
                    call.cancelled()
                    raise
                else:
                    call.succeeded(result)
                finally:
                    call.kit.is_recovering.reset(token)
            case Wait():
                await call.kit.asleep(call.planned(move.recovery))
            case Ask():
                answer = await call.aanswered(move)
    return call.ended()


def _notes(error: Exception) -> list[str]:
    return getattr(error, "__notes__", [])


def _never_began(error: Exception) -> bool:
    """Whether a TypeError comes from the call itself: wrong names or too many arguments, before the first line."""
    if not isinstance(error, TypeError) or error.__traceback__ is None:
        return False
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    return last.tb_frame.f_globals.get("__name__") == "mulligan.capture.wrap"
