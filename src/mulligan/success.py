"""The fast path for successful first attempts: few facts, from which another thread builds the record.

Most calls take this path. The caller stores arguments and result and copies only mutable values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.records import Run, Step, StepType
from mulligan.redaction import plain

FLAT = frozenset({str, int, float, bool, type(None)})
"""Types whose values need no copy."""
CLOSED = frozenset({int, float, bool, type(None)})
"""Types whose values cannot be secrets, except under a name that indicates one."""
FEW = 200
"""Collection members, and thousands of characters, up to which a value is copied directly."""
LARGE = 65_536
"""Characters of a text, or bytes of a value, up to which it is retained directly."""
_freeze = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_type = type
_NAMES = frozenset({str})


class Form:
    """What all calls of a function share, and what may be journaled. The record redactor fills in the latter."""

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
        """Identity of the tool if its name is not unique."""
        self.tool_key = key or (f"{server}/{name}" if server else name)
        self.type: StepType = type
        self.name = name
        self.server = server
        self.names = tuple(names)
        """The names of the positional arguments, in order."""
        self.plain = frozenset(plain)
        """Names of arguments that may be journaled. The record redactor removes the sensitive ones."""
        self.is_reduced = False
        """Whether calls are recorded in reduced form. Then no value is journaled unchanged."""
        self.leading = -1
        """How many positional values may be journaled unchanged; -1 until the record redactor has prepared it."""
        self.kept_name = ""
        self.prefixes: tuple[msgspec.Raw, ...] | None = None
        """The encoded journal prefix, by the number of positional values."""
        self.named: Callable[[str], tuple[str, bool, bool]] | None = None
        """Returns the redacted name, and whether numbers and texts under it are redacted."""


class Alone(msgspec.Struct, frozen=True, gc=False):
    """The shared fields of standalone runs, with their journal encoding."""

    run: Run
    told: msgspec.Raw

    @classmethod
    def of(cls, run: Run) -> Alone:
        said = (run.agent, run.environment, run.session, run.parent)
        try:
            told = _pack(said)
        except (TypeError, ValueError):  # an invalid surrogate, for example: journal a replacement
            told = _pack([each if each is None else str(each).encode("utf-8", "replace").decode() for each in said])
        return cls(run, msgspec.Raw(told))


class Success(msgspec.Struct, eq=False, gc=False):
    """A successful first attempt, with its values still unredacted.

    It is created when the call starts. `seconds` and `result` are set when it ends; then it stays unchanged.
    """

    form: Form
    run: str
    seq: int
    parent: int | None
    started: float
    """Seconds since the Unix epoch."""
    given: Sequence[Any]
    """The positional values."""
    named: dict[str, Any]
    """The keyword values."""
    alone: Alone | None
    """The run of a standalone call: it has only this call, with the id and times of the call."""
    is_flat: bool = True
    """Whether all arguments have immutable types."""
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
        """Build a record with its own template, from arguments by name."""
        form = Form(type, name, plain=arguments)
        named = {key: frozen(value) for key, value in arguments.items()}
        is_flat = FLAT.issuperset(map(_type, named.values()))
        outside = None if alone is None else Alone.of(alone)
        return cls(form, run, seq, None, started, (), named, outside, is_flat, seconds, frozen(result))

    @property
    def arguments(self) -> dict[str, Any]:
        named = self.named if self.is_flat else {name: thawed(value) for name, value in self.named.items()}
        given, names = self.given, self.form.names
        if len(given) == 1:  # the common case, several times faster
            return {names[0]: given[0], **named}
        return {**dict(zip(names, given)), **named} if given else named  # noqa: B905

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
        """Build the run of a standalone call."""
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
    """Return a cheap snapshot of a value. `restore_value` reverses it."""
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
        return plain(value)  # not valid JSON: replaced by a description


def telling(form: Form, named: Mapping[str, Any], given: Sequence[Any] = ()) -> list[Any] | None:
    """Encode the values of a call for the journal: positional values, then names and values alternating.

    Numbers, booleans and null are stored unchanged, a text as a list with its length, other values as their type.
    Return None until the template is prepared.
    """
    if form.named is None:
        return None
    told: list[Any] = []
    for name, value in zip(form.names, given):  # noqa: B905 - fewer values than names are possible
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
        return [value["$str"]]  # a text that is already reduced to its length
    return value if kind in CLOSED and not is_hidden else kind.__name__


def _is_small(value: Any) -> bool:
    """Return whether a value is small and consists of JSON types only, so that encoding it is cheap.

    Shared members count each time, so that cyclic lists end too.
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
