"""What links are judged by besides records: facts about calls, open failures, possible corrections."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from mulligan.core.argument_comparison import (
    is_certainly_same,
)
from mulligan.core.calls import Call


class Receiver(msgspec.Struct, frozen=True, eq=False):
    """What a function depends on besides its arguments. The same method of another object is another target."""

    function: Any
    """A reference to a function that may be created repeatedly with other values; None for a method."""
    values: tuple[Any, ...]
    """References to the object of a method, or to the values in a function's closure."""

    def is_same_as(self, other: Receiver | None) -> bool:
        if other is None:
            return False
        function = _dereference(self.function)
        if function is not None and function is _dereference(other.function):
            return True
        return len(self.values) == len(other.values) and all(map(_is_same_object, self.values, other.values))


def _dereference(reference: Any) -> Any:
    return reference() if isinstance(reference, weakref.ref) else reference


_PLAIN = (str, int, float, bool, bytes)


def _is_same_object(first: Any, second: Any) -> bool:
    """Return whether two references are to one object, or to equal plain values. A dead reference equals nothing."""
    one, other = _dereference(first), _dereference(second)
    if one is None and isinstance(first, weakref.ref):
        return False
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and one == other)


class CallFacts(msgspec.Struct, frozen=True):
    """Facts about a call beyond its record. Used to judge links, never stored."""

    failures_before: int | None = None
    """Failures of the run that were delivered before the call began; None if only times are known."""
    task: tuple[int, ...] | None = None
    """The task or thread of the call, preceded by its ancestors; None if tasks are unknown."""
    handled: tuple[int, ...] = ()
    """Failed calls whose exception was being handled when the call began."""
    turn: tuple[int, int] | None = None
    """The loop, and the number of the model turn that requested the call."""
    item: tuple[Any, ...] = ()
    """The item scopes around the call, and the values of its declared item arguments."""
    item_arguments: tuple[str, ...] = ()
    """Arguments that are declared to name items."""
    privileged: Collection[str] = ()
    """Arguments that are declared privileged."""
    is_destructive: bool = False
    """Whether the tool is declared destructive: all its arguments are privileged."""
    corrected: tuple[int, ...] = ()
    """Failed calls that the program says this call corrects."""
    receiver: Receiver | None = None
    """What the function depends on besides its arguments: the object of a method, or its closure."""
    knows_program: bool = False
    """Whether a program in this process made the call, so that an exception handler would have been detected."""
    is_logged: bool = False
    """Whether a model made the calls of the run and turns are unknown, as in an agent's log or behind a proxy."""
    lost_answers: tuple[Any, ...] = ()
    """Of a call that only reads: the lost answers of the session before it, which its success may settle."""
    reads_only: bool = False
    """Whether the tool is declared to have no effects, so that its call changes nothing that a later one depends on."""


LOGGED = CallFacts(is_logged=True)
"""Facts of a call that another program recorded."""


SAME_ARGUMENTS_ONLY = CallFacts(task=())
"""Facts of an otherwise unknown call: it recovers a failure only with the same arguments."""


class PossibleCorrection(msgspec.Struct, frozen=True):
    """A call that may correct a failed one, with the arguments whose values it changes."""

    call: Call
    facts: CallFacts
    paths: tuple[str, ...]
    """Arguments in which no other success of the run may differ."""
    texts: tuple[str, ...] = ()
    """Arguments with a long text, to which no other call of the run may have a similar one."""
    intent: tuple[int, ...] = ()
    """The failed calls that it re-issues."""
    failed: int = 0
    """The failed call that it is compared with."""
    replaced: tuple[Mapping[str, Any], ...] = ()
    """The arguments of the failed calls, if the correction was made because of them.

    Other calls may have succeeded with what failed here: who corrects an error has first tried the usual value.
    """

    def is_other_item(self, root: str, value: Any) -> bool:
        """Return whether a value of another success in a changed argument shows that the argument names items."""
        arguments = self.call.last.arguments
        if isinstance(arguments, Mapping) and is_certainly_same(arguments.get(root), value):
            return False
        return not any(is_certainly_same(failed.get(root), value) for failed in self.replaced)


ItemTest = Callable[[PossibleCorrection], bool]
"""Returns whether other calls of the run show that a changed argument names an item."""


def has_no_items(candidate: PossibleCorrection) -> bool:
    """Item test for a caller that knows of no other calls."""
    return False


class IntentMember(msgspec.Struct, frozen=True):
    """An earlier failed call of an intent, and the tools that succeeded before it was issued again."""

    call: Call
    tools: tuple[str, ...]


class OpenFailure(msgspec.Struct, frozen=True):
    """An unrecovered failed call, and what happened since."""

    call: Call
    facts: CallFacts
    number: int
    """The number of failures of the run that were delivered before it."""
    intent: tuple[int, ...] = ()
    """Earlier failed calls of the same intent with the same values, the oldest first."""
    members: tuple[IntentMember, ...] = ()
    """The latest of these, with what succeeded between them."""
    previous: int = 0
    """The open failure that it re-issued with other values: the same intent, unless these values name items."""
    is_unknown_tool: bool = False
    """Whether it failed because there is no tool of that name: the call of a similar one may re-issue it."""
    tools_since: tuple[str, ...] = ()
    """Tools that have succeeded since, models excluded."""
    changing_tools: tuple[str, ...] = ()
    """Those of them that are not declared to only read: they may be why the same call succeeds later."""
    preparing_tools: tuple[str, ...] = ()
    """Those of them that may have changed what it depends on, if it is a shell command. The same intent keeps them."""
    results: tuple[tuple[str, Any], ...] = ()
    """Results received since from calls of other tools: the tool and the result."""
    has_lost_answer: bool = False
    """Whether it may have executed a call with effects="once" whose answer never arrived."""

    @property
    def failed_calls(self) -> tuple[int, ...]:
        # Failed calls of one intent that a success recovers, the latest.
        return (*self.intent, self.call.id)[-1000:]


class RecentSuccess(msgspec.Struct, frozen=True):
    """A call that succeeded while a failure was open: it may be a prerequisite."""

    call: int
    name: str
    arguments: dict[str, Any]
    """Compact: long texts and nested values are None."""
