"""Executes the moves of a recovery plan, sync and async."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from mulligan.recover.plan import AttemptMove, BackoffMove, Move, QueryMove

if TYPE_CHECKING:
    from mulligan.capture.context import Kit
    from mulligan.core.failure import Failure


class PlannedCall(Protocol):
    """A call as the players see it: it yields moves and receives the result of each."""

    kit: Kit
    function: Callable[[Mapping[str, Any]], Any]

    def next(self, answer: Any) -> Move | None:
        """Return the next move, or None when there are no more."""

    def started(self, move: AttemptMove) -> Mapping[str, Any]:
        """Begin an attempt. Return the arguments to call the function with."""

    def succeeded(self, result: Any) -> Failure | None:
        """End an attempt that returned. Return a failure if the result is one."""

    def failed(self, error: Exception) -> Failure | None:
        """End an attempt that raised."""

    def cancelled(self) -> None:
        """End an attempt that was interrupted."""

    def planned(self, move: BackoffMove) -> float:
        """Return the seconds to sleep."""

    def answer_query(self, move: QueryMove) -> Any:
        """Return the answer to a query of the plan."""

    async def aanswer_query(self, move: QueryMove) -> Any:
        """Return the answer to a query of the plan, which may be async."""

    def ended(self) -> Any:
        """Return the result of the call, or raise its exception."""


def execute_plan(call: PlannedCall) -> Any:
    """Execute a call and its recovery in this thread."""
    answer: Any = None
    while (move := call.next(answer)) is not None:
        answer = None
        try:
            match move:
                case AttemptMove():
                    answer = call.succeeded(call.function(call.started(move)))
                case BackoffMove():
                    call.kit.sleep(call.planned(move))
                case QueryMove():
                    answer = call.answer_query(move)
        except Exception as error:  # noqa: BLE001 - any error of the call is classified and recovered
            answer = call.failed(error)
        except BaseException:
            call.cancelled()
            raise
    return call.ended()


async def aexecute_plan(call: PlannedCall) -> Any:
    """Execute a call and its recovery in this task."""
    answer: Any = None
    while (move := call.next(answer)) is not None:
        answer = None
        try:
            match move:
                case AttemptMove():
                    answer = call.succeeded(await call.function(call.started(move)))
                case BackoffMove():
                    await call.kit.asleep(call.planned(move))
                case QueryMove():
                    answer = await call.aanswer_query(move)
        except Exception as error:  # noqa: BLE001 - any error of the call is classified and recovered
            answer = call.failed(error)
        except BaseException:
            call.cancelled()
            raise
    return call.ended()
