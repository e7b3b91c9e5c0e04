"""A call that worked at once, in the few facts from which another thread makes its record.

Most calls are of this sort, and nobody waits for their record: the caller notes what it was given and what came back,
copied only where it could change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.records import Run, Step, StepType
from mulligan.redaction import plain

FLAT = frozenset({str, int, float, bool, type(None)})
"""What cannot change, and needs no copy."""
SIMPLE = FLAT - {float}
CLOSED = frozenset({int, float, bool, type(None)})
"""Values that belong to no secret, unless their name says so."""
FEW = 200
"""Members of a collection, and thousands of characters of a text, that are copied without a second thought."""
LARGE = 65_536
"""Characters of a text, or bytes of a value, above which it is not held on to without a second thought."""
_freeze = msgspec.json.Encoder().encode
_type = type


class Form:
    """What calls that were made alike have in common: the tool, the names of the arguments and their types."""

    __slots__ = (
        "alone",
        "hides",
        "is_flat",
        "is_simple",
        "kept_name",
        "kinds",
        "name",
        "names",
        "prefix",
        "server",
        "tells",
        "tells_all",
        "type",
    )

    def __init__(
        self, type: StepType, name: str, names: Sequence[str], kinds: Sequence[type], server: str | None = None
    ) -> None:
        self.type: StepType = type
        self.name = name
        self.server = server
        self.names = tuple(names)
        self.kinds = tuple(kinds)
        self.is_flat = FLAT.issuperset(kinds)
        # What may be told of it, for the gate to work out, once.
        self.prefix: bytes | None = None
        """All this as a journal has it."""
        self.kept_name = ""
        self.hides = True
        """Whether a name hides its value, or is hidden itself."""
        self.tells: tuple[bool, ...] = ()
        """Which of the values may be told as they are."""
        self.tells_all = False
        """Whether nothing of them is hidden but the letters of texts."""
        self.alone: tuple[Run, msgspec.Raw] | None = None
        """The run of calls that are outside any, and what a journal has of it."""
        self.is_simple = SIMPLE.issuperset(kinds)
        """Whether there is nothing to look at in them but texts and how large a number is."""


class Success(msgspec.Struct, frozen=True, gc=False):
    """A call that worked at once. Its values are still as they were given."""

    form: Form
    run: str
    seq: int
    parent: int | None
    started: float
    """Seconds since 1970."""
    seconds: float
    values: Sequence[Any]
    """Those of its arguments, in the order of their names."""
    result: Any
    alone: Run | None
    """Its run, where it was outside any: that began and ended with it. Id and times are the call's own."""
    tokens: dict[str, int] | None = None

    @classmethod
    def of(
        cls,
        type: StepType,
        name: str,
        arguments: Mapping[str, Any],
        *,
        run: str,
        seq: int = 1,
        started: float = 0.0,
        seconds: float = 0.0,
        result: Any = None,
        alone: Run | None = None,
    ) -> Success:
        """One that nothing is like, from what is known of it by name."""
        values = [frozen(value) for value in arguments.values()]
        form = Form(type, name, tuple(arguments), tuple(map(_type, arguments.values())))
        return cls(form, run, seq, None, started, seconds, values, frozen(result), alone)

    @property
    def arguments(self) -> dict[str, Any]:
        form = self.form
        return dict(zip(form.names, self.values if form.is_flat else map(thawed, self.values), strict=True))

    def step(self, name: str, arguments: Any, result: Any) -> Step:
        return Step(
            run=self.run,
            seq=self.seq,
            call=self.seq,
            parent=self.parent,
            type=self.form.type,
            name=name,
            server=self.form.server,
            arguments=arguments,
            result=result,
            started=int(self.started * 1000),
            seconds=self.seconds,
            tokens=self.tokens,
        )

    def whole_run(self, alone: Run) -> Run:
        """The run that had only this call in it."""
        return Run(
            id=self.run,
            agent=alone.agent,
            version=alone.version,
            environment=alone.environment,
            session=alone.session,
            parent=alone.parent,
            context=alone.context,
            metadata=alone.metadata,
            started=int(self.started * 1000),
            ended=int(self.started * 1000) + int(self.seconds * 1000),
            end="finished",
        )


def frozen(value: Any) -> Any:
    """A value as it is now, whatever becomes of it; cheaply. `thawed` gives it back."""
    kind = type(value)
    if kind in FLAT:
        return value
    if kind is dict and len(value) <= FEW:
        inside = value.values()
    elif (kind is list or kind is tuple) and len(value) <= FEW:
        inside = value
    else:
        return plain(value)
    for each in inside:
        if type(each) not in FLAT or (type(each) is str and len(each) > LARGE):
            break
    else:
        return value.copy() if kind is dict else list(value)
    if not _is_small(inside):
        return plain(value)
    try:
        return msgspec.Raw(_freeze(value))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return plain(value)  # not of JSON: described, one by one


def _is_small(inside: Iterable[Any]) -> bool:
    """Whether it is quickly copied. What is held twice counts twice: lists that share each other may be endless."""
    left = FEW * 10
    waiting = [inside]
    while waiting:
        for each in waiting.pop():
            kind = type(each)
            if kind is str:
                if len(each) > FEW * 1000:
                    return False
            elif kind is dict or kind is list or kind is tuple:
                left -= len(each)
                if left < 0:
                    return False
                waiting.append(each.values() if kind is dict else each)
    return True


def thawed(value: Any) -> Any:
    return msgspec.json.decode(value) if type(value) is msgspec.Raw else value
