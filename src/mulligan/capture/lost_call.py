"""Whether the answer of a call was lost, so that the same call may have executed before.

The arguments of a call are given as its function receives them: positional and keyword arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mulligan.capture.captured_call import CapturedCall
from mulligan.capture.framework_classes import is_interruption
from mulligan.core import fork_safety
from mulligan.core.failure import Failure
from mulligan.core.records import Step

if TYPE_CHECKING:
    from mulligan.recover.lost_answers import CallIdentity, LostAnswer

PassedArguments = tuple[tuple[Any, ...], Mapping[str, Any]]
"""The positional and keyword arguments that an attempt passes to the function."""


def identify_call(call: CapturedCall, passed: PassedArguments, requested_name: str = "") -> CallIdentity:
    """Return what makes another call the same as this one: the tool, and what the last attempt passes to it."""
    with fork_safety.import_lock:
        from mulligan.recover.lost_answers import CallIdentity, encode_arguments  # lazy: few calls need it
    arguments = call.wrapped.complete_arguments(call.wrapped.signature.bind(*passed))
    owner = call.owner
    return CallIdentity(
        call.wrapped.key, requested_name, 0 if owner is None else id(owner), encode_arguments(arguments)
    )


def find_lost_answer(call: CapturedCall, passed: PassedArguments, requested_name: str = "") -> LostAnswer | None:
    """Return the same call of the session whose answer was lost and is not settled, the latest."""
    if not call.run.lost_answers:
        return None
    identity = identify_call(call, passed, requested_name)
    return next((answer for answer in reversed(call.run.lost_answers) if answer.call.is_same_as(identity)), None)


def note_cut_off(
    call: CapturedCall,
    passed: PassedArguments,
    step: Step,
    error: BaseException | None,
    identify: Callable[[], CallIdentity] | None = None,
) -> None:
    """Remember that the answer of this call was lost, if this exception cut it off."""
    if call.wrapped.options.effects == "once" and is_interruption(error, call.capture.control_flow):
        identity = identify_call(call, passed) if identify is None else identify()
        note_lost_answer(call, passed, step, None, identity)


def note_lost_answer(
    call: CapturedCall, passed: PassedArguments, step: Step, failure: Failure | None, identity: CallIdentity
) -> None:
    """Remember that the answer of this call was lost, if it matters and is so. `failure` is None if it was cut off.

    A call around it that failed too is no answer either, whatever it raised.
    """
    wrapped, run = call.wrapped, call.run
    has_lost_answer = wrapped.options.effects == "once" and (failure is None or failure.has_lost_answer)
    if failure is not None and not has_lost_answer:
        has_lost_answer = any(answer.parent == step.seq and answer.run == run.id for answer in run.lost_answers)
    is_delegated = call.rules.is_off and call.rules.mode == "observe"  # an adapter notes its own call
    if run.is_implicit or is_delegated or not has_lost_answer:
        return
    with fork_safety.import_lock:
        from mulligan.recover.lost_answers import LostAnswer, find_identifiers  # lazy: after a failure only
    run.add_lost_answer(
        LostAnswer(
            run=run.id,
            number=step.call,
            parent=step.parent,
            tool=wrapped.name,
            call=identity,
            identifiers=find_identifiers(wrapped.signature.bind(*passed), wrapped.shareable_texts()),
            failure=failure,
            user_messages=run.user_messages,
            settled_calls=run.judge.settled_calls,
        )
    )
