"""Repair of a call by the tool's schema alone: names, nesting and values, in rounds until the call validates.

All violations must be repairable, since a partial repair would fail again. Every value comes from the call or the
schema. A value keeps its meaning: `020` is a name and not a number, a date stays as written, null is not a value.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mulligan.core.calls import TOOL_NAME_PATH
from mulligan.core.conversation import replace_at
from mulligan.core.privileged_arguments import split_words
from mulligan.core.records import Change, ChangeOperation, ValueSource
from mulligan.recover.model_output import find_reading
from mulligan.recover.names import MAX_COMPARED_CHARS, match_by_words, match_name, normalize_name
from mulligan.recover.schema import CompiledSchema, Path, SchemaViolation, field_name, resolve_reference

MAX_REPAIR_ROUNDS = 6
"""A name may need a repair before its value, and a value a cast before its bound."""
MAX_VIOLATIONS = 200
"""Violations handled in one round."""
MAX_UNKNOWN_NAMES = 50
"""Names in one object that its schema does not define. More indicate a different call."""
MAX_VALUE_DEPTH = 16
MAX_PARSED_CHARS = 200_000
"""Characters of a text that are parsed as JSON."""
_LEADING_ZERO_WORDS = frozenset("zip zipcode postal postcode pin ssn code serial isbn ean".split())
"""Words in a name that make leading zeros significant. A number has lost them."""


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
    arguments: Mapping[str, Any], compiled: CompiledSchema, is_strict: bool = False, can_guess: bool = False
) -> Draft | None:
    """Repair all schema violations of a call. Return None if one cannot be repaired.

    `is_strict` treats arguments that the schema does not define as violations even if it allows them. `can_guess` also
    applies uncertain repairs, for suggestions.
    """
    repairer = _SchemaRepairer(dict(arguments), compiled, is_strict, can_guess)
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


class Candidate(NamedTuple):
    """A candidate value for one argument, and the strategy behind it."""

    after: Any
    operation: ChangeOperation
    strategy: str
    source: ValueSource = "call"
    path: Path = ()
    evidence: str = ""


class _ObjectNames(NamedTuple):
    """The names of one object, compared with its schema."""

    path: Path
    value: Mapping[str, Any]
    properties: Mapping[str, Any]
    unknown: list[str]
    missing: list[str]
    free: list[str]
    """Names of the schema that the object does not use."""


@dataclass(slots=True)
class _SchemaRepairer:
    values: Any
    compiled: CompiledSchema
    is_strict: bool
    can_guess: bool
    changes: dict[Path, Change] = field(default_factory=dict)
    """Changes by the current path of the value, one for each path."""
    strategies: list[str] = field(default_factory=list)

    @property
    def root(self) -> Mapping[str, Any]:
        return self.compiled.schema or {}

    def repair_all(self) -> bool:
        for _ in range(MAX_REPAIR_ROUNDS):
            violations = self.list_violations()
            if violations is None or len(violations) > MAX_VIOLATIONS:
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
        undefined = [name for name in value if name not in properties]
        unknown = undefined if self.is_strict or _forbids_unknown_names(node) else []
        missing = [name for name in node.get("required", ()) if name not in value]
        if (not unknown and not missing) or len(unknown) > MAX_UNKNOWN_NAMES:
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
            # Record the inner name: the name of the wrapper carries no information.
            inner_path, outer_path = format_path((*path, name)), format_path((*path, unknown[0], name))
            change = Change(path=inner_path, operation="rename", before=outer_path, after=inner_path)
            self.changes[(*path, name)] = change
        self.strategies.append("unnest")
        return True

    def rename_matches(self, names: _ObjectNames) -> bool:
        """Rename an argument to a schema name if exactly one is similar and unused (SAFETY S1)."""
        # If the schema does not forbid unknown names, they are only candidates for missing ones.
        undefined = [name for name in names.value if name not in names.properties] if names.missing else []
        matches = {
            name: match
            for name in names.unknown or undefined
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
        free = list(names.free)
        has_changes = False
        for name in names.unknown:
            similar = match_by_words(name, free)
            shared = [candidate for candidate in similar if candidate in names.missing] or similar
            if len(shared) == 1:
                self.rename((*names.path, name), (*names.path, shared[0]), "rename part")
                free.remove(shared[0])
                has_changes = True
        targets = names.missing or free
        if not has_changes and len(names.unknown) == 1 and len(targets) == 1:
            self.rename((*names.path, names.unknown[0]), (*names.path, targets[0]), "rename only")
            has_changes = True
        return has_changes

    def fill_defaults(self, names: _ObjectNames) -> bool:
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


# Coercion of one value to another type, spelling or bound without changing its meaning


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_empty(value: Any) -> bool:
    """Return whether a value is empty: null, an empty text, list or object, or text of quotes and brackets only."""
    if value is None or (isinstance(value, list | tuple | Mapping) and not value):
        return True
    return isinstance(value, str) and len(value) <= 20 and not value.strip(" \t\r\n'\"`=:,{}[]()")


def coerce_value(value: Any, expected_type: str, name: str, can_guess: bool = False) -> Iterator[Candidate]:
    """Yield the value in the expected type, most certain first."""
    if isinstance(value, str):
        yield from _coerce_text(value, expected_type, can_guess)
    elif expected_type == "integer" and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        yield Candidate(int(value), "cast", "cast")
    elif expected_type == "string" and isinstance(value, bool):
        if can_guess:
            yield Candidate(str(value).lower(), "cast", "cast loose")
    elif expected_type == "string" and isinstance(value, int) and abs(value) < 10**18:
        loses_zeros = any(word.casefold() in _LEADING_ZERO_WORDS for word in split_words(name[:MAX_COMPARED_CHARS]))
        if not loses_zeros or can_guess:
            yield Candidate(str(value), "cast", "cast name" if loses_zeros else "cast")
    elif expected_type == "string" and isinstance(value, float) and can_guess and value == value:
        yield Candidate(repr(value), "cast", "cast loose")
    if isinstance(value, list) and len(value) == 1 and expected_type != "array" and can_guess:
        yield Candidate(value[0], "cast", "unwrap")
    elif isinstance(value, Mapping) and len(value) == 1 and expected_type not in ("array", "object"):
        yield from _unwrap_single(value, name, can_guess)
    if expected_type == "array":
        yield from _wrap_in_list(value, can_guess)


def _unwrap_single(value: Mapping[Any, Any], name: str, can_guess: bool) -> Iterator[Candidate]:
    """Yield the one member of an object if a scalar is expected: `{"value": 5}`, and as a guess `{"$lt": 5}`.

    A key equal to the argument's name or `value` carries no information. Any other may.
    """
    ((key, inner),) = value.items()
    if is_empty(inner) or isinstance(inner, list | tuple | Mapping):
        return
    if isinstance(key, str) and normalize_name(key) in ("value", normalize_name(name)):
        yield Candidate(inner, "cast", "unnest")
    elif can_guess:
        yield Candidate(inner, "cast", "unwrap")


def _coerce_text(value: str, expected_type: str, can_guess: bool) -> Iterator[Candidate]:
    if len(value) > MAX_PARSED_CHARS:
        return
    text = strip_quotes(value)
    if expected_type == "integer" and re.fullmatch(r"0|-?[1-9][0-9]{0,17}", text):  # "020" is a name, not a number
        yield Candidate(int(text), "cast", "cast")
    elif expected_type == "integer" and can_guess and re.fullmatch(r"-?[1-9][0-9]{0,14}\.0{1,6}", text):
        yield Candidate(int(text.partition(".")[0]), "cast", "cast loose")
    elif expected_type == "number" and re.fullmatch(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?", text):
        yield Candidate(float(text) if "." in text else int(text), "cast", "cast")
    elif expected_type == "boolean" and text.casefold() in ("true", "false"):
        yield Candidate(text.casefold() == "true", "cast", "cast")
    elif expected_type == "boolean" and can_guess and text.casefold() in ("yes", "no"):
        yield Candidate(text.casefold() == "yes", "cast", "cast loose")
    elif expected_type in ("array", "object"):
        parsed = parse_json_text(value)
        if isinstance(parsed, list if expected_type == "array" else dict):
            yield Candidate(parsed, "parse", "parse")
        elif isinstance(parsed, dict):
            yield Candidate([parsed], "parse", "wrap")


def _wrap_in_list(value: Any, can_guess: bool) -> Iterator[Candidate]:
    """Yield a single value as a list. A text with commas is ambiguous: it is split only if guessing is allowed."""
    if isinstance(value, tuple):
        yield Candidate(list(value), "cast", "cast")
    elif isinstance(value, str):
        parts = [part.strip() for part in re.split(r"[,;\n]", value.strip())]
        if len(parts) == 1 and value.strip() and value.strip()[0] not in "[{":
            yield Candidate([value], "wrap", "wrap")
        elif can_guess and len(parts) > 1 and all(parts) and parts[0][0] not in "[{":
            yield Candidate(parts, "parse", "split")
    elif value is not None and not isinstance(value, list):
        yield Candidate([value], "wrap", "wrap")


def strip_quotes(text: str) -> str:
    """Return a text without surrounding spaces and quotes."""
    bare = text.strip()
    while len(bare) >= 2 and bare[0] == bare[-1] and bare[0] in "\"'`":
        bare = bare[1:-1].strip()
    return bare


def parse_json_text(text: str) -> Any:
    """Parse a text as a JSON or Python list or object. Return None if it is neither."""
    bare = text.strip()
    if bare[:1] in ("'", "`"):
        bare = re.sub(r"^json\s+", "", strip_quotes(bare))
    if len(bare) > MAX_PARSED_CHARS or bare[:1] + bare[-1:] not in ("[]", "{}", '""'):
        return None
    reading = find_reading(bare)
    return None if reading is None else reading.value


def match_enum(value: Any, members: list[Any], can_guess: bool = False) -> Iterator[Candidate]:
    """Yield the enum member that a value spells differently."""
    texts = [member for member in members if isinstance(member, str)]
    if isinstance(value, str) and len(value) <= MAX_COMPARED_CHARS:
        bare = strip_quotes(value)
        if bare != value and bare in texts:
            yield Candidate(bare, "trim", "trim")
            return
        match = match_name(bare, texts)
        if match is not None:
            yield Candidate(match.name, "enum", f"enum {match.method}", "schema")
        elif can_guess:
            for name in match_by_words(bare, texts)[:3]:
                yield Candidate(name, "enum", "enum part", "schema")
        for member in members:
            if is_number(member) and str(member) == bare and re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,6})?", bare):
                yield Candidate(member, "cast", "cast")
    elif isinstance(value, bool):
        same = [text for text in texts if text.casefold() == str(value).casefold()]
        if len(same) == 1:
            yield Candidate(same[0], "cast", "cast")
    elif is_number(value) and abs(value) < 10**18 and str(value) in texts:
        yield Candidate(str(value), "cast", "cast")


def clamp(value: Any, rule: str, limit: Any, node: Mapping[str, Any]) -> Iterator[Candidate]:
    """Yield a number moved to the bound that it violates, as the same type of number."""
    if not is_number(value) or not is_number(limit) or value != value:
        return
    if rule in ("minimum", "maximum"):
        yield Candidate(match_number_type(limit, value), "clamp", "clamp", "schema")
    elif (isinstance(value, int) or node.get("type") == "integer") and limit == int(limit):
        # No float is adjacent to an exclusive bound.
        yield Candidate(int(limit) + (1 if rule == "exclusiveMinimum" else -1), "clamp", "clamp", "schema")


def match_number_type(bound: float, value: float) -> float:
    """Return a bound as the type of number used in the call, if it can be converted."""
    return int(bound) if isinstance(value, int) and isinstance(bound, float) and bound.is_integer() else bound
