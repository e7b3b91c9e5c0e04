"""Validation of arguments against a tool's schema, with the path of every violation.

A schema is used as it was when first seen (SAFETY S1), converted to JSON Schema from the dialects of providers and
frameworks. It may have no external references, and its validation cost is estimated before anything is validated (S6).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from mulligan.core import fork_safety

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]

MAX_CACHED_SCHEMAS = 256
"""Compiled schemas in the cache. An agent has a few dozen tools."""
MAX_SCHEMA_DEPTH = 64
MAX_SCHEMA_NODES = 20_000
"""Schema nodes that one validation may visit. The largest schemas of real tools need a few hundred."""
MAX_NESTING_DEPTH = 64
MAX_DETAILED_VALUES = 10_000
"""Values of a call up to which each violation is located. The validator returns all violations at once."""
MAX_CALL_VALUES = 1_000_000
"""Values of a call up to which it is validated. A few lists that contain each other can represent any number of
values."""


class SchemaRejectedError(ValueError):
    """A schema that is not used: it is too large or has external references."""


class SchemaViolation(NamedTuple):
    path: Path
    rule: str
    limit: Any
    message: str
    node: Any = None
    """The part of the schema that contains the rule."""


class CompiledSchema:
    """A schema as it was when first seen, with its validator, which is created on first use."""

    __slots__ = ("_affordable", "_source", "_validator", "schema")

    def __init__(self, source: Schema) -> None:
        self._source = source  # held, so that its id cannot be reused by another schema
        self.schema: dict[str, Any] | None
        try:
            self.schema = to_json_schema(source)
        except (SchemaRejectedError, RecursionError, TypeError, AttributeError):
            self.schema = None
        self._validator: Any = None
        self._affordable: dict[int, bool] = {}

    @property
    def digest(self) -> str:
        """Return a hash of the schema's rules. Titles and descriptions do not change it."""
        with fork_safety.import_lock:
            from hashlib import blake2b  # lazy: needed for failures only, and it loads OpenSSL

        rules = {} if self.schema is None else _strip_annotations(self.schema)
        encoded_rules = msgspec.json.encode(rules, order="sorted", enc_hook=str)
        return blake2b(encoded_rules, digest_size=8).hexdigest() if rules else ""

    @property
    def properties(self) -> Mapping[str, Any]:
        """Return the arguments that the schema declares, with their schemas."""
        properties = (self.schema or {}).get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def find_node(self, path: str) -> Mapping[str, Any] | None:
        """Return the schema of the argument at a path such as `filter.days`, or None if it is not declared."""
        root = self.schema or {}
        node: Any = root
        for part in path.split("."):
            resolved = resolve_reference(node, root)
            properties = resolved.get("properties")
            node = properties.get(part) if isinstance(properties, Mapping) else None
            if node is None and part.isdigit():
                node = resolved.get("items")
            if not isinstance(node, Mapping):
                return None
        resolved_node: Mapping[str, Any] = resolve_reference(node, root)
        return resolved_node

    def _build_validator(self) -> Any:
        if self._validator is None:
            with fork_safety.import_lock:
                import jsonschema_rs  # lazy: 25 ms, needed for failures and checked calls only

            self._validator = jsonschema_rs.validator_for(self.schema or {}, retriever=_reject_reference)
        return self._validator

    def unusable_reason(self) -> str:
        """Return why the schema cannot be used for validation, or an empty string."""
        if self.schema is None:
            return "it is too large or contains values that JSON does not allow"
        try:
            self._build_validator()
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            return str(error).splitlines()[0] if str(error) else type(error).__name__
        return ""

    def find_violations(self, arguments: Mapping[str, Any]) -> list[SchemaViolation] | None:
        """Return all violations by the arguments, or None if they cannot be validated."""
        schema = self.schema
        if schema is None:
            return None
        depth, values = measure_extent(arguments)
        if depth not in self._affordable:
            self._affordable[depth] = is_affordable(schema, depth)
        if values > MAX_CALL_VALUES or not self._affordable[depth]:
            return None
        try:
            validator = self._build_validator()
            if values > MAX_DETAILED_VALUES:
                return [] if validator.is_valid(dict(arguments)) else None
            errors = list(validator.iter_errors(dict(arguments)))
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None
        violations = []
        for error in errors:
            if type(error.kind).__name__ == "BacktrackLimitExceeded":
                return None  # the pattern is too expensive, so the result is unknown
            if error.schema_path:
                *node_path, rule = error.schema_path
                node = _walk(schema, node_path)
                limit = _walk(node, [rule])
                violations.append(SchemaViolation(tuple(error.instance_path), str(rule), limit, error.message, node))
        return violations

    def accepts(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether validation finds no violation, or is not possible."""
        return not self.find_violations(arguments)


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


def validate_or_none(arguments: Mapping[str, Any], schema: Schema) -> list[SchemaViolation] | None:
    """Return all violations, or None if the schema is invalid or the arguments are not JSON."""
    return compile_schema(schema).find_violations(arguments)


_NAMED_KEYWORDS = frozenset("properties patternProperties $defs definitions dependentSchemas".split())
"""Keywords whose keys are names of the tool and not keywords."""
_ANNOTATION_KEYWORDS = frozenset("title description examples $comment $schema $id".split())
"""Keywords that describe a value without restricting it."""


def _strip_annotations(node: Any, is_named: bool = False) -> Any:
    """Return a schema without annotations."""
    if isinstance(node, Mapping):
        return {
            str(key): _strip_annotations(value, not is_named and key in _NAMED_KEYWORDS)
            for key, value in node.items()
            if is_named or key not in _ANNOTATION_KEYWORDS
        }
    return [_strip_annotations(value) for value in node] if isinstance(node, list | tuple) else node


def _reject_reference(uri: str) -> Any:
    raise ValueError(f"external references are not supported: {uri}")


def _walk(node: Any, path: Iterable[str | int]) -> Any:
    """Return the value at a path in a schema, or None."""
    for part in path:
        try:
            node = node[int(part)] if isinstance(node, list) else node[part]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return node


def resolve_reference(node: Any, root: Schema, hops: int = 8) -> Any:
    """Return the node, or the target of its reference within the schema."""
    while isinstance(node, Mapping) and isinstance(node.get("$ref"), str) and hops:
        if not node["$ref"].startswith("#"):
            return node
        node, hops = _follow_reference(node["$ref"], root), hops - 1
    return node if isinstance(node, Mapping) else {}


def _follow_reference(reference: str, root: Schema) -> Any:
    """Return the target of a reference within the schema, or None."""
    parts = reference[1:].split("/")[1:]
    return _walk(root, [part.replace("~1", "/").replace("~0", "~") for part in parts])


# Dialects: type aliases, wrappers, provider formats. Unknown keywords stay unchanged. If the validator rejects the
# schema, nothing is repaired.

_TYPE_ALIASES = {
    alias: json_type
    for json_type, aliases in {
        "object": "object dict dictionary map struct hashmap",
        "number": "number float double decimal",
        "integer": "integer int long short byte bigint",
        "boolean": "boolean bool",
        "string": "string str text char",
        "array": "array list tuple set arraylist",
        "null": "null none nonetype",
    }.items()
    for alias in aliases.split()
}
_ANY_TYPE = frozenset("any anytype mixed type_unspecified".split())
_PARAMETER_PATHS = (
    ("parameters",),
    ("inputSchema",),
    ("input_schema",),
    ("function", "parameters"),
    ("parametersJsonSchema",),
)
"""Paths of the argument schema in a tool description: OpenAI, MCP, Anthropic, OpenAI nested, Gemini."""
_SCHEMA_KEYWORDS = frozenset(
    (
        "anyOf oneOf allOf prefixItems items additionalProperties additionalItems not contains if then else "
        "propertyNames unevaluatedProperties"
    ).split()
)
"""Keywords with a schema or a list of schemas."""


def to_json_schema(schema: Schema) -> dict[str, Any]:
    """Convert an argument schema, given alone or inside a tool description, to JSON Schema."""
    _check_size(schema)
    mapped: dict[str, Any] = _map_node(_find_parameters_schema(schema), 0)
    return mapped


def _check_size(schema: Schema) -> None:
    """Raise if a schema is too large.

    Shared values count each time, since a small schema can expand to a very large one.
    """
    max_depth = 3 * MAX_SCHEMA_DEPTH
    depth, values = _measure_extent(schema, max_depth, {})
    # Values in a schema, including enums and defaults.
    if depth >= max_depth or values > 100_000:
        raise SchemaRejectedError


def _find_parameters_schema(description: Schema) -> Schema:
    if "properties" in description or "$ref" in description or description.get("type", "function") != "function":
        return description
    candidates = (_walk(description, path) for path in _PARAMETER_PATHS)
    return next((inner for inner in candidates if isinstance(inner, Mapping)), description)


def _map_node(node: Any, depth: int) -> Any:
    if not isinstance(node, Mapping):
        return node
    if depth > MAX_SCHEMA_DEPTH:
        raise SchemaRejectedError
    mapped: dict[str, Any] = {}
    for keyword, value in node.items():
        if keyword in _NAMED_KEYWORDS and isinstance(value, Mapping):
            mapped[keyword] = {name: _map_node(child, depth + 1) for name, child in value.items()}
        elif keyword in _SCHEMA_KEYWORDS and isinstance(value, list):
            mapped[keyword] = [_map_node(child, depth + 1) for child in value]
        elif keyword in _SCHEMA_KEYWORDS:
            mapped[keyword] = _map_node(value, depth + 1)
        elif keyword == "type":
            _map_type(mapped, value)
        elif keyword == "required" and not isinstance(value, list | tuple):
            continue  # `required: true` on the argument itself, as in draft 3
        elif keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
            continue  # draft 4: the bound is moved below
        elif keyword != "nullable":
            mapped[keyword] = list(value) if isinstance(value, tuple) and keyword in ("required", "enum") else value
    for keyword, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if node.get(keyword) is True and bound in mapped:
            mapped[keyword] = mapped.pop(bound)
    if isinstance(enum := mapped.get("enum"), list) and len(enum) <= 200:
        mapped["enum"] = [
            member
            for at, member in enumerate(enum)
            if not any(type(member) is type(earlier) and member == earlier for earlier in enum[:at])
        ]
    if node.get("nullable") is True:
        _allow_null(mapped)
    if isinstance(mapped.get("properties"), Mapping) and "required" in mapped:
        mapped["required"] = list(dict.fromkeys(name for name in mapped["required"] if isinstance(name, str)))
    return mapped


def _map_type(mapped: dict[str, Any], value: Any) -> None:
    types: list[Any] = []
    for name in value if isinstance(value, list | tuple) else [value]:
        word = name.strip().casefold() if isinstance(name, str) else ""
        if word in _ANY_TYPE:
            return  # any type: omit the keyword
        types.append(_TYPE_ALIASES.get(word, name))
    types = list(dict.fromkeys(types)) if all(isinstance(json_type, str) for json_type in types) else types
    mapped["type"] = types[0] if len(types) == 1 else types


def _allow_null(mapped: dict[str, Any]) -> None:
    """Allow null, which Gemini and OpenAPI declare by a separate keyword."""
    json_type = mapped.get("type")
    types = [json_type] if isinstance(json_type, str) else json_type
    if isinstance(types, list) and "null" not in types:
        mapped["type"] = [*types, "null"]
    if isinstance(mapped.get("enum"), list) and None not in mapped["enum"]:
        mapped["enum"] = [*mapped["enum"], None]


# Cost of validating an untrusted schema, estimated without validating it

_DESCENDING_KEYWORDS = frozenset(
    (
        "properties patternProperties additionalProperties unevaluatedProperties items prefixItems additionalItems "
        "unevaluatedItems contains"
    ).split()
)
"""Keywords that descend one level in the arguments. All others stay on the same level."""
_IGNORED_KEYWORDS = frozenset("$defs definitions enum const default examples required type title description".split())
"""Keywords without a schema, or with one that counts only if it is referenced."""


def is_affordable(schema: Schema, depth: int) -> bool:
    """Return whether a schema can be validated in bounded time for arguments of a depth, without external references.

    A few references that each name the next one twice double the work with every line, so the cost of a schema can far
    exceed its size.
    """
    costs: dict[tuple[int, int], int] = {}

    def count_nodes(node: Any, depth: int) -> int:
        """Count the nodes on all paths, with one visit per node and depth."""
        if not isinstance(node, Mapping | list):
            return 0
        key = id(node), depth
        if key not in costs:
            if len(costs) >= MAX_SCHEMA_NODES:
                raise SchemaRejectedError
            costs[key] = 0  # a cycle at one depth: the validator stops there too
            costs[key] = sum(count_nodes(*child) for child in _iter_children(node, depth, schema))
            costs[key] += isinstance(node, Mapping)
        return costs[key]

    try:
        return count_nodes(schema, depth) <= MAX_SCHEMA_NODES
    except (SchemaRejectedError, RecursionError):
        return False


def _iter_children(node: Any, depth: int, root: Schema) -> Iterator[tuple[Any, int]]:
    """Yield the schemas in a node, with the remaining depth of the arguments."""
    if isinstance(node, list):
        yield from ((item, depth) for item in node)
        return
    for keyword, inner in node.items():
        if keyword in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(inner, str):
            # Only references within the schema: others lead to the network or to files.
            if keyword != "$ref" or not (inner == "#" or inner.startswith("#/")):
                raise SchemaRejectedError
            if (target := _follow_reference(inner, root)) is None:
                raise SchemaRejectedError
            yield target, depth
        elif keyword not in _IGNORED_KEYWORDS:
            inner_depth = depth - 1 if keyword in _DESCENDING_KEYWORDS else depth
            has_names = keyword in _NAMED_KEYWORDS and isinstance(inner, Mapping)
            for child in inner.values() if has_names else [inner]:
                if inner_depth >= 0:
                    yield child, inner_depth


def field_name(path: Path) -> str:
    return next((part for part in reversed(path) if isinstance(part, str)), "")


def iter_scalars(value: Any, max_members: int = 20, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the scalar values of a call with their paths, bounded in depth and number."""
    if len(path) > 4:
        return
    if isinstance(value, Mapping):
        for name, inner in islice(value.items(), max_members):
            if isinstance(name, str):
                yield from iter_scalars(inner, max_members, (*path, name))
    elif isinstance(value, list):
        for at, inner in enumerate(value[:20]):
            yield from iter_scalars(inner, max_members, (*path, at))
    else:
        yield path, value


def measure_extent(value: object) -> tuple[int, int]:
    """Return the nesting depth of a value and how many values it contains. A shared value counts each time."""
    return _measure_extent(value, MAX_NESTING_DEPTH, {})


def _measure_extent(value: object, limit: int, extents: dict[tuple[int, int], tuple[int, int]]) -> tuple[int, int]:
    if limit <= 0 or not isinstance(value, Mapping | list | tuple):
        return 0, 1
    key = id(value), limit
    if key not in extents:  # visited once per depth, which also ends cycles
        deepest, count = 0, 1
        for item in value.values() if isinstance(value, Mapping) else value:
            if isinstance(item, Mapping | list | tuple):
                item_depth, item_count = _measure_extent(item, limit - 1, extents)
                deepest, count = max(deepest, item_depth), count + item_count
            else:
                count += 1
        extents[key] = deepest + 1, count
    return extents[key]
