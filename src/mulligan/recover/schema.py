"""In which ways arguments break their tool's schema: every fault with its place, from one validator a pinned schema.

A schema counts as it was when it was first seen (SAFETY S1), in the words of JSON Schema (`dialect.py`), and refers to
nothing outside itself (S6).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from mulligan.recover.cost import ENDLESS, MANY, extent_of, is_affordable
from mulligan.recover.dialect import TooLarge, mapped

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]

KEPT = 256
"""Schemas whose validators are kept. An agent has a few dozen tools; beyond this the oldest are made again."""

MOST = 100_000
"""Values in a schema, enums and defaults included."""


class Fault(NamedTuple):
    """One way in which arguments break their schema."""

    path: Path
    rule: str
    limit: Any
    message: str
    node: Any = None
    """The part of the schema whose rule it is."""


class Pinned:
    """A schema as it was when it was first seen, and its validator, made when it is first needed."""

    __slots__ = ("_affordable", "_digest", "_source", "_validator", "schema")

    def __init__(self, source: Schema) -> None:
        self._source = source  # held, so that no other schema can come to stand at its address
        self.schema: dict[str, Any] | None
        try:
            _weigh(source)
            self.schema = mapped(source)
        except (TooLarge, RecursionError, TypeError, AttributeError):
            self.schema = None
        self._validator: Any = None
        self._affordable: dict[int, bool] = {}
        self._digest: str | None = None

    @property
    def digest(self) -> str:
        """What it is known by where it is not at hand: the same as long as it takes and refuses the same."""
        if self._digest is None:
            from hashlib import blake2b  # only failures come here, and it loads OpenSSL

            rules = {} if self.schema is None else _rules(self.schema)
            said = msgspec.json.encode(rules, order="sorted", enc_hook=str)
            self._digest = blake2b(said, digest_size=8).hexdigest() if rules else ""
        return self._digest

    def unusable(self) -> str:
        """Why nothing can be held against it; empty where it is a schema."""
        if self.schema is None:
            return "it is too large, or holds what JSON does not"
        try:
            import jsonschema_rs  # the validator is made as it is for the first call

            jsonschema_rs.validator_for(self.schema, retriever=_refuse)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            return str(error).splitlines()[0] if str(error) else type(error).__name__
        return ""

    def faults(self, arguments: Mapping[str, Any]) -> list[Fault] | None:
        """Every way in which arguments break it, or None where nothing can be said."""
        schema = self.schema
        if schema is None:
            return None
        depth, values = extent_of(arguments)
        if values > ENDLESS or not self._is_affordable(schema, arguments, depth):
            return None
        try:
            if self._validator is None:
                import jsonschema_rs  # 25 ms to import, and only failures and checked calls come here

                self._validator = jsonschema_rs.validator_for(schema, retriever=_refuse)
            if values > MANY:
                return [] if self._validator.is_valid(dict(arguments)) else None
            errors = list(self._validator.iter_errors(dict(arguments)))
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None
        found = []
        for error in errors:
            if type(error.kind).__name__ == "BacktrackLimitExceeded":
                return None  # its pattern would take too long: whether the value fits is not known
            if error.schema_path:
                node, limit = _node(schema, error.schema_path)
                found.append(Fault(tuple(error.instance_path), str(error.schema_path[-1]), limit, error.message, node))
        return found

    def _is_affordable(self, schema: Schema, arguments: Mapping[str, Any], depth: int) -> bool:
        known = self._affordable.get(depth)
        if known is None:
            known = self._affordable[depth] = is_affordable(schema, arguments)
        return known


_by_place: dict[int, Pinned] = {}
_by_text: dict[bytes, Pinned] = {}
_encoder = msgspec.json.Encoder()


def pinned(schema: Schema) -> Pinned:
    """One for each schema, whoever holds it: the same object, or another with the same text."""
    known = _by_place.get(id(schema))
    if known is not None and known._source is schema:
        return known
    try:
        _weigh(schema)
        text = _encoder.encode(schema)
    except (TypeError, ValueError, RecursionError):
        return Pinned(schema)  # not JSON, or too much of it: nothing to know it by
    known = _by_text.get(text)
    if known is None:
        if len(_by_text) >= KEPT:
            _by_text.clear()
            _by_place.clear()
        known = _by_text[text] = Pinned(schema)
        _by_place[id(schema)] = known
    return known


_WORDS = frozenset({"title", "description", "examples", "$comment", "$schema", "$id"})
"""What is said about a value, and decides nothing."""
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Where the keys are names of the tool's own."""


def _rules(node: Any, is_named: bool = False) -> Any:
    """A schema without what is only said."""
    if isinstance(node, Mapping):
        return {
            str(key): _rules(value, not is_named and key in _NAMED)
            for key, value in node.items()
            if is_named or key not in _WORDS
        }
    return [_rules(value) for value in node] if isinstance(node, list | tuple) else node


def _weigh(schema: Schema) -> None:
    """Refuses what would not end: a value that is held in two places counts twice, and few lines may be very many."""
    left = MOST
    rest: list[Any] = [schema]
    while rest:
        node = rest.pop()
        inside = node.values() if isinstance(node, dict) else node if isinstance(node, list | tuple) else ()
        left -= 1 + len(inside)
        if left < 0:
            raise TooLarge
        rest.extend(inside)


def faults(arguments: Mapping[str, Any], schema: Schema) -> list[Fault]:
    """Every way in which the arguments break the schema; none if it is not a schema we can read."""
    return judged(arguments, schema) or []


def judged(arguments: Mapping[str, Any], schema: Schema) -> list[Fault] | None:
    """The same, or None where nothing can be said: a schema that is none, or arguments that are not JSON."""
    return pinned(schema).faults(arguments)


def _refuse(uri: str) -> Any:
    raise ValueError(f"references are not followed: {uri}")


def _node(schema: Schema, path: list[str | int]) -> tuple[Any, Any]:
    """The part of a schema that a path leads into, and what stands at its end."""
    node: Any = None
    limit: Any = schema
    for part in path:
        node = limit
        try:
            limit = limit[part]
        except (KeyError, IndexError, TypeError):
            return None, None
    return node, limit


def resolved(node: Any, root: Schema, hops: int = 8) -> Any:
    """The node itself, or what its reference within the schema names."""
    while isinstance(node, Mapping) and isinstance(node.get("$ref"), str) and hops:
        reference = node["$ref"]
        if not reference.startswith("#"):
            return node
        target: Any = root
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, Mapping) else None
        node, hops = target, hops - 1
    return node if isinstance(node, Mapping) else {}
