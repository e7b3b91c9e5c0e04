"""Application of fixes from memory to the current call.

A fix carries no text of the run in which it was learned. It changes the form of this call's own values or sets a
shareable value: a number, a boolean, a member of the schema's enum. A non-empty argument is never dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mulligan.calls import is_same_json, wilson
from mulligan.privileged_arguments import is_privileged
from mulligan.records import LAST_PART, OPEN, REQUOTED, Change, Fix
from mulligan.recover import earlier
from mulligan.recover.schema import Pinned
from mulligan.recover.tool import Arguments, Seen
from mulligan.recover.values import is_empty

APPROVED = 0.9
"""Minimum confidence of a fix that an operator has approved."""
UNTOLD = 0.45
"""Maximum confidence of a fix that must not be shown to a model. People can see it."""
DRAWN = 0.5
"""Confidence of an untried fix that was derived from exemplars."""


@dataclass(frozen=True, slots=True)
class Known:
    """A fix applied to the current call."""

    fix: Fix
    arguments: dict[str, Any]
    changes: tuple[Change, ...] = ()
    first: tuple[tuple[str, dict[str, Any]], ...] = ()
    missing: tuple[str, ...] = ()
    """Arguments of prerequisites for which this run has no value."""
    is_value: bool = False
    """Whether it sets a new value, beyond changing the form of the call's own."""
    is_foreign_text: bool = False
    """Whether it sets a text that is not in the schema's enum."""

    @property
    def id(self) -> str | None:
        """Return the id of the fix record, if it has one."""
        return self.fix.id if self.fix.sort != "exemplar" else None

    @property
    def sureness(self) -> float:
        """Probability of success: the lower bound from its record, reduced if the failure is only similar."""
        if self.fix.sort == "exemplar":
            return DRAWN
        sure = wilson(self.fix.worked, self.fix.tried)
        if self.fix.state == "approved":
            sure = max(sure, APPROVED)
        elif not self.fix.tellable and (self.is_value or self.fix.state != "promoted"):
            sure = min(sure, UNTOLD)
        if self.missing:
            sure *= 0.5
        return round(sure * self.fix.likeness, 4)

    @property
    def evidence(self) -> tuple[str, ...]:
        fix = self.fix
        if fix.sort == "exemplar":
            return (f"it looks like the {fix.exemplars} latest calls that worked; it was never tried",)
        who = f", seen by {fix.principals}" if fix.principals > 1 else ""
        logs = f", {fix.imported} of them in imported logs" if fix.imported else ""
        alike = "" if fix.likeness >= 1 else f", for a failure {fix.likeness:.0%} alike"
        told = [f"{fix.id} worked {fix.worked} of {fix.tried} times{who}{logs}{alike}"]
        told += [f"{name} is not known in this run" for name in self.missing]
        return tuple(told)


def applied(fixes: Sequence[Fix], arguments: Arguments, schema: Pinned | None, seen: Sequence[Seen]) -> Iterator[Known]:
    """Yield each fix that can be applied here, in the given order."""
    for fix in fixes:
        if fix.sort == "recipe" and fix.changes:
            continue  # the value comes from a result that only the caller can read
        if fix.sort == "recipe" and fix.first:
            yield _recipe(fix, arguments, seen)
        elif fix.sort in ("change", "exemplar") and fix.changes:
            known = _changed(fix, arguments, schema)
            if known is not None and (schema is None or schema.faults(known.arguments) in ([], None)):
                yield known


def _recipe(fix: Fix, arguments: Arguments, seen: Sequence[Seen]) -> Known:
    """Build the prerequisite calls from constant arguments and values of this run."""
    first: list[tuple[str, dict[str, Any]]] = []
    missing: list[str] = []
    for ahead in fix.first:
        given = {name: value for name, value in ahead.arguments.items() if _is_anybodys(name, value)}
        asked = [name for name in (*ahead.arguments, *ahead.open) if name not in given]
        for name in asked:
            value = _of_this_run(ahead.tool, name, arguments, seen)
            if value is None:
                missing.append(f"{ahead.tool}.{name}")
            else:
                given[name] = value
        first.append((ahead.tool, given))
    return Known(fix, dict(arguments), (), tuple(first), tuple(missing))


def _is_anybodys(name: str, value: Any) -> bool:
    """Return whether a value from other runs may be used here: no text for identity, keys or destinations."""
    values = value if isinstance(value, list) else [value]
    return not any(isinstance(each, str) for each in values) or not is_privileged(name)


def _of_this_run(tool: str, name: str, arguments: Arguments, seen: Sequence[Seen]) -> Any:
    """Return this run's value for an argument: from the same tool's calls, this call, or other results."""
    for call in reversed(seen):
        if call.tool == tool and isinstance(call.arguments, Mapping) and name in call.arguments:
            return call.arguments[name]
    if name in arguments:
        return arguments[name]
    options = earlier.fillings([name], seen)[name] if seen else []
    return options[0][0] if options else None


# Argument changes


def _changed(fix: Fix, arguments: Arguments, schema: Pinned | None) -> Known | None:
    made: dict[str, Any] = dict(arguments)
    changes: list[Change] = []
    is_value = is_foreign_text = False
    for change in fix.changes:
        name = change.path
        if "." in name and name not in made:
            return None  # nested arguments are repaired by the schema only
        if change.how == "rename":
            target = change.after
            if name not in made or not isinstance(target, str) or target in made or not _knows(schema, target):
                return None
            made[target] = made.pop(name)
            changes.append(Change(path=name, how="rename", before=name, after=target, from_="memory"))
            continue
        if change.how == "drop":
            if name not in made or not is_empty(made[name]):
                return None  # a non-empty argument is never dropped
            changes.append(Change(path=name, how="drop", before=made.pop(name), from_="memory"))
            continue
        before = made.get(name)
        found = _value(change, before, name in made, schema, is_told=fix.tellable)
        if found is None:
            return None
        (after,) = found
        if is_same_json(before, after):
            return None
        sets_value = change.how in ("substitute", "clamp", "default", "enum") and not _is_recased(before, after)
        is_listed = after in _members(schema, name) if isinstance(after, str) else True
        is_value = is_value or sets_value
        is_foreign_text = is_foreign_text or (sets_value and not is_listed)
        made[name] = after
        changes.append(Change(path=name, how=change.how, before=before, after=after, from_="memory"))
    if not changes:
        return None
    return Known(fix, made, tuple(changes), is_value=is_value, is_foreign_text=is_foreign_text)


def _is_recased(before: Any, after: Any) -> bool:
    return isinstance(before, str) and isinstance(after, str) and before.casefold() == after.casefold()


def _knows(schema: Pinned | None, name: str) -> bool:
    return schema is None or schema.schema is None or name in schema.schema.get("properties", {name: None})


def _value(change: Change, before: Any, is_given: bool, schema: Pinned | None, *, is_told: bool) -> tuple[Any] | None:
    """Return the converted or shareable value as a tuple, or None if the fix does not apply to this call.

    `can_show_to_model` means that the text is a setting that a model may see.
    """
    after = change.after
    match change.how:
        case "cast":
            return _cast(before, after)
        case "parse":
            return _parsed(before)
        case "wrap":
            return ([before],) if is_given and not isinstance(before, list) else None
        case "trim" if isinstance(before, str):
            return (before.rstrip("/").rpartition("/")[2] if after == LAST_PART else before.strip(),)
    if after in (OPEN, REQUOTED) or (not is_given and not _names(schema, change.path)):
        return None
    if isinstance(after, bool):
        return (after,) if not is_given or isinstance(before, bool | str) else None
    if isinstance(after, int | float):
        is_number = isinstance(before, int | float) and not isinstance(before, bool)
        return (after,) if not is_given or is_number else None
    if isinstance(after, str):
        is_own = isinstance(before, str) and before.casefold() == after.casefold()
        return (after,) if is_own or is_told or after in _members(schema, change.path) else None
    return None


def _names(schema: Pinned | None, name: str) -> bool:
    """Return whether the schema declares an argument. Undeclared ones are never added."""
    return schema is not None and schema.schema is not None and name in schema.schema.get("properties", {})


def _members(schema: Pinned | None, name: str) -> Sequence[Any]:
    properties = (schema.schema or {}).get("properties", {}) if schema is not None else {}
    described = properties.get(name) if isinstance(properties, Mapping) else None
    members = described.get("enum", ()) if isinstance(described, Mapping) else ()
    return members if isinstance(members, list | tuple) else ()


def _cast(value: Any, to: Any) -> tuple[Any] | None:
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


def _parsed(value: Any) -> tuple[Any] | None:
    if not isinstance(value, str):
        return None
    try:
        found = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return (found,) if isinstance(found, dict | list) else None
