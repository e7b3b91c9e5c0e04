"""Application of fixes from memory to the current call.

A fix carries no text of the run in which it was learned. It changes the form of this call's own values or sets a
shareable value: a number, a boolean, a member of the schema's enum. A non-empty argument is never dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mulligan.core.calls import is_same_json, wilson_lower_bound
from mulligan.core.privileged_arguments import is_privileged
from mulligan.core.records import LAST_PATH_SEGMENT, REQUOTED, RUN_SPECIFIC, Change, Fix
from mulligan.recover import history
from mulligan.recover.coercion import is_empty
from mulligan.recover.schema import CompiledSchema
from mulligan.recover.tool import Arguments, EarlierCall

APPROVED_CONFIDENCE = 0.9
"""Minimum confidence of a fix that an operator has approved."""
MAX_HIDDEN_CONFIDENCE = 0.45
"""Maximum confidence of a fix that must not be shown to a model. People can see it."""
EXEMPLAR_CONFIDENCE = 0.5
"""Confidence of an untried fix that was derived from exemplars."""


@dataclass(frozen=True, slots=True)
class AppliedFix:
    """A fix applied to the current call."""

    fix: Fix
    arguments: dict[str, Any]
    changes: tuple[Change, ...] = ()
    prerequisites: tuple[tuple[str, dict[str, Any]], ...] = ()
    missing_arguments: tuple[str, ...] = ()
    """Arguments of prerequisites for which this run has no value."""
    has_new_value: bool = False
    """Whether it sets a new value, beyond changing the form of the call's own."""
    has_unlisted_text: bool = False
    """Whether it sets a text that is not in the schema's enum."""

    @property
    def id(self) -> str | None:
        """Return the id of the fix record, if it has one."""
        return self.fix.id if self.fix.type != "exemplar" else None

    @property
    def confidence(self) -> float:
        """Probability of success: the lower bound from its record, reduced if the failure is only similar."""
        if self.fix.type == "exemplar":
            return EXEMPLAR_CONFIDENCE
        confidence = wilson_lower_bound(self.fix.successes, self.fix.trials)
        if self.fix.state == "approved":
            confidence = max(confidence, APPROVED_CONFIDENCE)
        elif not self.fix.showable and (self.has_new_value or self.fix.state != "promoted"):
            confidence = min(confidence, MAX_HIDDEN_CONFIDENCE)
        if self.missing_arguments:
            confidence *= 0.5
        return round(confidence * self.fix.similarity, 4)

    @property
    def evidence(self) -> tuple[str, ...]:
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
            if applied_fix is not None and (
                schema is None or schema.find_violations(applied_fix.arguments) in ([], None)
            ):
                yield applied_fix


def _apply_prerequisites(fix: Fix, arguments: Arguments, earlier_calls: Sequence[EarlierCall]) -> AppliedFix:
    """Build the prerequisite calls from constant arguments and values of this run."""
    prerequisites: list[tuple[str, dict[str, Any]]] = []
    missing_arguments: list[str] = []
    for prerequisite in fix.prerequisites:
        prerequisite_arguments = {
            name: value for name, value in prerequisite.arguments.items() if _is_shareable(name, value)
        }
        unset_names = [
            name
            for name in (*prerequisite.arguments, *prerequisite.variable_arguments)
            if name not in prerequisite_arguments
        ]
        for name in unset_names:
            value = _find_run_value(prerequisite.tool, name, arguments, earlier_calls)
            if value is None:
                missing_arguments.append(f"{prerequisite.tool}.{name}")
            else:
                prerequisite_arguments[name] = value
        prerequisites.append((prerequisite.tool, prerequisite_arguments))
    return AppliedFix(fix, dict(arguments), (), tuple(prerequisites), tuple(missing_arguments))


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
    options = history.missing_value_candidates([name], earlier_calls)[name] if earlier_calls else []
    return options[0][0] if options else None


# Argument changes


def _apply_changes(fix: Fix, arguments: Arguments, schema: CompiledSchema | None) -> AppliedFix | None:
    new_arguments: dict[str, Any] = dict(arguments)
    changes: list[Change] = []
    has_new_value = has_unlisted_text = False
    for change in fix.changes:
        name = change.path
        if "." in name and name not in new_arguments:
            return None  # nested arguments are repaired by the schema only
        if change.operation == "rename":
            target = change.after
            if (
                name not in new_arguments
                or not isinstance(target, str)
                or target in new_arguments
                or not _allows_name(schema, target)
            ):
                return None
            new_arguments[target] = new_arguments.pop(name)
            changes.append(Change(path=name, operation="rename", before=name, after=target, source="memory"))
            continue
        if change.operation == "drop":
            if name not in new_arguments or not is_empty(new_arguments[name]):
                return None  # a non-empty argument is never dropped
            changes.append(Change(path=name, operation="drop", before=new_arguments.pop(name), source="memory"))
            continue
        before = new_arguments.get(name)
        new_value = _convert_value(change, before, name in new_arguments, schema, can_show_to_model=fix.showable)
        if new_value is None:
            return None
        (after,) = new_value
        if is_same_json(before, after):
            return None
        sets_value = change.operation in ("substitute", "clamp", "default", "enum") and not _is_recased(before, after)
        is_enum_member = after in _enum_members(schema, name) if isinstance(after, str) else True
        has_new_value = has_new_value or sets_value
        has_unlisted_text = has_unlisted_text or (sets_value and not is_enum_member)
        new_arguments[name] = after
        changes.append(Change(path=name, operation=change.operation, before=before, after=after, source="memory"))
    if not changes:
        return None
    return AppliedFix(
        fix, new_arguments, tuple(changes), has_new_value=has_new_value, has_unlisted_text=has_unlisted_text
    )


def _is_recased(before: Any, after: Any) -> bool:
    return isinstance(before, str) and isinstance(after, str) and before.casefold() == after.casefold()


def _allows_name(schema: CompiledSchema | None, name: str) -> bool:
    return schema is None or schema.schema is None or name in schema.schema.get("properties", {name: None})


def _convert_value(
    change: Change, before: Any, is_present: bool, schema: CompiledSchema | None, *, can_show_to_model: bool
) -> tuple[Any] | None:
    """Return the converted or shareable value as a tuple, or None if the fix does not apply to this call.

    `can_show_to_model` means that the text is a setting that a model may see.
    """
    after = change.after
    match change.operation:
        case "cast":
            return _cast_value(before, after)
        case "parse":
            return _parse_json(before)
        case "wrap":
            return ([before],) if is_present and not isinstance(before, list) else None
        case "trim" if isinstance(before, str):
            return (before.rstrip("/").rpartition("/")[2] if after == LAST_PATH_SEGMENT else before.strip(),)
    if after in (RUN_SPECIFIC, REQUOTED) or (not is_present and not _declares_name(schema, change.path)):
        return None
    if isinstance(after, bool):
        return (after,) if not is_present or isinstance(before, bool | str) else None
    if isinstance(after, int | float):
        is_number = isinstance(before, int | float) and not isinstance(before, bool)
        return (after,) if not is_present or is_number else None
    if isinstance(after, str):
        is_own = isinstance(before, str) and before.casefold() == after.casefold()
        return (after,) if is_own or can_show_to_model or after in _enum_members(schema, change.path) else None
    return None


def _declares_name(schema: CompiledSchema | None, name: str) -> bool:
    """Return whether the schema declares an argument. Undeclared ones are never added."""
    return schema is not None and schema.schema is not None and name in schema.schema.get("properties", {})


def _enum_members(schema: CompiledSchema | None, name: str) -> Sequence[Any]:
    properties = (schema.schema or {}).get("properties", {}) if schema is not None else {}
    described = properties.get(name) if isinstance(properties, Mapping) else None
    members = described.get("enum", ()) if isinstance(described, Mapping) else ()
    return members if isinstance(members, list | tuple) else ()


def _cast_value(value: Any, to: Any) -> tuple[Any] | None:
    try:
        match to:
            case "integer" if isinstance(value, str | float) and float(value).is_integer():
                return (int(float(value)),)
            case "number" if isinstance(value, str | int) and not isinstance(value, bool):
                return (float(value),)
            case "string" if isinstance(value, int | float) and not isinstance(value, bool):
                return (str(value),)
            case "boolean" if isinstance(value, str) and value.strip().casefold() in ("true", "false"):
                return (value.strip().casefold() == "true",)
    except (ValueError, OverflowError):
        return None
    return None


def _parse_json(value: Any) -> tuple[Any] | None:
    if not isinstance(value, str):
        return None
    try:
        parsed = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return (parsed,) if isinstance(parsed, dict | list) else None
