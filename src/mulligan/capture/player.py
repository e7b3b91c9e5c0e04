"""Executes the moves of a recovery plan, sync and async."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mulligan.recover.plan import AttemptMove, BackoffMove, QueryMove

if TYPE_CHECKING:
    from mulligan.capture.call_execution import Attempts


def execute_plan(call: Attempts) -> Any:
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
                    answer = call.answered(move)
        except Exception as error:  # noqa: BLE001 - any error of the call is classified and recovered
            answer = call.failed(error)
        except BaseException:
            call.cancelled()
            raise
    return call.ended()


async def aexecute_plan(call: Attempts) -> Any:
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
                    answer = await call.aanswered(move)
        except Exception as error:  # noqa: BLE001 - any error of the call is classified and recovered
            answer = call.failed(error)
        except BaseException:
            call.cancelled()
            raise
    return call.ended()
