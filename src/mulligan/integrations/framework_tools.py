"""The tools of a framework as recovery sees them: their definitions, and a recovering function for each."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import msgspec

from mulligan import api
from mulligan.capture.call_errors import SchemaMismatchError
from mulligan.capture.call_scope import ContextValue
from mulligan.capture.context import MODES, delegated_tool, strictest
from mulligan.capture.signature import qualified_name_of
from mulligan.capture.wrap import build_wrapper
from mulligan.capture.wrapped_function import ToolOptions, WrappedFunction, wrapped_of
from mulligan.classify.tool_category import find_category
from mulligan.core.failure import SettingsError
from mulligan.core.log import get_logger
from mulligan.recover.policy import Mode, make_tool_key
from mulligan.recover.schema import validate_or_none
from mulligan.recover.schema_repair import value_at
from mulligan.redaction.regex import LazyRegex

log = get_logger(__name__)
ALL_TOOLS = "*"
"""Options under this name apply to every tool."""
REPORTED_ATTRIBUTE = "__mulligan_reported__"

Attempt = Callable[..., Any]
"""Makes one attempt: of a tool with its name and arguments, of a model with its messages. May be async."""
current_attempt: ContextVar[Attempt] = ContextVar("mulligan_attempt")


class ToolDefinition(NamedTuple):
    """A tool as a framework knows it."""

    name: str
    schema: Mapping[str, Any] | None = None
    """The JSON schema of its arguments, without those that the framework injects."""
    function: Callable[..., Any] | None = None
    """The user's function, if the framework has it. Options of `@mulligan.tool` on it apply."""
    mode: Mode | None = None
    """The most that mulligan may do, for example not repair what a person has approved. A stricter mode applies."""
    accepts: Callable[[Mapping[str, Any]], bool] | None = None
    """Whether the framework accepts arguments that violate the schema, for example "yes" for a boolean."""
    unlisted_parameters: frozenset[str] = frozenset()
    """Parameters that take arguments of the model, although the schema lists an alias in their place."""
    object_parameter: str | None = None
    """The parameter in whose place the schema lists the members of its object. The framework accepts both forms."""


class FrameworkTools:
    """The tools of the agents that one adapter object serves. `options` are those of `mulligan.tool` by tool name."""

    def __init__(self, mulligan: api.Mulligan, options: Mapping[str, Mapping[str, Any]]) -> None:
        self._mulligan = mulligan
        self._options = {name: _check_options(mulligan, name, values) for name, values in _iter_options(options)}
        self._unused_names = self._options.keys() - {ALL_TOOLS}
        """Names that no tool had so far."""
        self._definitions: dict[str, tuple[Any, ToolDefinition]] = {}
        self._functions: dict[tuple[str, bool], tuple[ToolDefinition, Callable[..., Any]]] = {}

    def define(
        self, tools: Mapping[str, Any], build: Callable[[Any], ToolDefinition], mode: Mode | None = None
    ) -> dict[str, ToolDefinition]:
        """Return the definitions of a framework's tools under these names. Each object is read once, with `build`.

        A tool whose schema cannot be read has none. `mode` is that of all of them, in this call.
        """
        self.warn_of_misspelled(tools.keys())
        return {name: self._define(name, tool, build)._replace(mode=mode) for name, tool in tools.items()}

    def warn_of_misspelled(self, names: Collection[str]) -> None:
        """Warn, once per name, of options for a tool that does not exist, if one with a similar name does.

        Others may belong to tools of another agent.
        """
        if not self._unused_names:
            return
        self._unused_names.difference_update(names)
        candidates = [name for name in names if name not in self._options]
        for unused_name in sorted(self._unused_names):
            if near := difflib.get_close_matches(unused_name, candidates, n=1, cutoff=0.75):
                self._unused_names.remove(unused_name)
                log.warning(
                    "No tool is named %r, so its options have no effect. Did you mean %r?", unused_name, near[0]
                )

    def _define(self, name: str, tool: Any, build: Callable[[Any], ToolDefinition]) -> ToolDefinition:
        cached_tool, definition = self._definitions.get(name, (None, None))
        if definition is None or cached_tool is not tool:
            definition = ToolDefinition(name)
            with self._mulligan.capture_context().guard("Reading the schema of a tool"):
                definition = build(tool)._replace(name=name)
            self._definitions[name] = tool, definition
        return definition

    def functions(self, definitions: Mapping[str, ToolDefinition], *, is_async: bool) -> dict[str, Callable[..., Any]]:
        return {name: self._function(definition, is_async) for name, definition in definitions.items()}

    def _function(self, definition: ToolDefinition, is_async: bool) -> Callable[..., Any]:
        cached_definition, function = self._functions.get((definition.name, is_async), (None, None))
        if function is None or cached_definition != definition:
            function = self._build_function(definition, is_async)
            self._functions[definition.name, is_async] = definition, function
        return function

    def _build_function(self, definition: ToolDefinition, is_async: bool) -> Callable[..., Any]:
        inner = wrapped_of(definition.function)
        options = inner.options if inner is not None else ToolOptions()
        settings = self._options.get(ALL_TOOLS, {}) | self._options.get(definition.name, {})
        settings["exclude"] = {*settings.get("exclude", options.exclude), *_find_injected(definition)}
        options = msgspec.structs.replace(options, **settings, name=definition.name, schema=None)
        if options.category is None:
            properties = (definition.schema or {}).get("properties")
            names = properties if isinstance(properties, Mapping) else ()
            category = find_category(definition.name, names, type=options.type)
            options = msgspec.structs.replace(options, category=category)
        if definition.mode is not None:
            mode = strictest(MODES, definition.mode, options.mode or self._mulligan.capture_context().mode)
            options = msgspec.structs.replace(options, mode=mode)
        call = _acall if is_async else _call
        function = functools.partial(call, definition.name, inner)
        wrapped = FrameworkTool(function, self._mulligan.capture_context, options)
        wrapped.tool_schema, wrapped.accepts = _close_schema(definition.schema), definition.accepts
        wrapped.object_parameter = definition.object_parameter
        if inner is not None:
            wrapped.key = inner.key
        else:
            qualified_name = "" if definition.function is None else qualified_name_of(definition.function)
            wrapped.key = make_tool_key(definition.name, None, qualified_name)
        return build_wrapper(wrapped)


def _iter_options(options: Any) -> Iterable[tuple[str, Any]]:
    if not isinstance(options, Mapping):
        raise SettingsError(
            f"Invalid tools {options!r}. Map names of tools to their options, "
            'for example tools={"search": {"effects": "none"}}.'
        )
    return options.items()


def _check_options(mulligan: api.Mulligan, name: str, values: Any) -> dict[str, Any]:
    """Return the options of a tool. Raise `SettingsError` if one is unknown or invalid."""
    if not isinstance(values, Mapping):
        raise SettingsError(f'Invalid options {values!r} of the tool {name!r}. Use for example {{"effects": "none"}}.')
    try:
        mulligan.tool(**values)
    except (TypeError, SettingsError) as error:
        raise SettingsError(f"Invalid options of the tool {name!r}: {error}") from None
    return dict(values)


class FrameworkTool(WrappedFunction):
    """A tool with the interface that recovery expects. Its schema comes from the framework."""

    tool_schema: Mapping[str, Any] | None = None
    accepts: Callable[[Mapping[str, Any]], bool] | None = None
    object_parameter: str | None = None

    def schema(self) -> Mapping[str, Any] | None:
        return self.tool_schema

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise `SchemaMismatchError` if arguments violate the schema and the framework does not accept them."""
        try:
            super().check(arguments)
        except SchemaMismatchError:
            # Only now: the framework validates every call itself, and a validator may be slow.
            if self.accepts is None or self.loses_meaning(arguments) or not self.accepts(arguments):
                raise

    def loses_meaning(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether the framework would execute another call: without an argument, or with 1 for True."""
        schema, values, name = self.tool_schema or {}, arguments, self.object_parameter
        if name is not None and arguments.keys() == {name} and name not in schema.get("properties", {}):
            values = arguments[name]
        violations = validate_or_none(values, schema) or ()
        return any(
            violation.rule == "additionalProperties"
            or (violation.rule == "type" and _is_ambiguous_number(value_at(values, violation.path)))
            for violation in violations
        )


def _is_ambiguous_number(value: Any) -> bool:
    """Return whether a value that is no number may be converted to one that means something else.

    "+2" may be two more, "0755" octal, and True is no number.
    """
    return isinstance(value, bool) or (isinstance(value, str) and _AMBIGUOUS_NUMBER.match(value) is not None)


_AMBIGUOUS_NUMBER = LazyRegex(r"\s*(?:\+|-?0[0-9_xob])")


def _find_injected(definition: ToolDefinition) -> set[str]:
    """Return the parameters that the framework supplies: values that a model makes up for them are dropped."""
    try:
        parameters = set(inspect.signature(definition.function or (lambda: None)).parameters)
    except (TypeError, ValueError):
        return set()
    listed_names = (definition.schema or {}).get("properties", dict.fromkeys(parameters)).keys()
    return parameters - listed_names - definition.unlisted_parameters - {definition.object_parameter}


def _close_schema(schema: Any) -> Any:
    """Return a schema that rejects unknown arguments, also of nested objects, unless it says something about them.

    Frameworks drop unknown arguments silently, and the call then does something else than the model has asked for.
    """
    if isinstance(schema, list):
        return [_close_schema(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    parts = {name: _close_schema(part) for name, part in schema.items()}
    is_open = isinstance(schema.get("properties"), Mapping) and not _COMBINING_KEYWORDS & schema.keys()
    return {"additionalProperties": False, **parts} if is_open else parts


_COMBINING_KEYWORDS = {"additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf"}
"""Keywords with which other parts of a schema may declare further names."""


def relax_schema(schema: Any) -> Any:
    """Return a schema without the demands of the strict mode, in which even properties with a default are required."""
    if isinstance(schema, list):
        return [relax_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    relaxed = {name: relax_schema(part) for name, part in schema.items()}
    if isinstance(properties := schema.get("properties"), dict) and isinstance(schema.get("required"), list):
        relaxed["required"] = [name for name in schema["required"] if not _is_optional(properties.get(name))]
    return relaxed


def _is_optional(schema: Any) -> bool:
    return isinstance(schema, dict) and ("default" in schema or {"type": "null"} in schema.get("anyOf", ()))


def _call(name: str, inner: WrappedFunction | None, /, **arguments: Any) -> Any:
    with ContextValue(delegated_tool, lambda: inner):
        return current_attempt.get()(name, arguments)


async def _acall(name: str, inner: WrappedFunction | None, /, **arguments: Any) -> Any:
    with ContextValue(delegated_tool, lambda: inner):
        return await current_attempt.get()(name, arguments)


class ReportedError(Exception):
    """An error that a tool has reported as a text, without an exception."""


def mark_reported(error: BaseException | str) -> BaseException:
    """Note on an exception that the framework has already turned it into an answer for the model, and return it."""
    exception = ReportedError(error) if isinstance(error, str) else error
    with contextlib.suppress(Exception):  # an exception may refuse attributes
        setattr(exception, REPORTED_ATTRIBUTE, True)
    return exception
