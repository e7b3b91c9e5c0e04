"""A function's parameters: from positional and named to one dictionary and back, and as a JSON schema."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

REST = "*"
"""Under this name go positions beyond the named ones; a name that is also a position's goes under `**name`."""


class Signature:
    """What is known of a function's parameters, worked out once."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature: inspect.Signature | None
        try:
            self._signature = inspect.signature(function)
        except Exception:  # noqa: BLE001 - some built-ins have none, and some objects raise whatever they like
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
        """The arguments it has, by name."""
        own = self._parameters[1:] if self.is_method else self._parameters
        return [each.name for each in own if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]

    def default(self, name: str) -> Any:
        """What an argument is where nobody gives it; None where that is not said."""
        own = next((each for each in self._parameters if each.name == name), None)
        return None if own is None or own.default is own.empty else own.default

    @property
    def is_open(self) -> bool:
        """Whether it takes arguments of any name, or nobody knows which."""
        return not self._parameters or self.takes_any_name

    @property
    def takes_any_name(self) -> bool:
        """Whether it may take names that it does not list: by `**`, or because Python knows no signature of it."""
        return self._signature is None or any(each.kind is each.VAR_KEYWORD for each in self._parameters)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The call's arguments by name. `self` is not one; positions beyond the names go under `*`."""
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
        """The names of what can be given by place."""
        return self._names[1:] if self.is_method else self._names

    @property
    def nameable(self) -> list[str]:
        """The names under which its own arguments can be given."""
        return [name for name in self.names if name not in self._unnameable]

    def can_name(self, name: str) -> bool:
        """Whether `bind` leaves this name of an argument as it is."""
        return name.isidentifier() and name not in self._unnameable and not (self.is_method and name in self._names[:1])

    def spread(self, arguments: Mapping[str, Any], args: tuple[Any, ...] = ()) -> tuple[list[Any], dict[str, Any]]:
        """Arguments by name in the form of a call: what was given by position, or can be given only so, stays there."""
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
        """Whether Python itself would turn the call away before its first line."""
        if self._signature is None:
            return False
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError:
            return True
        return False

    @property
    def description(self) -> str:
        """What the docstring says that it does."""
        from mulligan.capture.annotations import described  # only whoever offers its tools to a model comes here

        return described(self._function)[0]

    def schema(self) -> dict[str, Any] | None:
        """The parameters as JSON schema; what an annotation does not say is left open. None if nothing is known."""
        if not self._is_read:
            try:
                self._schema = self._read()
            except Exception:  # noqa: BLE001 - annotations are code of strangers: they may be anything
                self._schema = None
            self._is_read = True
        return self._schema

    def _read(self) -> dict[str, Any] | None:
        if self._signature is None:
            return None
        hints = _hints(self._function)
        parameters = self._parameters[1:] if self.is_method else self._parameters
        named = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        from mulligan.capture.annotations import described  # 10 ms, and only failures and checked calls come here

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
    """The function whose flags say what a call gives: behind a partial, or an object's `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called: by its author, or by what is behind it."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) and name else type(function).__name__


def qualified_name_of(function: Callable[..., Any]) -> str:
    """Identify a function by `module:qualname`, an object by its class; empty where Python does not know them."""
    while isinstance(function, functools.partial):
        function = function.func
    owner = function if isinstance(getattr(function, "__qualname__", None), str) else type(function)
    module = getattr(owner, "__module__", None)
    return f"{module}:{owner.__qualname__}" if isinstance(module, str) and module else ""


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(code_of(function), include_extras=True)
    except Exception:  # noqa: BLE001 - they may name what is not there
        return {}


def _is_method(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> bool:
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str) or not inspect.isfunction(function):
        return False
    is_inside_class = "." in name and not name.rpartition(".")[0].endswith("<locals>")
    return bool(is_inside_class and parameters and parameters[0].name in ("self", "cls"))
