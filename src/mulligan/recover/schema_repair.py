"""Repair of a call by the tool's schema alone: names, nesting and values, in rounds until the call validates.

All violations must be repairable, since a partial repair would fail again. Every value comes from the call or the
schema.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mulligan.core.records import Change, ChangeOperation, ValueSource
from mulligan.recover import coercion
from mulligan.recover.names import match_by_words, match_name
from mulligan.recover.path_repair import replace_at_path
from mulligan.recover.schema import CompiledSchema, Path, SchemaViolation, resolve_reference

MAX_REPAIR_ROUNDS = 6
"""A name may need a repair before its value, and a value a cast before its bound."""
MAX_VIOLATIONS = 200
"""Violations handled in one round."""
MAX_UNKNOWN_NAMES = 50
"""Names in one object that its schema does not define. More indicate a different call."""
MAX_VALUE_DEPTH = 16


@dataclass(frozen=True, slots=True)
class SchemaRepair:
    """Repaired arguments that validate, with the changes."""

    arguments: dict[str, Any]
    changes: tuple[Change, ...]
    strategies: tuple[str, ...]


def repair_from_schema(
    arguments: Mapping[str, Any], compiled: CompiledSchema, *, is_strict: bool = False, can_guess: bool = False
) -> SchemaRepair | None:
    """Repair all schema violations of a call. Return None if one cannot be repaired.

    `is_strict` treats arguments that the schema does not define as violations even if it allows them. `can_guess` also
    applies uncertain repairs, for suggestions.
    """
    repairer = _SchemaRepairer(arguments, compiled, is_strict, can_guess)
    return repairer.build_result() if repairer.repair_all() else None


def unknown_arguments(arguments: Mapping[str, Any], compiled: CompiledSchema) -> list[str]:
    """Return the arguments that the schema neither defines nor explicitly allows."""
    schema = compiled.schema
    if not schema or not _forbids_unknown_names(schema):
        return []
    return [name for name in arguments if isinstance(name, str) and name not in schema.get("properties", {})]


def _forbids_unknown_names(node: Mapping[str, Any]) -> bool:
    """Return whether a schema lists its names and does not allow others."""
    if not isinstance(node.get("properties"), Mapping) or node.get("patternProperties"):
        return False
    if any(word in node for word in ("allOf", "anyOf", "oneOf", "if", "unevaluatedProperties")):
        return False
    return node.get("additionalProperties", False) is False


def format_path(path: Path) -> str:
    return ".".join(map(str, path))


class _SchemaRepairer:
    def __init__(
        self, arguments: Mapping[str, Any], compiled: CompiledSchema, is_strict: bool, can_guess: bool
    ) -> None:
        self.values: Any = dict(arguments)
        self.compiled = compiled
        self.is_strict = is_strict
        self.can_guess = can_guess
        self.changes: dict[Path, Change] = {}
        """Changes by the current path of the value, one for each path."""
        self.strategies: list[str] = []

    def repair_all(self) -> bool:
        for _ in range(MAX_REPAIR_ROUNDS):
            violations = self.list_violations()
            if violations is None or len(violations) > MAX_VIOLATIONS:
                return False
            if not violations:
                return bool(self.changes)
            before = len(self.strategies)
            for path, path_violations in _group_by_path(violations):
                if not self.repair_at(path, path_violations):
                    return False
            if len(self.strategies) == before:
                return False
        return self.list_violations() == []

    def build_result(self) -> SchemaRepair:
        return SchemaRepair(self.values, tuple(self.changes.values()), tuple(dict.fromkeys(self.strategies)))

    def list_violations(self) -> list[SchemaViolation] | None:
        violations = self.compiled.find_violations(self.values)
        if violations is not None and self.is_strict and self.compiled.schema:
            reported_paths = {violation.path for violation in violations if violation.rule == "additionalProperties"}
            violations += [
                violation
                for violation in self._find_unknown_names(self.compiled.schema, self.values, ())
                if violation.path not in reported_paths
            ]
        return violations

    def _find_unknown_names(self, node: Any, value: Any, path: Path) -> Iterator[SchemaViolation]:
        """Yield a violation for each object with names that the schema does not define."""
        node = resolve_reference(node, self.compiled.schema or {})
        if len(path) > MAX_VALUE_DEPTH:
            return
        if isinstance(value, Mapping) and isinstance(node.get("properties"), Mapping):
            properties = node["properties"]
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
            value = self.value_at(path)
        except (KeyError, IndexError, TypeError):
            return True  # moved by an earlier repair in this round: the next round checks it
        names = [
            name_violation
            for name_violation in violations
            if name_violation.rule in ("required", "additionalProperties")
        ]
        if names:
            if isinstance(value, Mapping) and isinstance(names[0].node, Mapping):
                return self.repair_names(path, value, names[0].node)
            return False
        # Repair the first repairable violation: a string in place of a number also violates the number's other rules.
        for violation in violations:
            for coerced in self.candidates(violation, path, value):
                self.set_value(path, coerced.after, coerced.operation, coerced.strategy, coerced.source)
                return True
        return self.drop_if_empty(path, value)

    def candidates(self, violation: SchemaViolation, path: Path, value: Any) -> Iterator[coercion.CoercedValue]:
        node = violation.node if isinstance(violation.node, Mapping) else {}
        name = next((part for part in reversed(path) if isinstance(part, str)), "")
        if violation.rule == "type":
            expected_types = violation.limit if isinstance(violation.limit, list) else [violation.limit]
            enum = node.get("enum")
            if isinstance(enum, list):  # enum members are more specific than the type
                yield from coercion.match_enum(value, enum, self.can_guess)
            for expected_type in expected_types:
                yield from coercion.coerce_value(value, expected_type, node, name, self.can_guess)
        elif violation.rule in ("enum", "const"):
            members = violation.limit if violation.rule == "enum" else [violation.limit]
            if isinstance(members, list):
                yield from coercion.match_enum(value, members, self.can_guess)
        elif violation.rule in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            clamped = coercion.clamp(value, violation.rule, violation.limit, node)
            if clamped is not None:
                yield clamped
        elif violation.rule == "pattern" and isinstance(value, str):
            bare = coercion.strip_quotes(value)
            if bare != value:
                yield coercion.CoercedValue(bare, "trim", "trim")
        elif violation.rule in ("anyOf", "oneOf") and isinstance(violation.limit, list):
            yield from self.coerce_to_branch(violation.limit, path, value, name)

    def coerce_to_branch(
        self, branches: list[Any], path: Path, value: Any, name: str
    ) -> Iterator[coercion.CoercedValue]:
        """Yield a coercion that makes the value fit one of several schemas, if there is exactly one."""
        fitting: list[coercion.CoercedValue] = []
        for branch in branches[:10]:
            node = resolve_reference(branch, self.compiled.schema or {})
            coerced_values: list[coercion.CoercedValue] = []
            if isinstance(node.get("enum"), list):
                coerced_values += coercion.match_enum(value, node["enum"], self.can_guess)
            types = node.get("type")
            for expected_type in types if isinstance(types, list) else [types]:
                if isinstance(expected_type, str) and expected_type != "null":
                    coerced_values += coercion.coerce_value(value, expected_type, node, name, self.can_guess)
            for rule in ("minimum", "maximum"):
                if rule in node and (moved := coercion.clamp(value, rule, node[rule], node)) is not None:
                    coerced_values.append(moved)
            fitting += [coerced for coerced in coerced_values if self.fits_schema(path, coerced.after)]
        kinds = {repr(coerced.after): coerced for coerced in reversed(fitting)}
        if len(kinds) == 1:
            yield fitting[0]
        elif kinds and self.can_guess:
            yield fitting[0]._replace(strategy="cast loose")

    def fits_schema(self, path: Path, value: Any) -> bool:
        violations = self.compiled.find_violations(replace_at_path(self.values, path, value))
        return violations is not None and not any(violation.path[: len(path)] == path for violation in violations)

    def drop_if_empty(self, path: Path, value: Any) -> bool:
        """Drop an optional, empty argument that the schema rejects."""
        if not path or not isinstance(path[-1], str) or not coercion.is_empty(value):
            return False
        parent = self.node_at(path[:-1])
        if parent is None or path[-1] in parent.get("required", ()):
            return False
        self.drop(path, "drop empty")
        return True

    # Names

    def repair_names(self, path: Path, value: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
        """Rename unknown arguments to the intended names and fill missing ones with defaults."""
        properties = node.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        unknown = (
            [name for name in value if name not in properties] if _forbids_unknown_names(node) or self.is_strict else []
        )
        if node.get("additionalProperties", False) is not False and not self.is_strict:
            unknown = []
        missing = [name for name in node.get("required", ()) if name not in value]
        if (not unknown and not missing) or len(unknown) > MAX_UNKNOWN_NAMES:
            return False
        if unknown and self.unnest(path, value, properties, unknown):
            return True
        if self.rename_matches(path, value, properties, unknown, missing):
            return True
        has_changes = False
        for name in unknown:
            if coercion.is_empty(value[name]):
                is_stray = not str(name).strip(" \t\r\n'\"`_") or len(properties) == 0
                self.drop((*path, name), "empty key" if is_stray else "drop empty")
                has_changes = True
        if has_changes:
            return True
        if unknown and self.nest(path, value, properties, unknown):
            return True
        # If the schema does not forbid unknown names, they are only candidates for missing ones.
        if unknown and (self.can_guess and self.rename_guesses(path, value, properties, unknown, missing)):
            return True
        if missing and self.fill_defaults(path, properties, missing):
            return True
        if unknown and self.can_guess:
            for name in unknown:
                self.drop((*path, name), "drop unknown")
            return True
        return False

    def rename_matches(
        self,
        path: Path,
        value: Mapping[str, Any],
        properties: Mapping[str, Any],
        unknown: list[str],
        missing: list[str],
    ) -> bool:
        """Rename an argument to a schema name if exactly one is similar and unused (SAFETY S1)."""
        free = [name for name in properties if name not in value]
        candidates = unknown or ([name for name in value if name not in properties] if missing else [])
        matches = {
            name: match
            for name in candidates
            if (match := match_name(name, properties)) is not None and match.name in free
        }
        often = Counter(match.name for match in matches.values())
        has_changes = False
        for name, match in matches.items():
            if often[match.name] == 1:
                self.rename((*path, name), (*path, match.name), f"rename {match.method}")
                has_changes = True
        return has_changes

    def unnest(self, path: Path, value: Mapping[str, Any], properties: Mapping[str, Any], unknown: list[str]) -> bool:
        """Move arguments out of an unknown wrapper: `{"arguments": {"city": "Rome"}}`."""
        if len(value) != 1 or len(unknown) != 1:
            return False
        inner = value[unknown[0]]
        if isinstance(inner, str):
            inner = coercion.parse_json_text(inner)
        if not isinstance(inner, Mapping) or not inner:
            return False
        known_names = [name for name in inner if name in properties or match_name(str(name), properties)]
        if len(known_names) < len(inner):
            return False
        self.values = replace_at_path(self.values, path, dict(inner)) if path else dict(inner)
        for name in inner:
            outside = f"{format_path((*path, unknown[0]))}.{name}"
            # Record the inner name: the name of the wrapper carries no information.
            change = Change(
                path=format_path((*path, name)), operation="rename", before=outside, after=format_path((*path, name))
            )
            self.changes[(*path, name)] = change
        self.strategies.append("unnest")
        return True

    def nest(self, path: Path, value: Mapping[str, Any], properties: Mapping[str, Any], unknown: list[str]) -> bool:
        """Move arguments into the object that defines them: `{"city": "Rome"}` for `{"place": {"city": "Rome"}}`."""
        homes: dict[str, list[tuple[str, str]]] = {}
        for name in unknown:
            for home, node in properties.items():
                inner = resolve_reference(node, self.compiled.schema or {}).get("properties")
                member = value.get(home, {})
                if isinstance(inner, Mapping) and isinstance(member, Mapping):
                    match = str(name).removeprefix(f"{home}.")  # some models write the path: `place.city`
                    if match in inner and match not in member:
                        homes.setdefault(name, []).append((home, match))
        if len(homes) < len(unknown) or any(len(matches) != 1 for matches in homes.values()):
            return False
        for name, [(home, member)] in homes.items():
            self.rename((*path, name), (*path, home, member), "nest")
        return True

    def rename_guesses(
        self,
        path: Path,
        value: Mapping[str, Any],
        properties: Mapping[str, Any],
        unknown: list[str],
        missing: list[str],
    ) -> bool:
        free = [name for name in properties if name not in value]
        has_changes = False
        for name in unknown:
            shared = [
                candidate for candidate in match_by_words(name, free) if not missing or candidate in missing
            ] or match_by_words(name, free)
            if len(shared) == 1:
                self.rename((*path, name), (*path, shared[0]), "rename part")
                free.remove(shared[0])
                has_changes = True
        if not has_changes and len(unknown) == 1:
            targets = missing if missing else free
            if len(targets) == 1:
                self.rename((*path, unknown[0]), (*path, targets[0]), "rename only")
                has_changes = True
        return has_changes

    def fill_defaults(self, path: Path, properties: Mapping[str, Any], missing: list[str]) -> bool:
        for name in missing:
            node = resolve_reference(properties.get(name), self.compiled.schema or {})
            enum = node.get("enum")
            if "default" in node and node["default"] is not None:
                after = node["default"]
            elif "const" in node:
                after = node["const"]
            elif isinstance(enum, list) and len(enum) == 1:
                after = enum[0]
            else:
                return False
            self.set_value((*path, name), after, "default", "default", "schema")
        return True

    # Paths

    def value_at(self, path: Path) -> Any:
        value = self.values
        for part in path:
            value = value[part]
        return value

    def node_at(self, path: Path) -> Mapping[str, Any] | None:
        """Return the schema at a path, as far as it can be resolved."""
        root = self.compiled.schema or {}
        node: Any = resolve_reference(root, root)
        for part in path:
            inner = node.get("items") if isinstance(part, int) else (node.get("properties") or {}).get(part)
            node = resolve_reference(inner, root)
        return node if isinstance(node, Mapping) and node else None

    def set_value(self, path: Path, after: Any, operation: ChangeOperation, strategy: str, source: ValueSource) -> None:
        before: Any = None
        earlier_change = self.changes.get(path)
        if earlier_change is not None:
            before = earlier_change.before
        elif operation != "default":
            before = self.value_at(path)
        if earlier_change is not None and earlier_change.operation == "rename":
            # Keep the rename as one change and record the value as another, at its current path.
            path_of_value: Path = (*path, "")
            before = self.value_at(path) if path_of_value not in self.changes else self.changes[path_of_value].before
            self.changes[path_of_value] = Change(
                path=format_path(path), operation=operation, before=before, after=after, source=source
            )
        else:
            self.changes[path] = Change(
                path=format_path(path), operation=operation, before=before, after=after, source=source
            )
        self.values = replace_at_path(self.values, path, after)
        self.strategies.append(strategy)

    def drop(self, path: Path, strategy: str) -> None:
        self.changes[path] = Change(path=format_path(path), operation="drop", before=self.value_at(path))
        self.values = _without_path(self.values, path)
        self.strategies.append(strategy)

    def rename(self, path: Path, to: Path, strategy: str) -> None:
        value = self.value_at(path)
        target_text = to[-1] if path[:-1] == to[:-1] else format_path(to)
        self.changes[to] = Change(path=format_path(path), operation="rename", before=path[-1], after=target_text)
        if path[:-1] == to[:-1]:
            self.values = _with_renamed_key(self.values, path, to[-1])
        else:
            self.values = replace_at_path(_without_path(self.values, path), to, value)
        self.strategies.append(strategy)


def _group_by_path(violations: Iterable[SchemaViolation]) -> list[tuple[Path, list[SchemaViolation]]]:
    """Group violations by path, outer paths first: containers must be repaired before their contents."""
    violations_by_path: dict[Path, list[SchemaViolation]] = {}
    for violation in violations:
        violations_by_path.setdefault(violation.path, []).append(violation)
    return sorted(violations_by_path.items(), key=lambda item: len(item[0]))


def _without_path(root: Any, path: Path) -> Any:
    head, remaining_path = path[0], path[1:]
    if not remaining_path:
        return {name: value for name, value in root.items() if name != head}
    return replace_at_path(root, (head,), _without_path(root[head], remaining_path))


def _with_renamed_key(root: Any, path: Path, to: str | int) -> Any:
    head, remaining_path = path[0], path[1:]
    if not remaining_path:
        return {(to if name == head else name): value for name, value in root.items()}
    return replace_at_path(root, (head,), _with_renamed_key(root[head], remaining_path, to))
