"""The fast path for successful first attempts: few facts, from which another thread builds the record.

Most calls take this path. The caller stores arguments and result and copies only mutable values.
"""

# Kept because publishing every call as a redacted event misses the limits of p50 0.25 and CPU 0.30 of an OpenTelemetry
# span. `benchmarks/overhead.py`: p50 1.36 and CPU 0.68 without this path, p50 0.24 and CPU 0.21 with it.

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.core.records import Run, Step, StepType
from mulligan.redaction import to_plain_data

IMMUTABLE_TYPES = frozenset({str, int, float, bool, type(None)})
"""Types whose values need no copy."""
SHAREABLE_TYPES = frozenset({int, float, bool, type(None)})
"""Types whose values cannot be secrets, except under a name that indicates one."""
MAX_COPIED_ITEMS = 200
"""Collection members, and thousands of characters, up to which a value is copied directly."""
MAX_INLINE_CHARS = 65_536
"""Characters of a text, or bytes of a value, up to which it is retained directly."""
_encode_json = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_TEXT_TYPES = frozenset({str})


class CallTemplate(msgspec.Struct, eq=False):
    """What all calls of a function share, and what may be journaled. The record redactor fills in the latter."""

    type: StepType
    name: str
    positional_names: Sequence[str] = ()
    """The names of the positional arguments, in order."""
    recordable_names: frozenset[str] = frozenset()
    """Names of arguments that may be journaled. The record redactor removes the sensitive ones."""
    server: str | None = None
    key: str | None = None
    """Identity of the tool if its name is not unique."""
    tool_key: str = ""
    is_reduced: bool = False
    """Whether calls are recorded in reduced form. Then no value is journaled unchanged."""
    safe_positional_count: int = -1
    """How many positional values may be journaled unchanged; -1 until the record redactor has prepared it."""
    stored_name: str = ""
    journal_prefixes: tuple[msgspec.Raw, ...] | None = None
    """The encoded journal prefix, by the number of positional values."""
    lookup_name: Callable[[str], tuple[str, bool, bool]] | None = None
    """Returns the redacted name, and whether numbers and texts under it are redacted."""

    def __post_init__(self) -> None:
        self.tool_key = self.key or (f"{self.server}/{self.name}" if self.server else self.name)
        self.positional_names = tuple(self.positional_names)


class StandaloneRun(msgspec.Struct, frozen=True, gc=False):
    """The shared fields of standalone runs, with their journal encoding."""

    run: Run
    encoded: msgspec.Raw

    @classmethod
    def from_run(cls, run: Run) -> StandaloneRun:
        fields = (run.agent, run.environment, run.session, run.parent)
        try:
            encoded = _pack(fields)
        except (TypeError, ValueError):  # an invalid surrogate, for example: journal a replacement
            encoded = _pack(
                [field if field is None else str(field).encode("utf-8", "replace").decode() for field in fields]
            )
        return cls(run, msgspec.Raw(encoded))


class SuccessRecord(msgspec.Struct, eq=False, gc=False):
    """The first attempt of a call, with its values still unredacted. Stored as it is if the attempt succeeds.

    It is created when the call starts. `duration_seconds` and `result` are set when it ends; then it stays unchanged.
    """

    template: CallTemplate
    run: str
    seq: int
    parent: int | None
    started_at: float
    """Seconds since the Unix epoch."""
    positional: Sequence[Any]
    """The positional values."""
    keywords: dict[str, Any]
    """The keyword values."""
    standalone_run: StandaloneRun | None
    """The run of a standalone call: it has only this call, with the id and times of the call."""
    is_immutable: bool = True
    """Whether all arguments have immutable types."""
    duration_seconds: float = 0.0
    result: Any = None
    tokens: dict[str, int] | None = None
    metadata: dict[str, Any] | None = None
    """The model and the service tier that an answer reports."""

    @property
    def arguments(self) -> dict[str, Any]:
        keywords = (
            self.keywords
            if self.is_immutable
            else {name: restore_value(value) for name, value in self.keywords.items()}
        )
        positional, names = self.positional, self.template.positional_names
        if len(positional) == 1:  # the common case, several times faster
            return {names[0]: positional[0], **keywords}
        return {**dict(zip(names, positional)), **keywords} if positional else keywords  # noqa: B905

    def to_step(self, name: str, arguments: Any, result: Any) -> Step:
        """Build the step. Positional arguments are faster than keywords here."""
        template = self.template
        return Step(
            self.run, self.seq, self.seq, 1, self.parent, template.type, name, template.server, arguments, "success",
            result, int(self.started_at * 1000), self.duration_seconds, None, None, None, self.tokens,
            self.metadata, key=template.key,
        )  # fmt: skip

    def to_run(self, shared_run: Run) -> Run:
        """Build the run of a standalone call."""
        started_at = int(self.started_at * 1000)
        ended_at = started_at + int(self.duration_seconds * 1000)
        return msgspec.structs.replace(
            shared_run, id=self.run, started_at=started_at, ended_at=ended_at, end_reason="finished"
        )


def snapshot_value(value: Any, states: list[Any] | None = None) -> Any:
    """Return a cheap snapshot of a value. `restore_value` reverses it.

    What the snapshot leaves out of plain objects is added to `states`.
    """
    kind = type(value)
    if kind in IMMUTABLE_TYPES:
        return value
    if kind is dict and len(value) <= MAX_COPIED_ITEMS:
        members = value.values()
    elif (kind is list or kind is tuple) and len(value) <= MAX_COPIED_ITEMS:
        members = value
    else:
        return to_plain_data(value, states=states)
    for member in members:
        if type(member) not in IMMUTABLE_TYPES or (type(member) is str and len(member) > MAX_INLINE_CHARS):
            break
    else:
        return value.copy() if kind is dict else list(value)
    if not _is_small(value):
        return to_plain_data(value, states=states)
    try:
        return msgspec.Raw(_encode_json(value))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return to_plain_data(value, states=states)  # not valid JSON: replaced by a description


def journal_values(
    template: CallTemplate, keywords: Mapping[str, Any], positional: Sequence[Any] = ()
) -> list[Any] | None:
    """Encode the values of a call for the journal: positional values, then names and values alternating.

    Numbers, booleans and null are stored unchanged, a text as a list with its length, other values as their type.
    Return None until the template is prepared.
    """
    if template.lookup_name is None:
        return None
    values: list[Any] = []
    for name, value in zip(template.positional_names, positional):  # noqa: B905 - fewer values than names are possible
        values.append(_journal_value(value, template.lookup_name(name)[1]))
    for name, value in keywords.items():
        stored_name, hides_numbers, _ = template.lookup_name(name)
        values += stored_name, _journal_value(value, hides_numbers)
    return values


def _journal_value(value: Any, is_hidden: bool) -> Any:
    kind = type(value)
    if kind is str:
        return [len(value)]
    if kind is dict and len(value) == 1 and type(value.get("$str")) is int:
        return [value["$str"]]  # a text that is already reduced to its length
    return value if kind in SHAREABLE_TYPES and not is_hidden else kind.__name__


def _is_small(value: Any) -> bool:
    """Return whether a value is small and consists of JSON types only, so that encoding it is cheap.

    Shared members count each time, so that cyclic lists end too.
    """
    remaining = MAX_COPIED_ITEMS * 10
    pending = [value]
    while pending:
        container = pending.pop()
        remaining -= len(container)
        if remaining < 0 or (type(container) is dict and not _TEXT_TYPES.issuperset(map(type, container))):
            return False
        for member in container.values() if type(container) is dict else container:
            kind = type(member)
            if kind is str:
                if len(member) > MAX_COPIED_ITEMS * 1000:
                    return False
            elif kind is dict or kind is list or kind is tuple:
                pending.append(member)
            elif kind is int:
                if not -(2**63) <= member < 2**63:
                    return False
            elif kind not in IMMUTABLE_TYPES or (kind is float and not math.isfinite(member)):
                return False
    return True


def restore_value(value: Any) -> Any:
    return msgspec.json.decode(value) if type(value) is msgspec.Raw else value
