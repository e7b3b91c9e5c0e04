"""Function signatures: converts positional and keyword arguments to a dictionary and back, and to JSON schema."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

EXTRA_POSITIONAL_KEY = "*"
"""The key for additional positional arguments. A keyword that equals a positional-only name is stored as `**name`."""


class Signature:
    """The parameters of a function, analyzed once."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature: inspect.Signature | None
        try:
            self._signature = inspect.signature(function)
        except Exception:  # noqa: BLE001 - some built-ins have no signature, and some objects raise other errors
            self._signature = None
        parameters = list(self._signature.parameters.values()) if self._signature is not None else []
        self._parameters = parameters
        self.is_method = _is_method(function, parameters)
        self._names = [parameter.name for parameter in parameters if parameter.kind in _POSITIONAL]
        self._positional_only = frozenset(
            parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY
        )
        self._schema: dict[str, Any] | None = None
        self._is_read = False

    @property
    def names(self) -> list[str]:
        """The names of its arguments."""
        parameters = self._parameters[1:] if self.is_method else self._parameters
        return [
            parameter.name
            for parameter in parameters
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]

    def default(self, name: str) -> Any:
        """Return the default of an argument, or None."""
        parameter = next((candidate for candidate in self._parameters if candidate.name == name), None)
        return None if parameter is None or parameter.default is parameter.empty else parameter.default

    @property
    def is_unrestricted(self) -> bool:
        """Whether it accepts arguments of any name, or its parameters are unknown."""
        return not self._parameters or self.takes_any_name

    @property
    def takes_any_name(self) -> bool:
        """Whether it may accept unlisted names: it has `**`, or Python cannot determine its signature."""
        return self._signature is None or any(parameter.kind is parameter.VAR_KEYWORD for parameter in self._parameters)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, without `self`. Additional positional arguments are stored under
        `*`."""
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

    @property
    def positional_names(self) -> list[str]:
        """The names of its positional arguments."""
        return self._names[1:] if self.is_method else self._names

    @property
    def keyword_names(self) -> list[str]:
        """The names that can be passed as keywords."""
        return [name for name in self.names if name not in self._positional_only]

    def can_name(self, name: str) -> bool:
        """Return whether `bind` stores an argument under this name unchanged."""
        return (
            name.isidentifier()
            and name not in self._positional_only
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

    @property
    def description(self) -> str:
        """The first paragraph of the docstring."""
        from mulligan.capture.annotations import parse_docstring  # lazy: needed only to offer tools to a model

        return parse_docstring(self._function)[0]

    def schema(self) -> dict[str, Any] | None:
        """Return the parameters as JSON schema, or None if they are unknown. Parameters without annotation accept
        anything."""
        if not self._is_read:
            try:
                self._schema = self._build_schema()
            except Exception:  # noqa: BLE001 - annotations may be arbitrary code
                self._schema = None
            self._is_read = True
        return self._schema

    def _build_schema(self) -> dict[str, Any] | None:
        if self._signature is None:
            return None
        hints = _type_hints(self._function)
        parameters = self._parameters[1:] if self.is_method else self._parameters
        named_parameters = [
            parameter
            for parameter in parameters
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        # lazy: takes 10 ms, needed only for failures and checked calls
        from mulligan.capture.annotations import parse_docstring

        _, descriptions = parse_docstring(self._function)
        return {
            "type": "object",
            "properties": {
                parameter.name: _parameter_schema(parameter, hints, descriptions.get(parameter.name, ""))
                for parameter in named_parameters
            },
            "required": [parameter.name for parameter in named_parameters if parameter.default is parameter.empty],
            "additionalProperties": any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters),
        }


def _parameter_schema(parameter: inspect.Parameter, hints: Mapping[str, Any], description: str) -> dict[str, Any]:
    from mulligan.capture.annotations import annotation_to_schema, with_default

    schema = with_default(annotation_to_schema(hints.get(parameter.name, parameter.annotation)), parameter.default)
    return {**schema, "description": description} if description and "description" not in schema else schema


def code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the underlying function, whose flags tell sync from async: of a partial, or an object's `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the function or class behind it."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) and name else type(function).__name__


def qualified_name_of(function: Callable[..., Any]) -> str:
    """Return `module:qualname` of a function, or of an object's class; empty if Python does not know it."""
    while isinstance(function, functools.partial):
        function = function.func
    owner = function if isinstance(getattr(function, "__qualname__", None), str) else type(function)
    module = getattr(owner, "__module__", None)
    return f"{module}:{owner.__qualname__}" if isinstance(module, str) and module else ""


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(code_of(function), include_extras=True)
    except Exception:  # noqa: BLE001 - names may be undefined
        return {}


def _is_method(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> bool:
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str) or not inspect.isfunction(function):
        return False
    is_inside_class = "." in name and not name.rpartition(".")[0].endswith("<locals>")
    return bool(is_inside_class and parameters and parameters[0].name in ("self", "cls"))
