"""Answers of the reflector, the user's own model: parsed strictly, and where each of their values comes from.

An answer is untrusted: the model has read error text. Its values obey SAFETY S1 and S2 like those of any repair. A
value that the failed call, its run or the schema does not supply stays a suggestion, whatever the model says.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from mulligan.core.calls import diff_arguments, is_same_json, wilson_lower_bound
from mulligan.core.conversation import answer_text
from mulligan.core.quantity_arguments import measures_quantity
from mulligan.core.records import Change, ValueSource
from mulligan.recover.history import collect_identifiers, is_same_field
from mulligan.recover.memory_repair import MAX_HIDDEN_CONFIDENCE
from mulligan.recover.model_output import find_reading
from mulligan.recover.policy import Arguments, EarlierCall, PrerequisiteCall
from mulligan.recover.schema import CompiledSchema, SchemaViolation
from mulligan.recover.schema_repair import Draft, unknown_arguments
from mulligan.recover.value_coercion import is_empty, is_number

MAX_ANSWER_CHARS = 20_000
MAX_REASON_CHARS = 500
CONFIDENCE_BANDS = (0.5, 0.8, 0.95)
"""Stated confidences between two of these share their observed outcomes."""

EvidenceSource = Literal["call", "schema", "run", "reflection", "prerequisite"]
"""Where a reflection takes its values from, as outcomes are counted: the least certain source of its changes."""
Outcomes = Mapping[str, tuple[int, int]]
"""By evidence source: observed successes and trials of reflections with a similar stated confidence."""


class ReflectedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call that should come first, in the reflector's words."""

    tool: str
    arguments: dict[str, Any] = {}


class Reflection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer of a reflector. Without arguments and prerequisites it abstains."""

    confidence: Annotated[float, msgspec.Meta(ge=0, le=1)]
    arguments: dict[str, Any] | None = None
    prerequisites: Annotated[tuple[ReflectedCall, ...], msgspec.Meta(max_length=3)] = ()
    reason: str = ""

    @property
    def abstains(self) -> bool:
        return self.arguments is None and not self.prerequisites


class CalibratedReflection(msgspec.Struct, frozen=True):
    """A reflection with what became of earlier ones for the same tool."""

    answer: Reflection
    outcomes: Outcomes = {}
    tools: Collection[str] = ()
    """Names of tools that exist, beside those that succeeded in this run. A prerequisite must be one of them."""

    def confidence(self, source: EvidenceSource) -> float:
        """Map the stated confidence to the observed success rate, as its lower bound."""
        successes, trials = self.outcomes.get(source, (0, 0))
        # Observed outcomes from which on they replace the confidence that the model states.
        if trials < 5:
            # Maximum confidence without such outcomes: enough to be shown, too little to be applied.
            return min(self.answer.confidence, 0.6)
        return round(wilson_lower_bound(successes, trials), 4)


def confidence_band(confidence: float) -> int:
    """Return the band of stated confidences that are calibrated together."""
    return sum(confidence >= bound for bound in CONFIDENCE_BANDS)


def read_answer(answer: Any) -> str:
    """Return the text of an answer: of an object with the fields of a `Reflection`, a text or a provider's response.

    Runs code of the answer's class, so it may raise or hang.
    """
    is_reflection = isinstance(answer, dict) and "confidence" in answer
    return json.dumps(answer) if is_reflection else answer_text(answer)


def parse_reflection(text: str) -> Reflection | str:
    """Parse the text of an answer. Return why it is unusable otherwise.

    Text around JSON and slips with one reading are repaired. A wrong type, an unknown field, a missing confidence and
    values that are no JSON are not.
    """
    if not text.strip():
        return "the answer is empty"
    if len(text) > MAX_ANSWER_CHARS:
        return f"the answer has more than {MAX_ANSWER_CHARS:,} characters"
    reading = find_reading(text, is_object=True)
    if reading is None:
        return "the answer is not a JSON object"
    try:
        reflection = msgspec.convert(reading.value, Reflection)
        # Infinite numbers and lone surrogates pass a decoder, but no encoder.
        json.dumps(reading.value, allow_nan=False, ensure_ascii=False).encode()
    except (msgspec.ValidationError, ValueError) as error:
        return f"the answer does not have the required form: {error}"
    return msgspec.structs.replace(reflection, reason=reflection.reason[:MAX_REASON_CHARS])


@dataclass(slots=True, kw_only=True)
class ReflectedDraft(Draft):
    """A reflection applied to the current call."""

    confidence: float
    objection: str = ""
    """Why its values are only suggested."""
    prerequisites: tuple[PrerequisiteCall, ...] = ()
    evidence_source: EvidenceSource = "reflection"

    def __post_init__(self) -> None:
        self.strategies, self.source = ("reflection",), "reflection"


def draft_reflection(
    reflection: CalibratedReflection,
    arguments: Arguments,
    schema: CompiledSchema | None,
    earlier_calls: Sequence[EarlierCall],
    error: str,
    items: Collection[str] = (),
) -> Iterator[ReflectedDraft]:
    """Yield the reflection as a repair of this call, unless the schema rejects it or it changes nothing.

    `items` are the arguments that name items: a value of this run may belong to another item.
    """
    answer = reflection.answer
    if answer.prerequisites:
        existing_tools = {*reflection.tools, *(call.tool for call in earlier_calls if call.has_succeeded)}
        if all(call.tool in existing_tools for call in answer.prerequisites):
            yield ReflectedDraft(
                dict(arguments),
                evidence=("suggested by reflection",),
                confidence=reflection.confidence("prerequisite"),
                objection="a prerequisite that only a reflection suggests is not called automatically",
                prerequisites=tuple(PrerequisiteCall(call.tool, call.arguments) for call in answer.prerequisites),
                evidence_source="prerequisite",
            )
        return
    new_arguments = answer.arguments
    if new_arguments is None or is_same_json(dict(arguments), new_arguments):
        return
    violations = schema.find_violations(arguments) if schema is not None else None
    if schema is not None:
        added_names = [name for name in new_arguments if name not in arguments]
        is_unknown_added = schema.properties and any(name not in schema.properties for name in added_names)
        if is_unknown_added or schema.find_violations(new_arguments) or unknown_arguments(new_arguments, schema):
            return
    judge = _ValueJudge(arguments, schema, earlier_calls, error, items, violations or ())
    changes = [judge.find_source(change) for change in diff_arguments(dict(arguments), new_arguments)]
    weakest = max((source for _, source in changes), key=_CERTAINTY.index)
    confidence = reflection.confidence(weakest)
    if any(change.source == "error" and isinstance(change.after, str) for change, _ in changes):
        # The model sees the error itself. Its words must not return in mulligan's voice.
        confidence = min(confidence, MAX_HIDDEN_CONFIDENCE)
    yield ReflectedDraft(
        new_arguments,
        tuple(change for change, _ in changes),
        evidence=("suggested by reflection",),
        is_rejected=bool(violations),
        confidence=confidence,
        objection=_NOT_PERMITTED if weakest == "reflection" else "",
        evidence_source=weakest,
    )


_NOT_PERMITTED = "a change that only a reflection supports is not applied automatically"
_CERTAINTY: tuple[EvidenceSource, ...] = ("call", "schema", "run", "reflection", "prerequisite")
"""Evidence sources, the most certain first."""


@dataclass(slots=True)
class _ValueJudge:
    """Decides where the value of a change comes from, by what SAFETY S1 permits each source."""

    arguments: Arguments
    schema: CompiledSchema | None
    earlier_calls: Sequence[EarlierCall]
    error: str
    items: Collection[str]
    violations: Sequence[SchemaViolation]

    def find_source(self, change: Change) -> tuple[Change, EvidenceSource]:
        """Return the change with its value source, and the source as outcomes are counted."""
        source: EvidenceSource = "reflection"
        value_source: ValueSource = "reflection"
        if self._is_own_value(change):
            source = value_source = "call"
        elif self._is_schema_value(change):
            source = value_source = "schema"
        elif self._is_run_value(change):
            source = value_source = "run"
        elif change.operation in ("rename", "drop"):
            value_source = "call"  # its value is the call's own, but S1 does not permit this change of it
        elif isinstance(change.after, str | int | float) and str(change.after) in self.error:
            value_source = "error"
        return msgspec.structs.replace(change, source=value_source), source

    def _node(self, path: str) -> Mapping[str, Any]:
        return (self.schema.find_node(path) if self.schema is not None else None) or {}

    def _is_own_value(self, change: Change) -> bool:
        """Return whether it changes the form of the call's own value. A rename must be promoted (SAFETY S1)."""
        if change.operation == "drop":
            node = self._node(change.path)
            return is_empty(change.before) or ("default" in node and is_same_json(node["default"], change.before))
        if change.operation == "enum":
            return change.after in (self._node(change.path).get("enum") or ())
        if change.operation == "trim":
            return bool(change.after == change.before.strip())  # added spaces are another value
        return change.operation in ("cast", "parse", "wrap")

    def _is_schema_value(self, change: Change) -> bool:
        """Return whether a missing or rejected value becomes the default, the only enum member or the nearest bound.

        Among several enum members the model would choose, and an error may have told it which.
        """
        if change.operation != "substitute":
            return False
        node, path = self._node(change.path), tuple(change.path.split("."))
        is_missing = change.before is None and any(
            violation.rule == "required" and violation.path == path[:-1] and path[-1] in violation.limit
            for violation in self.violations
            if isinstance(violation.limit, list)
        )
        if not is_missing and all(violation.path != path for violation in self.violations):
            return False  # the schema accepts the call without it, so it is no reason for this value
        if is_number(change.before) and not measures_quantity(change.path, change.before):
            return False  # another object
        if any(is_same_json(value, change.after) for value in (node.get("default", ...), node.get("const", ...))):
            return True
        if is_same_json(node.get("enum"), [change.after]):
            return True
        if not (is_number(change.before) and is_number(change.after)):
            return False
        return is_same_json(node.get("minimum" if change.before < change.after else "maximum"), change.after)

    def _is_run_value(self, change: Change) -> bool:
        """Return whether it is the only identifier that successful calls of this run had in a field of the same name.

        Among several the model would choose, and an error may have told it which.
        """
        if change.operation != "substitute" or not isinstance(change.after, str | int) or change.after is True:
            return False
        if change.path.partition(".")[0] in self.items:
            return False
        text, name = str(change.after), change.path.rpartition(".")[2]
        identifiers = collect_identifiers(self.earlier_calls) if any(map(str.isdigit, text)) else []
        values = {identifier.value for identifier in identifiers if is_same_field(identifier.field, name)}
        return values - {str(change.before)} == {text}
