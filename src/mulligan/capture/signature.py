"""Function signatures: converts positional and keyword arguments to a dictionary and back, and to JSON schema."""

from __future__ import annotations

import collections.abc
import contextlib
import enum
import functools
import inspect
import itertools
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from mulligan.capture.framework_classes import INJECTED_TYPES, is_injected
from mulligan.redaction.lazy_property import lazy_property
from mulligan.redaction.regex import LazyRegex

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

EXTRA_POSITIONAL_KEY = "*"
"""The key for additional positional arguments. A keyword that equals a positional-only name is stored as `**name`."""


class Signature:
    """The parameters of a function, analyzed once.

    Injected parameters are not arguments: `bind` and `schema` leave them out. `exclude` names some of them, a partial
    supplies others, and `declared` names parameters that are arguments in any case.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        exclude: Iterable[str] = (),
        injected_types: Callable[[], Collection[str]] = lambda: INJECTED_TYPES,
        declared: Collection[str] = (),
    ) -> None:
        self._function = function
        supplied = function.keywords if isinstance(function, functools.partial) else ()
        self._excluded = frozenset(exclude) | {name for name in supplied if name not in declared}
        self._declared = declared
        self._injected_types = injected_types
        self._signature: inspect.Signature | None = None
        with contextlib.suppress(Exception):  # some built-ins have no signature, and some objects raise other errors
            self._signature = inspect.signature(function)
        parameters = list(self._signature.parameters.values()) if self._signature is not None else []
        self.is_method = _is_method(function, parameters)
        self._names = [parameter.name for parameter in parameters if parameter.kind in _POSITIONAL]
        self._positional_only = frozenset(
            parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY
        )
        self._parameters = {
            parameter.name: parameter
            for parameter in (parameters[1:] if self.is_method else parameters)
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        }
        self.names = list(self._parameters)
        self._has_keywords = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        self.takes_any_name = self._signature is None or self._has_keywords
        """Whether it may accept unlisted names: it has `**`, or Python cannot determine its signature."""
        self.is_unrestricted = not parameters or self.takes_any_name
        """Whether it accepts arguments of any name, or its parameters are unknown."""

    @lazy_property
    def injected(self) -> frozenset[str]:
        """The names of parameters that a framework or the program supplies: see `framework_classes.py`.

        Found at the first call, because annotations may name classes that are defined after the function.
        """
        names = set(self._excluded)
        with contextlib.suppress(Exception):  # annotations may be arbitrary code
            injected_types = self._injected_types()
            for name, parameter in self._parameters.items():
                annotation = self.annotations[name]
                if isinstance(annotation, str):
                    function = code_of(self._function)
                    annotation = _resolve_annotation(annotation, function, _AnnotationNames(function))
                if name not in self._declared and is_injected(annotation, parameter.default, injected_types):
                    names.add(name)
        return frozenset(names)

    @property
    def unbound(self) -> list[str]:
        """The injected parameters without a default: someone must supply them."""
        return [name for name in self.names if name in self.injected and self._is_required(name)]

    @property
    def positional_names(self) -> list[str]:
        """The names of its positional arguments, up to the first injected one: later ones have no position here."""
        names = self._names[1:] if self.is_method else self._names
        return list(itertools.takewhile(lambda name: name not in self.injected, names))

    @property
    def keyword_names(self) -> list[str]:
        """The names of arguments that can be passed as keywords."""
        return [name for name in self.names if name not in self._positional_only and name not in self.injected]

    def _is_required(self, name: str) -> bool:
        return self._parameters[name].default is inspect.Parameter.empty

    def default(self, name: str) -> Any:
        """Return the default of an argument, or None."""
        parameter = self._parameters.get(name)
        return None if parameter is None or parameter.default is parameter.empty else parameter.default

    @property
    def defaults(self) -> dict[str, Any]:
        return {name: self.default(name) for name in self.keyword_names if not self._is_required(name)}

    def has_default(self, name: str, default: Any) -> bool:
        return name in self._parameters and self._parameters[name].default is default

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, without `self` and injected ones. Additional positional arguments
        are stored under `*`."""
        bound = self._bind_all(args, kwargs)
        for name in self.injected:
            bound.pop(name, None)
        return bound

    def bind_injected(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the injected values of a call by name."""
        if not self.injected:
            return {}
        return {name: value for name, value in self._bind_all(args, kwargs).items() if name in self.injected}

    def _bind_all(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        bound = dict(zip(self._names, args, strict=False))
        if len(args) > len(self._names):
            bound[EXTRA_POSITIONAL_KEY] = list(args[len(self._names) :])
        if self._positional_only:
            for name, value in kwargs.items():
                bound[f"**{name}" if name in self._positional_only else name] = value
        else:
            bound.update(kwargs)
        if self.is_method and self._names and args:
            bound.pop(self._names[0], None)
        return bound

    def can_name(self, name: str) -> bool:
        """Return whether `bind` stores an argument under this name unchanged."""
        return (
            name.isidentifier()
            and name not in self._positional_only
            and name not in self.injected
            and not (self.is_method and name in self._names[:1])
        )

    def split_arguments(
        self, arguments: Mapping[str, Any], args: tuple[Any, ...] = ()
    ) -> tuple[list[Any], dict[str, Any]]:
        """Split arguments by name into positional and keyword arguments. Positional ones of the original call stay
        so."""
        positional = list(args)
        keywords: dict[str, Any] = {}
        remaining = dict(arguments)
        remaining.pop(EXTRA_POSITIONAL_KEY, None)
        for index, name in enumerate(self._names):
            if name not in remaining:
                continue
            if index < len(positional):
                positional[index] = remaining.pop(name)
            elif index == len(positional) and name in self._positional_only:
                positional.append(remaining.pop(name))
        for name, value in remaining.items():
            keywords[name.removeprefix("**") if isinstance(name, str) else name] = value
        return positional, keywords

    def rejects_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether Python would reject the call before executing its body."""
        if self._signature is None:
            return False
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError:
            return True
        return False

    @lazy_property
    def annotations(self) -> dict[str, Any]:
        """The annotations by name. One that names something undefined stays a string."""
        function = code_of(self._function)
        annotations = {name: parameter.annotation for name, parameter in self._parameters.items()}
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except Exception:  # noqa: BLE001 - names may be undefined: resolve the others one by one
            hints = {name: _resolve_annotation(annotation, function) for name, annotation in annotations.items()}
        return {name: hints.get(name, annotation) for name, annotation in annotations.items()}

    @property
    def description(self) -> str:
        """The first paragraph of the docstring."""
        return parse_docstring(without_partial(self._function))[0]

    def schema(self) -> dict[str, Any] | None:
        """Return the parameters as JSON schema, or None if they are unknown. Parameters without annotation accept
        anything."""
        return self._schema

    @lazy_property
    def _schema(self) -> dict[str, Any] | None:
        try:
            return None if self._signature is None else self._build_schema()
        except Exception:  # noqa: BLE001 - annotations may be arbitrary code
            return None

    def _build_schema(self) -> dict[str, Any]:
        _, descriptions = parse_docstring(without_partial(self._function))
        properties: dict[str, dict[str, Any]] = {}
        for name, parameter in self._parameters.items():
            if name in self.injected:
                continue
            schema = annotation_to_schema(self.annotations[name])
            if type(parameter.default) in _TYPES:
                schema = {**schema, "default": parameter.default}
            if descriptions.get(name):
                schema = {"description": descriptions[name], **schema}
            properties[name] = schema
        return {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if self._is_required(name)],
            "additionalProperties": self._has_keywords,
        }


def _resolve_annotation(
    annotation: Any, function: Callable[..., Any], other_names: dict[str, Any] | None = None
) -> Any:
    """Return the object that an annotation names, or the annotation itself."""
    holder: Any = types.SimpleNamespace(__annotations__={"value": annotation})
    try:
        module_names = getattr(inspect.unwrap(function), "__globals__", {})
        return typing.get_type_hints(holder, module_names, other_names, include_extras=True)["value"]
    except Exception:  # noqa: BLE001 - annotations may be arbitrary code
        return annotation


class _AnnotationNames(dict[str, Any]):
    """The names in a function's annotations, if not all of them are defined.

    A class that only type checkers import is taken from its module, if that is loaded. Any other name becomes `Any`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._globals: Mapping[str, Any] = getattr(function, "__globals__", {})

    def __missing__(self, name: str) -> Any:
        builtins = vars(sys.modules["builtins"])
        for names in (self._globals, builtins, self._imports):
            if name in names:
                return names[name]
        return Any

    @lazy_property
    def _imports(self) -> dict[str, Any]:
        """What the function's module imports from loaded modules, also under `if TYPE_CHECKING`."""
        import ast  # lazy: needed only for names that are not defined at run time
        import importlib.util

        imports: dict[str, Any] = {}
        with contextlib.suppress(Exception):  # there may be no source
            module = sys.modules[self._globals["__name__"]]
            for node in ast.walk(ast.parse(inspect.getsource(module))):
                if isinstance(node, ast.ImportFrom):
                    relative_name = "." * node.level + (node.module or "")
                    source = sys.modules.get(importlib.util.resolve_name(relative_name, module.__package__))
                    for alias in node.names:
                        if hasattr(source, alias.name):
                            imports[alias.asname or alias.name] = getattr(source, alias.name)
                elif isinstance(node, ast.Import):
                    for alias in node.names:
                        loaded_name = alias.name if alias.asname else alias.name.partition(".")[0]
                        if loaded_name in sys.modules:
                            imports[alias.asname or loaded_name] = sys.modules[loaded_name]
        return imports


def without_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the underlying function, whose flags tell sync from async: of a partial, or an object's `__call__`."""
    function = without_partial(function)
    return function if inspect.isroutine(function) else type(function).__call__


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the function or class behind it."""
    function = without_partial(function)
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) and name else type(function).__name__


def qualified_name_of(function: Callable[..., Any]) -> str:
    """Return `module:qualname` of a function, or of an object's class; empty if Python does not know it."""
    function = without_partial(function)
    owner = function if isinstance(getattr(function, "__qualname__", None), str) else type(function)
    module = getattr(owner, "__module__", None)
    return f"{module}:{owner.__qualname__}" if isinstance(module, str) and module else ""


def _is_method(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> bool:
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str) or not inspect.isfunction(function):
        return False
    is_inside_class = "." in name and not name.rpartition(".")[0].endswith("<locals>")
    return bool(is_inside_class and parameters and parameters[0].name in ("self", "cls"))


# Annotations and docstrings as JSON schema. Unknown ones become `{}`: a stricter schema would reject valid calls.

MAX_NESTED_CLASSES = 6
"""Nesting depth of classes that are converted; deeper ones become `{}`."""
MAX_ENUM_MEMBERS = 200
"""Larger enums become `{}`."""
MAX_DESCRIPTION_CHARS = 500
"""Characters of a description."""

_TYPES: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_TYPES_BY_NAME = {"int": int, "float": float, "str": str, "bool": bool, "None": type(None), "list": list, "dict": dict}
"""Types of annotations that remain strings because another annotation of the function cannot be resolved."""
LIST_TYPES = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
ARRAY_TYPES = (*LIST_TYPES, tuple, set, frozenset)
OBJECT_TYPES = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_BOUNDS = {
    "ge": "minimum",
    "le": "maximum",
    "gt": "exclusiveMinimum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_LENGTHS = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}


def annotation_to_schema(annotation: Any, depth: int = 0) -> dict[str, Any]:
    """Convert an annotation to JSON schema; `{}` if JSON cannot express it."""
    if isinstance(annotation, str):
        annotation = _TYPES_BY_NAME.get(annotation.strip(), Any)
    origin = typing.get_origin(annotation)
    type_args = typing.get_args(annotation)
    if annotation is None:
        return {"type": "null"}
    if origin is typing.Annotated:
        base = annotation_to_schema(type_args[0], depth)
        return base | _constraints_to_schema(type_args[1:], base)
    if origin is typing.Required or origin is typing.NotRequired:
        return annotation_to_schema(type_args[0], depth)
    if origin is typing.Literal:
        return {"enum": list(type_args)} if all(type(member) in _TYPES for member in type_args) else {}
    if origin is typing.Union or origin is types.UnionType:
        return _union([annotation_to_schema(member, depth) for member in type_args])
    if isinstance(annotation, typing.NewType):
        return annotation_to_schema(annotation.__supertype__, depth)
    kind = annotation if origin is None else origin
    # Compare by identity: annotations may define their own equality.
    if any(kind is list_type for list_type in ARRAY_TYPES):
        return _list(kind, type_args, depth)
    if any(kind is object_type for object_type in OBJECT_TYPES):
        values = annotation_to_schema(type_args[1], depth) if len(type_args) == 2 else {}
        return {"type": "object"} | ({"additionalProperties": values} if values else {})
    return _class(annotation, depth) if isinstance(annotation, type) and origin is None else {}


def _list(kind: Any, type_args: tuple[Any, ...], depth: int) -> dict[str, Any]:
    if kind is tuple:
        type_args = type_args[:1] if len(type_args) == 2 and type_args[1] is Ellipsis else ()
    items = annotation_to_schema(type_args[0], depth) if type_args else {}
    return {"type": "array"} | ({"items": items} if items else {})


def _class(kind: Any, depth: int) -> dict[str, Any]:
    if kind in _TYPES:
        return {"type": _TYPES[kind]}
    if issubclass(kind, enum.Enum):
        members = [member.value for member in kind]
        return {"enum": members} if len(members) <= MAX_ENUM_MEMBERS and is_json_enum(kind) else {}
    if (text_schema := _text_schema(kind)) is not None:
        return text_schema
    if depth >= MAX_NESTED_CLASSES:
        return {}
    if callable(build_schema := getattr(kind, "model_json_schema", None)):  # pydantic models
        schema = build_schema()
        inlined: dict[str, Any] = _inline_references(schema, schema.get("$defs", {}))
        return inlined
    if not (typing.is_typeddict(kind) or hasattr(kind, "__dataclass_fields__")):
        return {}
    hints = typing.get_type_hints(kind, include_extras=True)
    if typing.is_typeddict(kind):
        # String annotations are resolved only here: until Python 3.13 the class counts such keys as required.
        origins = {name: typing.get_origin(hint) for name, hint in hints.items()}
        required = {name for name in getattr(kind, "__required_keys__", ()) if origins[name] is not typing.NotRequired}
        required |= {name for name, origin in origins.items() if origin is typing.Required}
        names = list(hints)
    else:
        import dataclasses  # lazy: 1 ms of every first decoration

        fields, missing = [field for field in dataclasses.fields(kind) if field.init], dataclasses.MISSING
        required = {field.name for field in fields if field.default is missing and field.default_factory is missing}
        names = [field.name for field in fields]
    return {
        "type": "object",
        "properties": {name: annotation_to_schema(hints.get(name, Any), depth + 1) for name in names},
        "required": [name for name in names if name in required],
        "additionalProperties": False,
    }


def is_json_enum(kind: type[enum.Enum]) -> bool:
    return all(type(member.value) in _TYPES for member in kind)


def _text_schema(kind: type) -> dict[str, Any] | None:
    """Return the schema of a class whose values JSON writes as texts or numbers, or None."""
    import datetime  # lazy: rarely needed
    import decimal
    import pathlib
    import uuid

    if issubclass(kind, decimal.Decimal):
        return {"type": ["string", "number"]}
    formats = {datetime.datetime: "date-time", datetime.date: "date", datetime.time: "time", uuid.UUID: "uuid"}
    for text_type, format in formats.items():
        if issubclass(kind, text_type):
            return {"type": "string", "format": format}
    return {"type": "string"} if issubclass(kind, pathlib.PurePath) else None


def _union(members: list[dict[str, Any]]) -> dict[str, Any]:
    if {} in members:
        return {}
    if all(set(member) == {"type"} for member in members):
        return {"type": [member["type"] for member in members]}
    return {"anyOf": members}


def _constraints_to_schema(marks: tuple[Any, ...], base: Mapping[str, Any]) -> dict[str, Any]:
    """Convert constraints by duck typing: supports annotated-types and pydantic's Field without importing them."""
    keywords: dict[str, Any] = {}
    shortest, longest = _LENGTHS.get(str(base.get("type")), ("", ""))
    for mark in marks:
        if isinstance(mark, str):
            keywords["description"] = mark.strip()[:MAX_DESCRIPTION_CHARS]
            continue
        description = getattr(mark, "description", None) or getattr(mark, "documentation", None)
        if isinstance(description, str):
            keywords["description"] = description.strip()[:MAX_DESCRIPTION_CHARS]
        metadata = getattr(mark, "metadata", ())
        for constraint in (mark, *(metadata if isinstance(metadata, list | tuple) else ())):
            for name, word in _BOUNDS.items():
                if _is_number(bound := getattr(constraint, name, None)):
                    keywords[word] = bound
            for name, word in (("min_length", shortest), ("max_length", longest)):
                length = getattr(constraint, name, None)
                if word and isinstance(length, int) and not isinstance(length, bool):
                    keywords[word] = length
            pattern = getattr(constraint, "pattern", None)
            if isinstance(pattern, str) and base.get("type") == "string":
                keywords["pattern"] = pattern
    return keywords


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _inline_references(schema: Any, definitions: Mapping[str, Any], depth: int = 0) -> Any:
    """Inline the references of a class's own schema: they would be invalid inside the function's schema."""
    if isinstance(schema, list):
        return [_inline_references(item, definitions, depth + 1) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    if depth > 4 * MAX_NESTED_CLASSES:
        return {}
    if isinstance(reference := schema.get("$ref"), str):
        return _inline_references(definitions.get(reference.rpartition("/")[2], {}), definitions, depth + 1)
    return {
        name: _inline_references(value, definitions, depth + 1)
        for name, value in schema.items()
        if name not in ("$defs", "title")
    }


_ARGUMENTS_HEADING = LazyRegex(r"^\s*(?:args|arguments|parameters|params)\s*:?\s*$", re.IGNORECASE)
_ENTRY = LazyRegex(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]{0,100}\))?\s*:\s+(\S.*)$")
_FIELD = LazyRegex(r"^\s*:param\s+(?:[\w.\[\], |]{1,80}\s)?(\w+)\s*:\s*(.*)$")


def parse_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the first paragraph of a docstring and the description of each parameter.

    Parses Google style (`Args:` and indented lines) and Sphinx style (`:param name:`). Ignores continuation lines.
    """
    text = getattr(function, "__doc__", None)
    if not isinstance(text, str) or not text.strip():
        return "", {}
    summary: list[str] = []
    descriptions: dict[str, str] = {}
    is_summary, is_inside = True, False
    for line in text.strip()[:20_000].splitlines():
        if field := _FIELD.match(line):
            descriptions[field[1]] = field[2].strip()[:MAX_DESCRIPTION_CHARS]
        elif _ARGUMENTS_HEADING.match(line):
            is_inside = True
        elif is_inside and (entry := _ENTRY.match(line)):
            descriptions[entry[1]] = entry[2].strip()[:MAX_DESCRIPTION_CHARS]
        elif is_inside and line.rstrip().endswith(":"):
            is_inside = False  # the next section starts
        elif is_summary and line.strip():
            summary.append(line.strip())
            continue
        is_summary = False
    return " ".join(summary)[:MAX_DESCRIPTION_CHARS], descriptions
