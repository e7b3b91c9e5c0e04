"""Function signatures: converts positional and keyword arguments to a dictionary and back, and to JSON schema."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

REST = "*"
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
        self._names = [each.name for each in parameters if each.kind in _POSITIONAL]
        self._unnameable = frozenset(each.name for each in parameters if each.kind is each.POSITIONAL_ONLY)
        self._schema: dict[str, Any] | None = None
        self._is_read = False

    @property
    def names(self) -> list[str]:
        """The names of its arguments."""
        own = self._parameters[1:] if self.is_method else self._parameters
        return [each.name for each in own if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]

    def default(self, name: str) -> Any:
        """Return the default of an argument, or None."""
        own = next((each for each in self._parameters if each.name == name), None)
        return None if own is None or own.default is own.empty else own.default

    @property
    def is_open(self) -> bool:
        """Whether it accepts arguments of any name, or its parameters are unknown."""
        return not self._parameters or self.takes_any_name

    @property
    def takes_any_name(self) -> bool:
        """Whether it may accept unlisted names: it has `**`, or Python cannot determine its signature."""
        return self._signature is None or any(each.kind is each.VAR_KEYWORD for each in self._parameters)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, without `self`. Additional positional arguments are stored under
        `*`."""
        bound = dict(zip(self._names, args, strict=False))
        if len(args) > len(self._names):
            bound[REST] = list(args[len(self._names) :])
        if self._unnameable:
            for name, value in kwargs.items():
                bound[f"**{name}" if name in self._unnameable else name] = value
        else:
            bound.update(kwargs)
        if self.is_method and self._names and args:
            bound.pop(self._names[0], None)
        return bound

    @property
    def places(self) -> list[str]:
        """The names of its positional arguments."""
        return self._names[1:] if self.is_method else self._names

    @property
    def nameable(self) -> list[str]:
        """The names that can be passed as keywords."""
        return [name for name in self.names if name not in self._unnameable]

    def can_name(self, name: str) -> bool:
        """Return whether `bind` stores an argument under this name unchanged."""
        return name.isidentifier() and name not in self._unnameable and not (self.is_method and name in self._names[:1])

    def spread(self, arguments: Mapping[str, Any], args: tuple[Any, ...] = ()) -> tuple[list[Any], dict[str, Any]]:
        """Split arguments by name into positional and keyword arguments. Positional ones of the original call stay
        so."""
        positional = list(args)
        named: dict[str, Any] = {}
        rest = dict(arguments)
        rest.pop(REST, None)
        for place, name in enumerate(self._names):
            if name not in rest:
                continue
            if place < len(positional):
                positional[place] = rest.pop(name)
            elif place == len(positional) and name in self._unnameable:
                positional.append(rest.pop(name))
        for name, value in rest.items():
            named[name.removeprefix("**") if isinstance(name, str) else name] = value
        return positional, named

    def refuses(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
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
        from mulligan.capture.annotations import described  # lazy: needed only to offer tools to a model

        return described(self._function)[0]

    def schema(self) -> dict[str, Any] | None:
        """Return the parameters as JSON schema, or None if they are unknown. Parameters without annotation accept
        anything."""
        if not self._is_read:
            try:
                self._schema = self._read()
            except Exception:  # noqa: BLE001 - annotations may be arbitrary code
                self._schema = None
            self._is_read = True
        return self._schema

    def _read(self) -> dict[str, Any] | None:
        if self._signature is None:
            return None
        hints = _hints(self._function)
        parameters = self._parameters[1:] if self.is_method else self._parameters
        named = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        # lazy: takes 10 ms, needed only for failures and checked calls
        from mulligan.capture.annotations import described

        _, about = described(self._function)
        return {
            "type": "object",
            "properties": {each.name: _parameter(each, hints, about.get(each.name, "")) for each in named},
            "required": [each.name for each in named if each.default is each.empty],
            "additionalProperties": any(each.kind is each.VAR_KEYWORD for each in parameters),
        }


def _parameter(parameter: inspect.Parameter, hints: Mapping[str, Any], about: str) -> dict[str, Any]:
    from mulligan.capture.annotations import as_schema, with_default

    found = with_default(as_schema(hints.get(parameter.name, parameter.annotation)), parameter.default)
    return {**found, "description": about} if about and "description" not in found else found


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


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
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
