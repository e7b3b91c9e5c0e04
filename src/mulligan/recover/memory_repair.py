"""Application of fixes from memory to the current call.

A fix carries no text of the run in which it was learned. It changes the form of this call's own values or sets a
shareable value: a number, a boolean, a member of the schema's enum. A non-empty argument is never dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mulligan.core.calls import classify_change, is_same_json, wilson_lower_bound
from mulligan.core.privileged_arguments import is_privileged
from mulligan.core.records import HIDDEN_VALUE, LAST_PATH_SEGMENT, REQUOTED, RUN_SPECIFIC, Change, Fix
from mulligan.core.transformations import apply_form
from mulligan.recover.history import missing_value_candidates
from mulligan.recover.policy import Arguments, EarlierCall
from mulligan.recover.schema import CompiledSchema
from mulligan.recover.schema_repair import Draft
from mulligan.recover.value_coercion import coerce_value, is_empty, is_number, parse_json_text

MAX_HIDDEN_CONFIDENCE = 0.45
"""Maximum confidence of a fix that must not be shown to a model. People can see it."""


@dataclass(slots=True, kw_only=True)
class AppliedFix(Draft):
    """A fix applied to the current call."""

    fix: Fix
    prerequisites: tuple[tuple[str, dict[str, Any]], ...] = ()
    missing_arguments: tuple[str, ...] = ()
    """Arguments of prerequisites for which this run has no value."""
    has_new_value: bool = False
    """Whether it sets a new value, beyond changing the form of the call's own."""
    has_unlisted_text: bool = False
    """Whether it sets a text that is not in the schema's enum."""

    def __post_init__(self) -> None:
        strategy = "exemplar" if self.fix.type == "exemplar" else "fix"
        self.strategies = ("prerequisite" if self.prerequisites else strategy,)
        self.source = "memory"
        self.evidence = self._list_evidence()

    @property
    def id(self) -> str | None:
        """Return the id of the fix record, if it has one."""
        return self.fix.id if self.fix.type != "exemplar" else None

    @property
    def confidence(self) -> float:
        """Probability of success: the lower bound from its record, reduced if the failure is only similar."""
        if self.fix.type == "exemplar":
            # Confidence of an untried fix that was derived from exemplars
            return 0.5
        confidence = wilson_lower_bound(self.fix.successes, self.fix.trials)
        if self.fix.state == "approved":
            # Minimum confidence of a fix that an operator has approved
            confidence = max(confidence, 0.9)
        elif not self.fix.showable and (self.has_new_value or self.fix.state != "promoted"):
            confidence = min(confidence, MAX_HIDDEN_CONFIDENCE)
        if self.missing_arguments:
            confidence *= 0.5
        return round(confidence * self.fix.similarity, 4)

    def _list_evidence(self) -> tuple[str, ...]:
        fix = self.fix
        if fix.type == "exemplar":
            return (f"modeled on the {fix.exemplars} latest successful calls, no trials yet",)
        confirmed_by = f", confirmed by {fix.principals} principals" if fix.principals > 1 else ""
        logs = f", {fix.imported} from imported logs" if fix.imported else ""
        similarity_note = "" if fix.similarity >= 1 else f", failure similarity {fix.similarity:.0%}"
        lines = [f"{fix.id} succeeded in {fix.successes} of {fix.trials} trials{confirmed_by}{logs}{similarity_note}"]
        lines += [f"this run contains no value for {name}" for name in self.missing_arguments]
        return tuple(lines)


def apply_fixes(
    fixes: Sequence[Fix], arguments: Arguments, schema: CompiledSchema | None, earlier_calls: Sequence[EarlierCall]
) -> Iterator[AppliedFix]:
    """Yield each fix that can be applied here, in the given order."""
    for fix in fixes:
        if fix.type == "prerequisite" and fix.changes:
            continue  # the value comes from a result that only the caller can read
        if fix.type == "prerequisite" and fix.prerequisites:
            yield _apply_prerequisites(fix, arguments, earlier_calls)
        elif fix.type in ("change", "exemplar") and fix.changes:
            applied_fix = _apply_changes(fix, arguments, schema)
            if applied_fix is not None and (schema is None or schema.accepts(applied_fix.arguments)):
                yield applied_fix


def _apply_prerequisites(fix: Fix, arguments: Arguments, earlier_calls: Sequence[EarlierCall]) -> AppliedFix:
    """Build the prerequisite calls from constant arguments and values of this run."""
    prerequisites: list[tuple[str, dict[str, Any]]] = []
    missing_arguments: list[str] = []
    for prerequisite in fix.prerequisites:
        prerequisite_arguments = {
            name: value for name, value in prerequisite.arguments.items() if _is_shareable(name, value)
        }
        names = (*prerequisite.arguments, *prerequisite.variable_arguments)
        unset_names = [name for name in names if name not in prerequisite_arguments]
        for name in unset_names:
            value = _find_run_value(prerequisite.tool, name, arguments, earlier_calls)
            if value is None:
                missing_arguments.append(f"{prerequisite.tool}.{name}")
            else:
                prerequisite_arguments[name] = value
        prerequisites.append((prerequisite.tool, prerequisite_arguments))
    return AppliedFix(
        dict(arguments), fix=fix, prerequisites=tuple(prerequisites), missing_arguments=tuple(missing_arguments)
    )


def _is_shareable(name: str, value: Any) -> bool:
    """Return whether a value from other runs may be used here: no text for identity, keys or destinations."""
    values = value if isinstance(value, list) else [value]
    return not any(isinstance(item, str) for item in values) or not is_privileged(name)


def _find_run_value(tool: str, name: str, arguments: Arguments, earlier_calls: Sequence[EarlierCall]) -> Any:
    """Return this run's value for an argument: from the same tool's calls, this call, or other results."""
    for call in reversed(earlier_calls):
        if call.tool == tool and isinstance(call.arguments, Mapping) and name in call.arguments:
            return call.arguments[name]
    if name in arguments:
        return arguments[name]
    options = missing_value_candidates([name], earlier_calls)[name] if earlier_calls else []
    return options[0][0] if options else None


def _apply_changes(fix: Fix, arguments: Arguments, schema: CompiledSchema | None) -> AppliedFix | None:
    new_arguments: dict[str, Any] = dict(arguments)
    changes: list[Change] = []
    has_new_value = has_unlisted_text = False
    for change in fix.changes:
        name = change.path
        is_present = name in new_arguments
        before = new_arguments.get(name)
        if "." in name and not is_present:
            return None  # nested arguments are repaired by the schema only
        if change.operation == "rename":
            after: Any = change.after
            declared_names = (schema.schema or {}).get("properties", [after]) if schema is not None else [after]
            if not is_present or not isinstance(after, str) or after in new_arguments or after not in declared_names:
                return None
            new_arguments[after] = new_arguments.pop(name)
            before = name
        elif change.operation == "drop":
            if not is_present or not is_empty(before):
                return None  # a non-empty argument is never dropped
            after = None
            del new_arguments[name]
        else:
            new_value = _convert_value(change, before, is_present, schema, can_show_to_model=fix.showable)
            if new_value is None or is_same_json(before, new_value[0]):
                return None
            after = new_arguments[name] = new_value[0]
            is_value = change.operation in ("substitute", "clamp", "default", "enum")
            if is_value and (change.form or not _is_recased(before, after)):  # another case may be another meaning
                has_new_value = True
                has_unlisted_text |= isinstance(after, str) and after not in _enum_members(schema, name)
        changes.append(Change(path=name, operation=change.operation, before=before, after=after, source="memory"))
    if not changes:
        return None
    return AppliedFix(
        new_arguments, tuple(changes), fix=fix, has_new_value=has_new_value, has_unlisted_text=has_unlisted_text
    )


def _is_recased(before: Any, after: Any) -> bool:
    return isinstance(before, str) and isinstance(after, str) and before.casefold() == after.casefold()


def _convert_value(
    change: Change, before: Any, is_present: bool, schema: CompiledSchema | None, *, can_show_to_model: bool
) -> tuple[Any] | None:
    """Return the converted or shareable value as a tuple, or None if the fix does not apply to this call.

    `can_show_to_model` means that the text is a setting that a model may see.
    """
    after = change.after
    match change.operation:
        case "cast":
            coerced_values = (candidate.after for candidate in coerce_value(before, after, "", can_guess=True))
            return next(((value,) for value in coerced_values if classify_change(before, value) == "cast"), None)
        case "parse":
            parsed = parse_json_text(before) if isinstance(before, str) else None
            return (parsed,) if isinstance(parsed, dict | list) else None
        case "wrap":
            return ([before],) if is_present and not isinstance(before, list) else None
        case "trim" if isinstance(before, str):
            return (before.rstrip("/").rpartition("/")[2] if after == LAST_PATH_SEGMENT else before.strip(),)
    # An argument that the schema does not declare is never added.
    is_declared = schema is not None and change.path in schema.properties
    if after in (RUN_SPECIFIC, HIDDEN_VALUE, REQUOTED) or not (is_present or is_declared):
        return None
    if change.form:
        transformed = apply_form(change, before)
        return (transformed,) if transformed is not None else None
    if isinstance(after, bool):
        is_allowed = not is_present or isinstance(before, bool | str)
    elif isinstance(after, str):
        is_allowed = can_show_to_model or _is_recased(before, after) or after in _enum_members(schema, change.path)
    else:
        is_allowed = is_number(after) and (not is_present or is_number(before))
    return (after,) if is_allowed else None


def _enum_members(schema: CompiledSchema | None, name: str) -> Sequence[Any]:
    node = schema.properties.get(name) if schema is not None else None
    members = node.get("enum", ()) if isinstance(node, Mapping) else ()
    return members if isinstance(members, list | tuple) else ()
