"""A call that worked at once, in the few facts from which another thread makes its record.

Most calls are of this sort, and nobody waits for their record: the caller notes what it was given and what came back,
copied only where it could change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.records import Run, Step, StepType
from mulligan.redaction import plain

FLAT = frozenset({str, int, float, bool, type(None)})
"""What cannot change, and needs no copy."""
CLOSED = frozenset({int, float, bool, type(None)})
"""Values that belong to no secret, unless their name says so."""
FEW = 200
"""Members of a collection, and thousands of characters of a text, that are copied without a second thought."""
LARGE = 65_536
"""Characters of a text, or bytes of a value, above which it is not held on to without a second thought."""
_freeze = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_type = type
_NAMES = frozenset({str})


class Form:
    """What all calls of a function have in common, and what may be told of them; the latter works out the gate."""

    __slots__ = (
        "is_reduced",
        "kept_name",
        "key",
        "leading",
        "name",
        "named",
        "names",
        "plain",
        "prefixes",
        "server",
        "tool_key",
        "type",
    )

    def __init__(
        self,
        type: StepType,
        name: str,
        names: Sequence[str] = (),
        plain: Iterable[str] = (),
        server: str | None = None,
        key: str | None = None,
    ) -> None:
        self.key = key
        """Identity of the tool, where its name is not enough."""
        self.tool_key = key or (f"{server}/{name}" if server else name)
        self.type: StepType = type
        self.name = name
        self.server = server
        self.names = tuple(names)
        """Those of its arguments that have a place, in order."""
        self.plain = frozenset(plain)
        """Names under which an argument may be given and told; of the gate, those alone that hide nothing."""
        self.is_reduced = False
        """Whether less than all is kept of its calls: then none of their values is told as it is given."""
        self.leading = -1
        """How many values may be given by place and be told as they are; none before the gate has seen it."""
        self.kept_name = ""
        self.prefixes: tuple[msgspec.Raw, ...] | None = None
        """All this as a journal has it, by how many values were given by place."""
        self.named: Callable[[str], tuple[str, bool, bool]] | None = None
        """Of any name, how it is told, and whether it hides numbers and texts."""


class Alone(msgspec.Struct, frozen=True, gc=False):
    """What the runs of calls that are outside any have in common, and what a journal has of it."""

    run: Run
    told: msgspec.Raw

    @classmethod
    def of(cls, run: Run) -> Alone:
        said = (run.agent, run.environment, run.session, run.parent)
        try:
            told = _pack(said)
        except (TypeError, ValueError):  # half a character, say: what a journal cannot have is told as far as it can
            told = _pack([each if each is None else str(each).encode("utf-8", "replace").decode() for each in said])
        return cls(run, msgspec.Raw(told))


class Success(msgspec.Struct, eq=False, gc=False):
    """A call that worked at once. Its values are still as they were given.

    It is made when the call begins; `seconds` and `result` are told when it has ended, and then it is left as it is.
    """

    form: Form
    run: str
    seq: int
    parent: int | None
    started: float
    """Seconds since 1970."""
    given: Sequence[Any]
    """The values that were given by place."""
    named: dict[str, Any]
    """Those that were given by name."""
    alone: Alone | None
    """Its run, where it was outside any: that began and ended with it. Id and times are the call's own."""
    is_flat: bool = True
    """Whether all values given are of types that cannot change."""
    seconds: float = 0.0
    result: Any = None
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
        form = Form(type, name, plain=arguments)
        named = {key: frozen(value) for key, value in arguments.items()}
        is_flat = FLAT.issuperset(map(_type, named.values()))
        outside = None if alone is None else Alone.of(alone)
        return cls(form, run, seq, None, started, (), named, outside, is_flat, seconds, frozen(result))

    @property
    def arguments(self) -> dict[str, Any]:
        named = self.named if self.is_flat else {name: thawed(value) for name, value in self.named.items()}
        given, names = self.given, self.form.names
        if len(given) == 1:  # as most often, and several times faster so
            return {names[0]: given[0], **named}
        return {**dict(zip(names, given)), **named} if given else named  # noqa: B905 - not all are given

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
            key=self.form.key,
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
    if not _is_small(value):
        return plain(value)
    try:
        return msgspec.Raw(_freeze(value))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return plain(value)  # not of JSON: described, one by one


def telling(form: Form, named: Mapping[str, Any], given: Sequence[Any] = ()) -> list[Any] | None:
    """What a journal has of the values of a call: those given by place, then name, value, and so on.

    A number, a truth or nothing is told as it is, a text as a list with its length, anything else by its type. None
    while nothing is known of the form.
    """
    if form.named is None:
        return None
    told: list[Any] = []
    for name, value in zip(form.names, given):  # noqa: B905 - not every name was given
        told.append(_told(value, form.named(name)[1]))
    for name, value in named.items():
        kept, hides_numbers, _ = form.named(name)
        told += kept, _told(value, hides_numbers)
    return told


def _told(value: Any, is_hidden: bool) -> Any:
    kind = type(value)
    if kind is str:
        return [len(value)]
    if kind is dict and len(value) == 1 and type(value.get("$str")) is int:
        return [value["$str"]]  # a text of which only the length is kept
    return value if kind in CLOSED and not is_hidden else kind.__name__


def _is_small(value: Any) -> bool:
    """Whether it is quickly copied as JSON, and is all of JSON: anything else is described, and not by the encoder.

    What is held twice counts twice: lists that share each other may be endless.
    """
    left = FEW * 10
    waiting = [value]
    while waiting:
        held = waiting.pop()
        left -= len(held)
        if left < 0 or (type(held) is dict and not _NAMES.issuperset(map(type, held))):
            return False
        for each in held.values() if type(held) is dict else held:
            kind = type(each)
            if kind is str:
                if len(each) > FEW * 1000:
                    return False
            elif kind is dict or kind is list or kind is tuple:
                waiting.append(each)
            elif kind is int:
                if not -(2**63) <= each < 2**63:
                    return False
            elif kind not in FLAT or (kind is float and not math.isfinite(each)):
                return False
    return True


def thawed(value: Any) -> Any:
    return msgspec.json.decode(value) if type(value) is msgspec.Raw else value
