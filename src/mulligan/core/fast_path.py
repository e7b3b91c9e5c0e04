"""The fast path for successful first attempts: few facts, from which another thread builds the record.

Most calls take this path. The caller stores arguments and result and copies only mutable values.
"""

# Kept because publishing every call as a redacted event misses the limits of p50 0.25 and CPU 0.30 of an OpenTelemetry
# span. `benchmarks/overhead.py`: p50 1.36 and CPU 0.68 without this path, p50 0.24 and CPU 0.21 with it.

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.core.events import AnyEvent, RunEnded, StepEnded
from mulligan.core.records import Run, Step, StepType, SuspectedFailure
from mulligan.core.value_snapshots import MAX_INLINE_CHARS, restore_value

if TYPE_CHECKING:
    from mulligan.core.record_redaction import RecordRedactor

SHAREABLE_TYPES = frozenset({int, float, bool, type(None)})
"""Types whose values cannot be secrets, except under a name that indicates one."""
_pack = msgspec.msgpack.Encoder().encode


class CallTemplate(msgspec.Struct, eq=False):
    """What all calls of a function share, and what may be journaled. `prepare` fills in the latter."""

    type: StepType
    name: str
    positional_names: Sequence[str] = ()
    """The names of the positional arguments, in order."""
    recordable_names: frozenset[str] = frozenset()
    """Names of arguments that may be journaled. `prepare` removes the sensitive ones."""
    server: str | None = None
    key: str | None = None
    """Identity of the tool if its name is not unique."""
    tool_key: str = ""
    is_reduced: bool = False
    """Whether calls are recorded in reduced form. Then no value is journaled unchanged."""
    safe_positional_count: int = -1
    """How many positional values may be journaled unchanged; -1 until the template is prepared."""
    journal_prefixes: tuple[msgspec.Raw, ...] | None = None
    """The encoded journal prefix, by the number of positional values."""
    lookup_name: Callable[[str], tuple[str, bool, bool]] | None = None
    """Returns the redacted name, and whether numbers and texts under it are redacted."""
    suspect: Callable[[Any, Mapping[str, Any]], SuspectedFailure | None] | None = None
    """Returns what looks like a failure in a result, given the arguments. Never raises."""

    def __post_init__(self) -> None:
        self.tool_key = self.key or (f"{self.server}/{self.name}" if self.server else self.name)
        self.positional_names = tuple(self.positional_names)

    def prepare(self, redactor: RecordRedactor) -> None:
        """Add the journal prefixes and the names without redaction. Done once."""
        self.lookup_name = redactor.lookup_name
        (step,) = redactor.redact_steps([Step(run="", seq=0, call=0, name=self.name, server=self.server)])
        server = () if step.server is None else (step.server,)
        stored_names = [redactor.lookup_name(name)[0] for name in self.positional_names]
        self.recordable_names = frozenset(filter(self.is_recordable, self.recordable_names))
        self.journal_prefixes = tuple(
            msgspec.Raw(_pack((self.type, step.name, stored_names[:count], *server)))
            for count in range(len(stored_names) + 1)
        )
        # Set this last: callers on other threads use the template from here on.
        if not self.is_reduced:
            hides = (index for index, name in enumerate(self.positional_names) if not self.is_recordable(name))
            self.safe_positional_count = next(hides, len(self.positional_names))

    def is_recordable(self, name: str) -> bool:
        """Return whether neither an argument name nor a number under it needs redaction. Requires `prepare`."""
        return self.lookup_name is not None and self.lookup_name(name)[:2] == (name, False)


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
    keywords: Mapping[str, Any]
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
    def arguments(self) -> Mapping[str, Any]:
        keywords = (
            self.keywords
            if self.is_immutable
            else {name: restore_value(value) for name, value in self.keywords.items()}
        )
        positional, names = self.positional, self.template.positional_names
        if len(positional) == 1:  # the common case, several times faster
            return {names[0]: positional[0], **keywords}
        return {**dict(zip(names, positional)), **keywords} if positional else keywords  # noqa: B905

    def to_step(self) -> Step:
        """Build the step, unredacted. Positional arguments are faster than keywords here."""
        template = self.template
        return Step(
            self.run, self.seq, self.seq, 1, self.parent, template.type, template.name, template.server,
            self.arguments, "success", restore_value(self.result), int(self.started_at * 1000),
            self.duration_seconds, None, None, None, self.tokens, self.metadata, key=template.key,
        )  # fmt: skip

    def to_judged_step(self) -> Step:
        """Build the step, unredacted, with what looks like a failure in its result."""
        step, template = self.to_step(), self.template
        if template.suspect is None or template.is_reduced:  # a reduced result was judged before
            return step
        suspected = template.suspect(step.result, step.arguments)
        return step if suspected is None else msgspec.structs.replace(step, suspected=suspected)

    def to_events(self) -> Iterator[AnyEvent]:
        """Build the unredacted events: of the step, and of the end of its run if that has only this call."""
        yield StepEnded(self.to_judged_step())
        if self.standalone_run is not None:
            yield RunEnded(self.to_run(self.standalone_run.run))

    def without_large_result(self) -> SuccessRecord:
        """Return the record, without its result if that takes too much memory to remember it."""
        size = 0
        if type(result := self.result) is str:
            size = len(result)
        elif type(result) is msgspec.Raw:
            size = memoryview(result).nbytes
        return self if size <= MAX_INLINE_CHARS else msgspec.structs.replace(self, result=None)

    def to_run(self, shared_run: Run) -> Run:
        """Build the run of a standalone call."""
        started_at = int(self.started_at * 1000)
        ended_at = started_at + int(self.duration_seconds * 1000)
        return msgspec.structs.replace(
            shared_run, id=self.run, started_at=started_at, ended_at=ended_at, end_reason="finished"
        )


def redact_records(records: Sequence[AnyEvent | SuccessRecord], redactor: RecordRedactor) -> list[AnyEvent]:
    """Return redacted events in order: of successes as steps, and the others, which were redacted before."""
    successes = [record.to_judged_step() for record in records if isinstance(record, SuccessRecord)]
    steps = iter(redactor.redact_steps(successes))
    shared_runs: dict[int, Run] = {}
    events: list[AnyEvent] = []
    for record in records:
        if not isinstance(record, SuccessRecord):
            events.append(record)
            continue
        events.append(StepEnded(next(steps)))
        if (standalone_run := record.standalone_run) is not None:
            if id(standalone_run) not in shared_runs:
                shared_runs[id(standalone_run)] = redactor.redact_run(standalone_run.run)
            events.append(RunEnded(record.to_run(shared_runs[id(standalone_run)])))
    return events


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


def simple_journal_values(
    positional: Sequence[Any], kwargs: Mapping[str, Any], recordable_names: Collection[str]
) -> list[Any] | None:
    """Encode values like `journal_values`, but only immutable ones under recordable names; None for all others."""
    values: list[Any] = []
    for value in positional:
        if type(value) is str:
            values.append([len(value)])
        elif type(value) in SHAREABLE_TYPES:
            values.append(value)
        else:
            return None
    for name, value in kwargs.items():
        if name not in recordable_names:
            return None
        if type(value) is str:
            values += name, [len(value)]
        elif type(value) in SHAREABLE_TYPES:
            values += name, value
        else:
            return None
    return values


def _journal_value(value: Any, is_hidden: bool) -> Any:
    kind = type(value)
    if kind is str:
        return [len(value)]
    if kind is dict and len(value) == 1 and type(value.get("$str")) is int:
        return [value["$str"]]  # a text that is already reduced to its length
    return value if kind in SHAREABLE_TYPES and not is_hidden else kind.__name__
