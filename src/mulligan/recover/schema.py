"""Validation of arguments against a tool's schema, with the path of every violation.

A schema is used as it was when first seen (SAFETY S1), converted to JSON Schema (`schema_dialects.py`), and may have no
external references (S6).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from mulligan.recover.schema_cost import MAX_CALL_VALUES, MAX_DETAILED_VALUES, is_affordable, measure_extent
from mulligan.recover.schema_dialects import SchemaTooLargeError, to_json_schema

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]

MAX_CACHED_SCHEMAS = 256
"""Compiled schemas in the cache. An agent has a few dozen tools."""

MAX_SCHEMA_VALUES = 100_000
"""Values in a schema, including enums and defaults."""


class SchemaViolation(NamedTuple):
    """One violation of a schema by the arguments."""

    path: Path
    rule: str
    limit: Any
    message: str
    node: Any = None
    """The part of the schema that contains the rule."""


class CompiledSchema:
    """A schema as it was when first seen, with its validator, which is created on first use."""

    __slots__ = ("_affordable", "_digest", "_source", "_validator", "schema")

    def __init__(self, source: Schema) -> None:
        self._source = source  # held, so that its id cannot be reused by another schema
        self.schema: dict[str, Any] | None
        try:
            _check_size(source)
            self.schema = to_json_schema(source)
        except (SchemaTooLargeError, RecursionError, TypeError, AttributeError):
            self.schema = None
        self._validator: Any = None
        self._affordable: dict[int, bool] = {}
        self._digest: str | None = None

    @property
    def digest(self) -> str:
        """Return a hash of the schema's rules. Titles and descriptions do not change it."""
        if self._digest is None:
            from hashlib import blake2b  # lazy: needed for failures only, and it loads OpenSSL

            rules = {} if self.schema is None else _strip_annotations(self.schema)
            encoded_rules = msgspec.json.encode(rules, order="sorted", enc_hook=str)
            self._digest = blake2b(encoded_rules, digest_size=8).hexdigest() if rules else ""
        return self._digest

    def unusable_reason(self) -> str:
        """Return why the schema cannot be used for validation, or an empty string."""
        if self.schema is None:
            return "it is too large or contains values that JSON does not allow"
        try:
            import jsonschema_rs  # created the same way as for the first call

            jsonschema_rs.validator_for(self.schema, retriever=_reject_reference)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            return str(error).splitlines()[0] if str(error) else type(error).__name__
        return ""

    def find_violations(self, arguments: Mapping[str, Any]) -> list[SchemaViolation] | None:
        """Return all violations by the arguments, or None if they cannot be validated."""
        schema = self.schema
        if schema is None:
            return None
        depth, values = measure_extent(arguments)
        if values > MAX_CALL_VALUES or not self._is_affordable(schema, arguments, depth):
            return None
        try:
            if self._validator is None:
                import jsonschema_rs  # lazy: 25 ms, needed for failures and checked calls only

                self._validator = jsonschema_rs.validator_for(schema, retriever=_reject_reference)
            if values > MAX_DETAILED_VALUES:
                return [] if self._validator.is_valid(dict(arguments)) else None
            errors = list(self._validator.iter_errors(dict(arguments)))
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None
        violations = []
        for error in errors:
            if type(error.kind).__name__ == "BacktrackLimitExceeded":
                return None  # the pattern is too expensive, so the result is unknown
            if error.schema_path:
                node, limit = _find_node(schema, error.schema_path)
                violations.append(
                    SchemaViolation(tuple(error.instance_path), str(error.schema_path[-1]), limit, error.message, node)
                )
        return violations

    def _is_affordable(self, schema: Schema, arguments: Mapping[str, Any], depth: int) -> bool:
        cached_answer = self._affordable.get(depth)
        if cached_answer is None:
            cached_answer = self._affordable[depth] = is_affordable(schema, arguments)
        return cached_answer


cache_by_id: dict[int, CompiledSchema] = {}
cache_by_text: dict[bytes, CompiledSchema] = {}
_encoder = msgspec.json.Encoder()


def compile_schema(schema: Schema) -> CompiledSchema:
    """Return the compiled schema from the cache, by object or by equal text, or compile it."""
    compiled = cache_by_id.get(id(schema))
    if compiled is not None and compiled._source is schema:
        return compiled
    try:
        _check_size(schema)
        text = _encoder.encode(schema)
    except (TypeError, ValueError, RecursionError):
        return CompiledSchema(schema)  # not JSON or too large: no cache key
    compiled = cache_by_text.get(text)
    if compiled is None:
        if len(cache_by_text) >= MAX_CACHED_SCHEMAS:
            cache_by_text.clear()
            cache_by_id.clear()
        compiled = cache_by_text[text] = CompiledSchema(schema)
        cache_by_id[id(schema)] = compiled
    return compiled


_ANNOTATION_KEYWORDS = frozenset({"title", "description", "examples", "$comment", "$schema", "$id"})
"""Keywords that describe a value without restricting it."""
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose keys are names of the tool and not keywords."""


def _strip_annotations(node: Any, is_named: bool = False) -> Any:
    """Return a schema without annotations."""
    if isinstance(node, Mapping):
        return {
            str(key): _strip_annotations(value, not is_named and key in _NAMED)
            for key, value in node.items()
            if is_named or key not in _ANNOTATION_KEYWORDS
        }
    return [_strip_annotations(value) for value in node] if isinstance(node, list | tuple) else node


def _check_size(schema: Schema) -> None:
    """Raise if a schema is too large.

    Shared values count each time, since a small schema can expand to a very large one.
    """
    remaining = MAX_SCHEMA_VALUES
    pending: list[Any] = [schema]
    while pending:
        node = pending.pop()
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list | tuple) else ()
        remaining -= 1 + len(children)
        if remaining < 0:
            raise SchemaTooLargeError
        pending.extend(children)


def find_violations(arguments: Mapping[str, Any], schema: Schema) -> list[SchemaViolation]:
    """Return all violations of the schema, or an empty list if it cannot be read."""
    return validate_or_none(arguments, schema) or []


def validate_or_none(arguments: Mapping[str, Any], schema: Schema) -> list[SchemaViolation] | None:
    """Return all violations, or None if the schema is invalid or the arguments are not JSON."""
    return compile_schema(schema).find_violations(arguments)


def _reject_reference(uri: str) -> Any:
    raise ValueError(f"external references are not supported: {uri}")


def _find_node(schema: Schema, path: list[str | int]) -> tuple[Any, Any]:
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


def resolve_reference(node: Any, root: Schema, hops: int = 8) -> Any:
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
