"""Validation of arguments against a tool's schema, with the path of every violation.

A schema is used as it was when first seen (SAFETY S1), converted to JSON Schema (`schema_dialects.py`), and may have no
external references (S6).
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
"""Compiled schemas in the cache. An agent has a few dozen tools."""

MOST = 100_000
"""Values in a schema, including enums and defaults."""


class Fault(NamedTuple):
    """One violation of a schema by the arguments."""

    path: Path
    rule: str
    limit: Any
    message: str
    node: Any = None
    """The part of the schema that contains the rule."""


class Pinned:
    """A schema as it was when first seen, with its validator, which is created on first use."""

    __slots__ = ("_affordable", "_digest", "_source", "_validator", "schema")

    def __init__(self, source: Schema) -> None:
        self._source = source  # held, so that its id cannot be reused by another schema
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
        """Return a hash of the schema's rules. Titles and descriptions do not change it."""
        if self._digest is None:
            from hashlib import blake2b  # lazy: needed for failures only, and it loads OpenSSL

            rules = {} if self.schema is None else _rules(self.schema)
            said = msgspec.json.encode(rules, order="sorted", enc_hook=str)
            self._digest = blake2b(said, digest_size=8).hexdigest() if rules else ""
        return self._digest

    def unusable(self) -> str:
        """Return why the schema cannot be used for validation, or an empty string."""
        if self.schema is None:
            return "it is too large, or holds what JSON does not"
        try:
            import jsonschema_rs  # created the same way as for the first call

            jsonschema_rs.validator_for(self.schema, retriever=_refuse)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            return str(error).splitlines()[0] if str(error) else type(error).__name__
        return ""

    def faults(self, arguments: Mapping[str, Any]) -> list[Fault] | None:
        """Return all violations by the arguments, or None if they cannot be validated."""
        schema = self.schema
        if schema is None:
            return None
        depth, values = extent_of(arguments)
        if values > ENDLESS or not self._is_affordable(schema, arguments, depth):
            return None
        try:
            if self._validator is None:
                import jsonschema_rs  # lazy: 25 ms, needed for failures and checked calls only

                self._validator = jsonschema_rs.validator_for(schema, retriever=_refuse)
            if values > MANY:
                return [] if self._validator.is_valid(dict(arguments)) else None
            errors = list(self._validator.iter_errors(dict(arguments)))
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None
        found = []
        for error in errors:
            if type(error.kind).__name__ == "BacktrackLimitExceeded":
                return None  # the pattern is too expensive, so the result is unknown
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
    """Return the compiled schema from the cache, by object or by equal text, or compile it."""
    known = _by_place.get(id(schema))
    if known is not None and known._source is schema:
        return known
    try:
        _weigh(schema)
        text = _encoder.encode(schema)
    except (TypeError, ValueError, RecursionError):
        return Pinned(schema)  # not JSON or too large: no cache key
    known = _by_text.get(text)
    if known is None:
        if len(_by_text) >= KEPT:
            _by_text.clear()
            _by_place.clear()
        known = _by_text[text] = Pinned(schema)
        _by_place[id(schema)] = known
    return known


_WORDS = frozenset({"title", "description", "examples", "$comment", "$schema", "$id"})
"""Keywords that describe a value without restricting it."""
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose keys are names of the tool and not keywords."""


def _rules(node: Any, is_named: bool = False) -> Any:
    """Return a schema without annotations."""
    if isinstance(node, Mapping):
        return {
            str(key): _rules(value, not is_named and key in _NAMED)
            for key, value in node.items()
            if is_named or key not in _WORDS
        }
    return [_rules(value) for value in node] if isinstance(node, list | tuple) else node


def _weigh(schema: Schema) -> None:
    """Raise if a schema is too large.

    Shared values count each time, since a small schema can expand to a very large one.
    """
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
    """Return all violations of the schema, or an empty list if it cannot be read."""
    return judged(arguments, schema) or []


def judged(arguments: Mapping[str, Any], schema: Schema) -> list[Fault] | None:
    """Return all violations, or None if the schema is invalid or the arguments are not JSON."""
    return pinned(schema).faults(arguments)


def _refuse(uri: str) -> Any:
    raise ValueError(f"references are not followed: {uri}")


def _node(schema: Schema, path: list[str | int]) -> tuple[Any, Any]:
    """Return the schema node that contains the last part of a path, and the value at its end."""
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
    """Return the node, or the target of its reference within the schema."""
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
