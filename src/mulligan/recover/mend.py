"""Repair of a call by the tool's schema alone: names, nesting and values, in rounds until the call validates.

All violations must be repairable, since a partial repair would fail again. Every value comes from the call or the
schema.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mulligan.records import Change, How, Origin
from mulligan.recover import values
from mulligan.recover.near import meant, sharing
from mulligan.recover.paths import put
from mulligan.recover.schema import Fault, Path, Pinned, resolved

ROUNDS = 6
"""A name may need a repair before its value, and a value a cast before its bound."""
FAULTS = 200
"""Violations handled in one round."""
UNKNOWN = 50
"""Names in one object that its schema does not define. More indicate a different call."""
DEEP = 16


@dataclass(frozen=True, slots=True)
class Mended:
    """Repaired arguments that validate, with the changes."""

    arguments: dict[str, Any]
    changes: tuple[Change, ...]
    families: tuple[str, ...]


def mend(arguments: Mapping[str, Any], pinned: Pinned, *, strict: bool = False, bold: bool = False) -> Mended | None:
    """Repair all schema violations of a call. Return None if one cannot be repaired.

    `is_strict` treats arguments that the schema does not define as violations even if it allows them. `can_guess` also
    applies uncertain repairs, for suggestions.
    """
    mending = _Mending(arguments, pinned, strict, bold)
    return mending.ended() if mending.mends() else None


def strangers(arguments: Mapping[str, Any], pinned: Pinned) -> list[str]:
    """Return the arguments that the schema neither defines nor explicitly allows."""
    schema = pinned.schema
    if not schema or not _is_closed(schema):
        return []
    return [name for name in arguments if isinstance(name, str) and name not in schema.get("properties", {})]


def _is_closed(node: Mapping[str, Any]) -> bool:
    """Return whether a schema lists its names and does not allow others."""
    if not isinstance(node.get("properties"), Mapping) or node.get("patternProperties"):
        return False
    if any(word in node for word in ("allOf", "anyOf", "oneOf", "if", "unevaluatedProperties")):
        return False
    return node.get("additionalProperties", False) is False


def text_of(path: Path) -> str:
    return ".".join(map(str, path))


class _Mending:
    def __init__(self, arguments: Mapping[str, Any], pinned: Pinned, strict: bool, bold: bool) -> None:
        self.values: Any = dict(arguments)
        self.pinned = pinned
        self.strict = strict
        self.bold = bold
        self.changes: dict[Path, Change] = {}
        """Changes by the current path of the value, one for each path."""
        self.families: list[str] = []

    def mends(self) -> bool:
        for _ in range(ROUNDS):
            found = self.found()
            if found is None or len(found) > FAULTS:
                return False
            if not found:
                return bool(self.changes)
            before = len(self.families)
            for path, faults in _by_place(found):
                if not self.mend_at(path, faults):
                    return False
            if len(self.families) == before:
                return False
        return self.found() == []

    def ended(self) -> Mended:
        return Mended(self.values, tuple(self.changes.values()), tuple(dict.fromkeys(self.families)))

    def found(self) -> list[Fault] | None:
        found = self.pinned.faults(self.values)
        if found is not None and self.strict and self.pinned.schema:
            places = {fault.path for fault in found if fault.rule == "additionalProperties"}
            found += [each for each in self._unknown(self.pinned.schema, self.values, ()) if each.path not in places]
        return found

    def _unknown(self, node: Any, value: Any, path: Path) -> Iterator[Fault]:
        """Yield a violation for each object with names that the schema does not define."""
        node = resolved(node, self.pinned.schema or {})
        if len(path) > DEEP:
            return
        if isinstance(value, Mapping) and isinstance(node.get("properties"), Mapping):
            properties = node["properties"]
            if _is_closed(node) and any(name not in properties for name in value):
                yield Fault(path, "additionalProperties", False, "unknown names", node)
            for name, inner in value.items():
                if name in properties:
                    yield from self._unknown(properties[name], inner, (*path, name))
        elif isinstance(value, list) and isinstance(node.get("items"), Mapping):
            for at, inner in enumerate(value[:100]):
                yield from self._unknown(node["items"], inner, (*path, at))

    # Violations at one path

    def mend_at(self, path: Path, faults: list[Fault]) -> bool:
        """Repair the violations at one path. Return whether something changed that the next round can validate."""
        try:
            value = self.at(path)
        except (KeyError, IndexError, TypeError):
            return True  # moved by an earlier repair in this round: the next round checks it
        names = [fault for fault in faults if fault.rule in ("required", "additionalProperties")]
        if names:
            if isinstance(value, Mapping) and isinstance(names[0].node, Mapping):
                return self.mend_names(path, value, names[0].node)
            return False
        # Repair the first repairable violation: a string in place of a number also violates the number's other rules.
        for fault in faults:
            for made in self.candidates(fault, path, value):
                self.place(path, made.after, made.how, made.family, made.origin)
                return True
        return self.left_out(path, value)

    def candidates(self, fault: Fault, path: Path, value: Any) -> Iterator[values.Made]:
        node = fault.node if isinstance(fault.node, Mapping) else {}
        name = next((part for part in reversed(path) if isinstance(part, str)), "")
        if fault.rule == "type":
            wanted = fault.limit if isinstance(fault.limit, list) else [fault.limit]
            enum = node.get("enum")
            if isinstance(enum, list):  # enum members are more specific than the type
                yield from values.member(value, enum, self.bold)
            for each in wanted:
                yield from values.cast(value, each, node, name, self.bold)
        elif fault.rule in ("enum", "const"):
            members = fault.limit if fault.rule == "enum" else [fault.limit]
            if isinstance(members, list):
                yield from values.member(value, members, self.bold)
        elif fault.rule in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            made = values.within(value, fault.rule, fault.limit, node)
            if made is not None:
                yield made
        elif fault.rule == "pattern" and isinstance(value, str):
            bare = values.unquoted(value)
            if bare != value:
                yield values.Made(bare, "trim", "trim")
        elif fault.rule in ("anyOf", "oneOf") and isinstance(fault.limit, list):
            yield from self.one_of(fault.limit, path, value, name)

    def one_of(self, branches: list[Any], path: Path, value: Any, name: str) -> Iterator[values.Made]:
        """Yield a coercion that makes the value fit one of several schemas, if there is exactly one."""
        fitting: list[values.Made] = []
        for branch in branches[:10]:
            node = resolved(branch, self.pinned.schema or {})
            made: list[values.Made] = []
            if isinstance(node.get("enum"), list):
                made += values.member(value, node["enum"], self.bold)
            types = node.get("type")
            for wanted in types if isinstance(types, list) else [types]:
                if isinstance(wanted, str) and wanted != "null":
                    made += values.cast(value, wanted, node, name, self.bold)
            for rule in ("minimum", "maximum"):
                if rule in node and (moved := values.within(value, rule, node[rule], node)) is not None:
                    made.append(moved)
            fitting += [each for each in made if self.fits(path, each.after)]
        kinds = {repr(each.after): each for each in reversed(fitting)}
        if len(kinds) == 1:
            yield fitting[0]
        elif kinds and self.bold:
            yield fitting[0]._replace(family="cast loose")

    def fits(self, path: Path, value: Any) -> bool:
        found = self.pinned.faults(put(self.values, path, value))
        return found is not None and not any(fault.path[: len(path)] == path for fault in found)

    def left_out(self, path: Path, value: Any) -> bool:
        """Drop an optional, empty argument that the schema rejects."""
        if not path or not isinstance(path[-1], str) or not values.is_empty(value):
            return False
        parent = self.node_at(path[:-1])
        if parent is None or path[-1] in parent.get("required", ()):
            return False
        self.drop(path, "drop empty")
        return True

    # Names

    def mend_names(self, path: Path, value: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
        """Rename unknown arguments to the intended names and fill missing ones with defaults."""
        properties = node.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        unknown = [name for name in value if name not in properties] if _is_closed(node) or self.strict else []
        if node.get("additionalProperties", False) is not False and not self.strict:
            unknown = []
        missing = [name for name in node.get("required", ()) if name not in value]
        if (not unknown and not missing) or len(unknown) > UNKNOWN:
            return False
        if unknown and self.unnested(path, value, properties, unknown):
            return True
        if self.renamed(path, value, properties, unknown, missing):
            return True
        done = False
        for name in unknown:
            if values.is_empty(value[name]):
                is_stray = not str(name).strip(" \t\r\n'\"`_") or len(properties) == 0
                self.drop((*path, name), "empty key" if is_stray else "drop empty")
                done = True
        if done:
            return True
        if unknown and self.nested(path, value, properties, unknown):
            return True
        # If the schema does not forbid unknown names, they are only candidates for missing ones.
        if unknown and (self.bold and self.guessed(path, value, properties, unknown, missing)):
            return True
        if missing and self.defaulted(path, properties, missing):
            return True
        if unknown and self.bold:
            for name in unknown:
                self.drop((*path, name), "drop unknown")
            return True
        return False

    def renamed(
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
            name: match for name in candidates if (match := meant(name, properties)) is not None and match.name in free
        }
        often = Counter(match.name for match in matches.values())
        done = False
        for name, match in matches.items():
            if often[match.name] == 1:
                self.rename((*path, name), (*path, match.name), f"rename {match.how}")
                done = True
        return done

    def unnested(self, path: Path, value: Mapping[str, Any], properties: Mapping[str, Any], unknown: list[str]) -> bool:
        """Move arguments out of an unknown wrapper: `{"arguments": {"city": "Rome"}}`."""
        if len(value) != 1 or len(unknown) != 1:
            return False
        inner = value[unknown[0]]
        if isinstance(inner, str):
            inner = values.parse(inner)
        if not isinstance(inner, Mapping) or not inner:
            return False
        known = [name for name in inner if name in properties or meant(str(name), properties)]
        if len(known) < len(inner):
            return False
        self.values = put(self.values, path, dict(inner)) if path else dict(inner)
        for name in inner:
            outside = f"{text_of((*path, unknown[0]))}.{name}"
            # Record the inner name: the name of the wrapper carries no information.
            change = Change(path=text_of((*path, name)), how="rename", before=outside, after=text_of((*path, name)))
            self.changes[(*path, name)] = change
        self.families.append("unnest")
        return True

    def nested(self, path: Path, value: Mapping[str, Any], properties: Mapping[str, Any], unknown: list[str]) -> bool:
        """Move arguments into the object that defines them: `{"city": "Rome"}` for `{"place": {"city": "Rome"}}`."""
        homes: dict[str, list[tuple[str, str]]] = {}
        for name in unknown:
            for home, node in properties.items():
                inner = resolved(node, self.pinned.schema or {}).get("properties")
                inside = value.get(home, {})
                if isinstance(inner, Mapping) and isinstance(inside, Mapping):
                    match = str(name).removeprefix(f"{home}.")  # some models write the path: `place.city`
                    if match in inner and match not in inside:
                        homes.setdefault(name, []).append((home, match))
        if len(homes) < len(unknown) or any(len(found) != 1 for found in homes.values()):
            return False
        for name, [(home, inside)] in homes.items():
            self.rename((*path, name), (*path, home, inside), "nest")
        return True

    def guessed(
        self,
        path: Path,
        value: Mapping[str, Any],
        properties: Mapping[str, Any],
        unknown: list[str],
        missing: list[str],
    ) -> bool:
        free = [name for name in properties if name not in value]
        done = False
        for name in unknown:
            shared = [each for each in sharing(name, free) if not missing or each in missing] or sharing(name, free)
            if len(shared) == 1:
                self.rename((*path, name), (*path, shared[0]), "rename part")
                free.remove(shared[0])
                done = True
        if not done and len(unknown) == 1:
            targets = missing if missing else free
            if len(targets) == 1:
                self.rename((*path, unknown[0]), (*path, targets[0]), "rename only")
                done = True
        return done

    def defaulted(self, path: Path, properties: Mapping[str, Any], missing: list[str]) -> bool:
        for name in missing:
            node = resolved(properties.get(name), self.pinned.schema or {})
            enum = node.get("enum")
            if "default" in node and node["default"] is not None:
                after = node["default"]
            elif "const" in node:
                after = node["const"]
            elif isinstance(enum, list) and len(enum) == 1:
                after = enum[0]
            else:
                return False
            self.place((*path, name), after, "default", "default", "schema")
        return True

    # Paths

    def at(self, path: Path) -> Any:
        value = self.values
        for part in path:
            value = value[part]
        return value

    def node_at(self, path: Path) -> Mapping[str, Any] | None:
        """Return the schema at a path, as far as it can be resolved."""
        root = self.pinned.schema or {}
        node: Any = resolved(root, root)
        for part in path:
            inner = node.get("items") if isinstance(part, int) else (node.get("properties") or {}).get(part)
            node = resolved(inner, root)
        return node if isinstance(node, Mapping) and node else None

    def place(self, path: Path, after: Any, how: How, family: str, origin: Origin) -> None:
        before: Any = None
        known = self.changes.get(path)
        if known is not None:
            before = known.before
        elif how != "default":
            before = self.at(path)
        if known is not None and known.how == "rename":
            # Keep the rename as one change and record the value as another, at its current path.
            path_of_value: Path = (*path, "")
            before = self.at(path) if path_of_value not in self.changes else self.changes[path_of_value].before
            self.changes[path_of_value] = Change(path=text_of(path), how=how, before=before, after=after, from_=origin)
        else:
            self.changes[path] = Change(path=text_of(path), how=how, before=before, after=after, from_=origin)
        self.values = put(self.values, path, after)
        self.families.append(family)

    def drop(self, path: Path, family: str) -> None:
        self.changes[path] = Change(path=text_of(path), how="drop", before=self.at(path))
        self.values = _dropped(self.values, path)
        self.families.append(family)

    def rename(self, path: Path, to: Path, family: str) -> None:
        value = self.at(path)
        shown = to[-1] if path[:-1] == to[:-1] else text_of(to)
        self.changes[to] = Change(path=text_of(path), how="rename", before=path[-1], after=shown)
        if path[:-1] == to[:-1]:
            self.values = _renamed(self.values, path, to[-1])
        else:
            self.values = put(_dropped(self.values, path), to, value)
        self.families.append(family)


def _by_place(found: Iterable[Fault]) -> list[tuple[Path, list[Fault]]]:
    """Group violations by path, outer paths first: containers must be repaired before their contents."""
    places: dict[Path, list[Fault]] = {}
    for fault in found:
        places.setdefault(fault.path, []).append(fault)
    return sorted(places.items(), key=lambda item: len(item[0]))


def _dropped(root: Any, path: Path) -> Any:
    head, rest = path[0], path[1:]
    if not rest:
        return {name: value for name, value in root.items() if name != head}
    return put(root, (head,), _dropped(root[head], rest))


def _renamed(root: Any, path: Path, to: str | int) -> Any:
    head, rest = path[0], path[1:]
    if not rest:
        return {(to if name == head else name): value for name, value in root.items()}
    return put(root, (head,), _renamed(root[head], rest, to))
