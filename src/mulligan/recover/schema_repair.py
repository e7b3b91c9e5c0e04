"""Repair of a call by the tool's schema alone: names, nesting and values, in rounds until the call validates.

All violations must be repairable, since a partial repair would fail again. Every value comes from the call or the
schema. An object with one required name missing and one undeclared key of a fitting type gets that key renamed, as a
suggestion; not to a privileged name or an id, unless the two names are similar.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from mulligan.core.calls import TOOL_NAME_PATH
from mulligan.core.conversation import replace_at
from mulligan.core.privileged_arguments import is_privileged, split_words
from mulligan.core.records import Change
from mulligan.recover.names import (
    is_abbreviation,
    match_by_words,
    match_name,
)
from mulligan.recover.schema import CompiledSchema, Path, SchemaViolation, field_name, resolve_reference
from mulligan.recover.spelling import (
    MAX_COMPARED_CHARS,
    strip_quotes,
)
from mulligan.recover.value_coercion import (
    Candidate,
    clamp,
    coerce_value,
    is_empty,
    match_enum,
    parse_json_text,
)

MAX_VALUE_DEPTH = 16
_ID_WORDS = frozenset("id ids uid uuid guid identifier".split())
_BRANCH_STRATEGIES = ("rename", "cast", "enum", "trim", "parse", "wrap")
"""First words of the strategies that may adapt a value to a branch: they keep all its members and add none."""


@dataclass(slots=True)
class Draft:
    """A repaired call before the safety checks."""

    arguments: dict[str, Any]
    changes: tuple[Change, ...] = ()
    strategies: tuple[str, ...] = ()
    source: str = "schema"
    evidence: tuple[str, ...] = ()
    is_rejected: bool = False
    """Whether the failed call did not execute: rejected by our own schema check, or an unknown tool."""
    tool: str = ""
    """The tool to call instead of the one that was called."""

    @property
    def argument_changes(self) -> list[Change]:
        return [change for change in self.changes if change.path != TOOL_NAME_PATH]


def repair_from_schema(
    arguments: Mapping[str, Any],
    compiled: CompiledSchema,
    is_strict: bool = False,
    can_guess: bool = False,
    is_protected: Callable[[str], bool] = is_privileged,
) -> Draft | None:
    """Repair all schema violations of a call. Return None if one cannot be repaired.

    `is_strict` treats arguments that the schema does not define as violations even if it allows them. `can_guess` also
    applies uncertain repairs, for suggestions. `is_protected` returns whether an argument is privileged.
    """
    repairer = _SchemaRepairer(dict(arguments), compiled, is_strict, can_guess, is_protected)
    if not repairer.repair_all():
        return None
    changes, strategies = tuple(repairer.changes.values()), tuple(dict.fromkeys(repairer.strategies))
    evidence = tuple(map(_describe_change, changes))
    return Draft(repairer.values, changes, strategies, evidence=evidence, is_rejected=True)


def _describe_change(change: Change) -> str:
    """Describe a change in a few words, without its values."""
    reasons = {
        "rename": f"named {change.after} in the schema",
        "drop": "not in the schema, or empty",
        "default": "required, has a default",
        "clamp": "outside its bounds",
    }
    return f"{change.path}: {reasons.get(change.operation, f'{change.operation}, as the schema requires')}"


def unknown_arguments(arguments: Mapping[str, Any], compiled: CompiledSchema) -> list[str]:
    """Return the arguments that the schema neither defines nor explicitly allows."""
    if not compiled.schema or not _forbids_unknown_names(compiled.schema):
        return []
    return [name for name in arguments if isinstance(name, str) and name not in compiled.properties]


def _forbids_unknown_names(node: Mapping[str, Any]) -> bool:
    """Return whether a schema lists its names and does not allow others."""
    if not isinstance(node.get("properties"), Mapping) or node.get("patternProperties"):
        return False
    if any(word in node for word in ("allOf", "anyOf", "oneOf", "if", "unevaluatedProperties")):
        return False
    return node.get("additionalProperties", False) is False


def format_path(path: Path) -> str:
    return ".".join(map(str, path))


def value_at(root: Any, path: Path) -> Any:
    for part in path:
        root = root[part]
    return root


class _ObjectNames(NamedTuple):
    """The names of one object, compared with its schema."""

    path: Path
    value: Mapping[str, Any]
    properties: Mapping[str, Any]
    unknown: list[str]
    missing: list[str]
    free: list[str]
    """Names of the schema that the object does not use."""


def _undeclared_names(names: _ObjectNames) -> list[str]:
    return [name for name in names.value if name not in names.properties]


@dataclass(slots=True)
class _SchemaRepairer:
    values: Any
    compiled: CompiledSchema
    is_strict: bool
    can_guess: bool
    is_protected: Callable[[str], bool]
    branch_depth: int = 0
    changes: dict[Path, Change] = field(default_factory=dict)
    """Changes by the current path of the value, one for each path."""
    strategies: list[str] = field(default_factory=list)

    @property
    def root(self) -> Mapping[str, Any]:
        return self.compiled.schema or {}

    def repair_all(self) -> bool:
        # A name may need a repair before its value, and a value a cast before its bound.
        for _ in range(6):
            violations = self.list_violations()
            # Violations handled in one round.
            if violations is None or len(violations) > 200:
                return False
            if not violations:
                return bool(self.changes)
            before = len(self.strategies)
            violations_by_path: dict[Path, list[SchemaViolation]] = {}
            for violation in violations:
                violations_by_path.setdefault(violation.path, []).append(violation)
            # Outer paths first: containers must be repaired before their contents.
            for path in sorted(violations_by_path, key=len):
                if not self.repair_at(path, violations_by_path[path]):
                    return False
            if len(self.strategies) == before:
                return False
        return self.list_violations() == []

    def list_violations(self) -> list[SchemaViolation] | None:
        violations = self.compiled.find_violations(self.values)
        if violations is not None and self.is_strict:
            reported_paths = {violation.path for violation in violations if violation.rule == "additionalProperties"}
            unknown_names = self._find_unknown_names(self.root, self.values, ())
            violations += [violation for violation in unknown_names if violation.path not in reported_paths]
        return violations

    def _find_unknown_names(self, node: Any, value: Any, path: Path) -> Iterator[SchemaViolation]:
        """Yield a violation for each object with names that the schema does not define."""
        node = resolve_reference(node, self.root)
        if len(path) > MAX_VALUE_DEPTH:
            return
        if isinstance(value, Mapping) and isinstance(properties := node.get("properties"), Mapping):
            if _forbids_unknown_names(node) and any(name not in properties for name in value):
                yield SchemaViolation(path, "additionalProperties", False, "unknown names", node)
            for name, inner in value.items():
                if name in properties:
                    yield from self._find_unknown_names(properties[name], inner, (*path, name))
        elif isinstance(value, list) and isinstance(node.get("items"), Mapping):
            for at, inner in enumerate(value[:100]):
                yield from self._find_unknown_names(node["items"], inner, (*path, at))

    # Violations at one path

    def repair_at(self, path: Path, violations: list[SchemaViolation]) -> bool:
        """Repair the violations at one path. Return whether something changed that the next round can validate."""
        try:
            value = value_at(self.values, path)
        except (KeyError, IndexError, TypeError):
            return True  # moved by an earlier repair in this round: the next round checks it
        by_names = [violation for violation in violations if violation.rule in ("required", "additionalProperties")]
        if by_names:
            node = by_names[0].node
            return isinstance(value, Mapping) and isinstance(node, Mapping) and self.repair_names(path, value, node)
        for violation in violations:
            if violation.rule in ("anyOf", "oneOf") and self.repair_in_branch(path, value, violation.limit):
                return True
        # Repair the first repairable violation: a string in place of a number also violates the number's other rules.
        for violation in violations:
            for candidate in self.candidates(violation, path, value):
                self.set_value(path, candidate)
                return True
        return self.drop_if_empty(path, value)

    def candidates(self, violation: SchemaViolation, path: Path, value: Any) -> Iterator[Candidate]:
        rule, limit = violation.rule, violation.limit
        node = violation.node if isinstance(violation.node, Mapping) else {}
        name = field_name(path)
        if rule == "type":
            yield from self._coerce(value, limit, node, name)
        elif rule in ("enum", "const"):
            members = limit if rule == "enum" else [limit]
            if isinstance(members, list):
                yield from match_enum(value, members, self.can_guess)
        elif rule in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            yield from clamp(value, rule, limit, node)
        elif rule == "pattern" and isinstance(value, str) and (bare := strip_quotes(value)) != value:
            yield Candidate(bare, "trim", "trim")
        elif rule in ("anyOf", "oneOf") and isinstance(limit, list):
            yield from self._coerce_to_branch(limit, path, value, name)

    def _coerce(self, value: Any, types: Any, node: Mapping[str, Any], name: str) -> Iterator[Candidate]:
        if isinstance(enum := node.get("enum"), list):  # enum members are more specific than the type
            yield from match_enum(value, enum, self.can_guess)
        for expected_type in types if isinstance(types, list) else [types]:
            if isinstance(expected_type, str) and expected_type != "null":
                yield from coerce_value(value, expected_type, name, self.can_guess)

    def _coerce_to_branch(self, branches: list[Any], path: Path, value: Any, name: str) -> Iterator[Candidate]:
        """Yield a coercion that makes the value fit one of several schemas, if there is exactly one."""
        fitting: list[Candidate] = []
        for branch in branches[:10]:
            node = resolve_reference(branch, self.root)
            candidates = [*self._coerce(value, node.get("type"), node, name)]
            for rule in ("minimum", "maximum"):
                candidates += clamp(value, rule, node.get(rule), node)
            fitting += [candidate for candidate in candidates if self._fits_at(path, candidate.after)]
        if len({repr(candidate.after) for candidate in fitting}) == 1:
            yield fitting[0]
        elif fitting and self.can_guess:
            yield fitting[0]._replace(strategy="cast loose")

    def repair_in_branch(self, path: Path, value: Any, branches: Any) -> bool:
        """Repair an object or a list by the one branch of `anyOf` or `oneOf` that it fits under other names.

        If several branches fit, similar names decide, and otherwise nothing is repaired.
        """
        expected_type = "object" if isinstance(value, Mapping) else "array" if isinstance(value, list) else None
        # Nesting of `anyOf` and `oneOf` within each other up to which branches are tried.
        if expected_type is None or self.branch_depth >= 3 or not isinstance(branches, list):
            return False
        definitions = {key: self.root[key] for key in ("$schema", "$defs", "definitions") if key in self.root}
        repairs: list[_SchemaRepairer] = []
        # Branches of one `anyOf` or `oneOf` that are tried.
        for branch in branches[:10]:
            node = resolve_reference(branch, self.root)
            if node.get("type", expected_type) != expected_type:
                continue
            compiled = CompiledSchema({**definitions, **node})
            repairer = _SchemaRepairer(
                value, compiled, self.is_strict, self.can_guess, self.is_protected, self.branch_depth + 1
            )
            if repairer.repair_all() and repairer.keeps_members and self._fits_at(path, repairer.values):
                repairs.append(repairer)
        repairs = [repairer for repairer in repairs if "rename only" not in repairer.strategies] or repairs
        if not repairs or any(repairer.values != repairs[0].values for repairer in repairs):
            return False
        self.values = replace_at(self.values, path, repairs[0].values)
        for inner_path, change in repairs[0].changes.items():
            full_path = format_path((*path, change.path))
            self.changes[(*path, *inner_path)] = msgspec.structs.replace(change, path=full_path)
        self.strategies += repairs[0].strategies
        return True

    @property
    def keeps_members(self) -> bool:
        """Whether all changes so far only renamed or converted members."""
        return all(strategy.split()[0] in _BRANCH_STRATEGIES for strategy in self.strategies)

    def _fits_at(self, path: Path, value: Any) -> bool:
        violations = self.compiled.find_violations(replace_at(self.values, path, value))
        return violations is not None and not any(violation.path[: len(path)] == path for violation in violations)

    def drop_if_empty(self, path: Path, value: Any) -> bool:
        """Drop an optional, empty argument that the schema rejects."""
        if not path or not isinstance(path[-1], str) or not is_empty(value):
            return False
        parent = resolve_reference(self.root, self.root)
        for part in path[:-1]:
            inner = parent.get("items") if isinstance(part, int) else (parent.get("properties") or {}).get(part)
            parent = resolve_reference(inner, self.root)
        if not parent or path[-1] in parent.get("required", ()):
            return False
        self.drop(path, "drop empty")
        return True

    # Names

    def repair_names(self, path: Path, value: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
        """Rename unknown arguments to the intended names and fill missing ones with defaults."""
        properties = node.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        undeclared = [name for name in value if name not in properties]
        unknown = undeclared if self.is_strict or _forbids_unknown_names(node) else []
        missing = [name for name in node.get("required", ()) if name not in value]
        # Names in one object that its schema does not define. More indicate a different call.
        if (not unknown and not missing) or len(unknown) > 50:
            return False
        free = [name for name in properties if name not in value]
        names = _ObjectNames(path, value, properties, unknown, missing, free)
        certain_repairs = (self.unnest, self.rename_matches, self.drop_empty, self.nest)
        if any(repair(names) for repair in certain_repairs):
            return True
        if (self.can_guess and self.rename_guesses(names)) or self.fill_defaults(names):
            return True
        for name in unknown if self.can_guess else ():
            self.drop((*path, name), "drop unknown")
        return bool(unknown) and self.can_guess

    def unnest(self, names: _ObjectNames) -> bool:
        """Move arguments out of an unknown wrapper: `{"arguments": {"city": "Rome"}}`."""
        path, value, properties, unknown = names.path, names.value, names.properties, names.unknown
        if len(value) != 1 or len(unknown) != 1:
            return False
        inner = value[unknown[0]]
        if isinstance(inner, str):
            inner = parse_json_text(inner)
        if not isinstance(inner, Mapping) or not inner:
            return False
        if not all(name in properties or match_name(str(name), properties) for name in inner):
            return False
        self.values = replace_at(self.values, path, dict(inner))
        for name in inner:
            inner_path, outer_path = format_path((*path, name)), format_path((*path, unknown[0], name))
            change = Change(path=outer_path, operation="rename", before=outer_path, after=inner_path)
            self.changes[(*path, name)] = change
        self.strategies.append("unnest")
        return True

    def rename_matches(self, names: _ObjectNames) -> bool:
        """Rename an argument to a schema name if exactly one is similar and unused (SAFETY S1)."""
        # If the schema does not forbid unknown names, they are only candidates for missing ones.
        undeclared = names.unknown or (_undeclared_names(names) if names.missing else [])
        matches = {
            name: match
            for name in undeclared
            if (match := match_name(name, names.properties)) is not None and match.name in names.free
        }
        often = Counter(match.name for match in matches.values())
        unique = [(name, match) for name, match in matches.items() if often[match.name] == 1]
        for name, match in unique:
            self.rename((*names.path, name), (*names.path, match.name), f"rename {match.method}")
        return bool(unique)

    def drop_empty(self, names: _ObjectNames) -> bool:
        empty_names = [name for name in names.unknown if is_empty(names.value[name])]
        for name in empty_names:
            is_stray = not str(name).strip(" \t\r\n'\"`_") or not names.properties
            self.drop((*names.path, name), "empty key" if is_stray else "drop empty")
        return bool(empty_names)

    def nest(self, names: _ObjectNames) -> bool:
        """Move arguments into the object that defines them: `{"city": "Rome"}` for `{"place": {"city": "Rome"}}`."""
        homes: dict[str, list[tuple[str, str]]] = {name: [] for name in names.unknown}
        for home, node in names.properties.items():
            inner = resolve_reference(node, self.root).get("properties")
            members = names.value.get(home, {})
            if isinstance(inner, Mapping) and isinstance(members, Mapping):
                for name in names.unknown:
                    member = str(name).removeprefix(f"{home}.")  # some models write the path: `place.city`
                    if member in inner and member not in members:
                        homes[name].append((home, member))
        if not homes or any(len(matches) != 1 for matches in homes.values()):
            return False
        for name, [(home, member)] in homes.items():
            self.rename((*names.path, name), (*names.path, home, member), "nest")
        return True

    def rename_guesses(self, names: _ObjectNames) -> bool:
        """Rename arguments to names with the same words, or the only undeclared key to the only missing name."""
        free = list(names.free)
        undeclared = names.unknown or (_undeclared_names(names) if names.missing else [])
        has_changes = False
        for name in undeclared:
            similar = match_by_words(name, free)
            shared = [candidate for candidate in similar if candidate in names.missing] or similar
            if len(shared) == 1:
                self.rename((*names.path, name), (*names.path, shared[0]), "rename part")
                free.remove(shared[0])
                has_changes = True
        missing = names.missing
        if (
            not has_changes
            and len(undeclared) == len(missing) == 1
            and self._can_rename(names, undeclared[0], missing[0])
        ):
            self.rename((*names.path, undeclared[0]), (*names.path, missing[0]), "rename only")
            has_changes = True
        return has_changes

    def _can_rename(self, names: _ObjectNames, name: str, target: str) -> bool:
        """Return whether the only undeclared key may have been meant as the only missing name.

        Its value must fit as it is. That alone says nothing about who, where or how much: a privileged name or an id
        must also be similar.
        """
        is_delicate = self.is_protected(target) or not _ID_WORDS.isdisjoint(
            word.casefold() for word in split_words(target[:MAX_COMPARED_CHARS])
        )
        if is_delicate and not is_abbreviation(name, target):
            return False
        renamed = {(target if member == name else member): value for member, value in names.value.items()}
        violations = self.compiled.find_violations(replace_at(self.values, names.path, renamed))
        path = (*names.path, target)
        return violations is not None and not any(violation.path[: len(path)] == path for violation in violations)

    def fill_defaults(self, names: _ObjectNames) -> bool:
        if not self.can_guess and any(not is_empty(names.value[name]) for name in _undeclared_names(names)):
            return False  # an undeclared key may hold the value of the missing one
        for name in names.missing:
            node = resolve_reference(names.properties.get(name), self.root)
            enum = node.get("enum")
            if node.get("default") is not None:
                after = node["default"]
            elif "const" in node:
                after = node["const"]
            elif isinstance(enum, list) and len(enum) == 1:
                after = enum[0]
            else:
                return False
            self.set_value((*names.path, name), Candidate(after, "default", "default", "schema"))
        return bool(names.missing)

    # Changes

    def set_value(self, path: Path, candidate: Candidate) -> None:
        after, operation, strategy, source, *_ = candidate
        key, earlier = path, self.changes.get(path)
        if earlier is not None and earlier.operation == "rename":
            key = (*path, "")  # keep the rename as one change and record the value as another
            earlier = self.changes.get(key)
        before = earlier.before if earlier else None if operation == "default" else value_at(self.values, path)
        self.changes[key] = Change(
            path=format_path(path), operation=operation, before=before, after=after, source=source
        )
        self.values = replace_at(self.values, path, after)
        self.strategies.append(strategy)

    def drop(self, path: Path, strategy: str) -> None:
        self.changes[path] = Change(path=format_path(path), operation="drop", before=self._remove(path))
        self.strategies.append(strategy)

    def _remove(self, path: Path) -> Any:
        members = dict(value_at(self.values, path[:-1]))
        value = members.pop(path[-1])
        self.values = replace_at(self.values, path[:-1], members)
        return value

    def rename(self, path: Path, to: Path, strategy: str) -> None:
        is_sibling = path[:-1] == to[:-1]
        after = to[-1] if is_sibling else format_path(to)
        self.changes[to] = Change(path=format_path(path), operation="rename", before=path[-1], after=after)
        if is_sibling:  # the order of the arguments stays
            members = value_at(self.values, path[:-1])
            renamed = {(to[-1] if name == path[-1] else name): value for name, value in members.items()}
            self.values = replace_at(self.values, path[:-1], renamed)
        else:
            value = self._remove(path)
            home = value_at(self.values, to[:-2]).get(to[-2], {})
            self.values = replace_at(self.values, to[:-1], {**home, to[-1]: value})
        self.strategies.append(strategy)
