"""Conversion of a model's JSON arguments to the annotated types of a function.

pydantic validates its own types, msgspec parses dates, UUIDs and decimals. A value is never guessed: `"5"` becomes no
number. A type that neither knows is not converted: the function gets the JSON value.
"""

from __future__ import annotations

import enum
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from mulligan.capture.call_errors import Violation
from mulligan.capture.signature import ARRAY_TYPES, LIST_TYPES, OBJECT_TYPES, Signature, is_json_enum
from mulligan.core.records import build_decoder

ArgumentPath = tuple[str | int, ...]
TypeClass = Literal["plain", "typed", "opaque"]
"""Whether values of a type are JSON as they are, must be converted, or cannot be."""

_SCALAR_TYPES = (str, int, float, bool, types.NoneType)
_WRAPPERS = (typing.Annotated, typing.Required, typing.NotRequired)


class ConversionError(ValueError):
    """Arguments that their annotated types do not accept."""

    def __init__(self, *violations: Violation) -> None:
        super().__init__(violations)
        self.violations = violations


class _Field(NamedTuple):
    annotation: Any
    is_required: bool


class ArgumentConverter:
    """Converts the JSON arguments of one function."""

    def __init__(self, signature: Signature) -> None:
        self._annotations = {name: hint for name, hint in signature.annotations.items() if _needs_conversion(hint)}
        self._nullable = {name for name in self._annotations if signature.has_default(name, None)}
        self._adapters: dict[Any, Any] = {}
        """The validators of pydantic, by type."""
        self._fields: dict[Any, dict[str, _Field]] = {}
        """The fields of dataclasses and typed dictionaries, by class."""

    @property
    def is_needed(self) -> bool:
        return bool(self._annotations)

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments in their annotated types. Raise `ConversionError` with all violations."""
        converted = dict(arguments)
        violations: list[Violation] = []
        for name, annotation in self._annotations.items():
            if name not in arguments or (arguments[name] is None and name in self._nullable):
                continue
            try:
                converted[name] = self._convert(annotation, arguments[name], (name,))
            except ConversionError as error:
                violations += error.violations
            except Exception:  # noqa: BLE001 - annotations may be arbitrary code: pass the JSON value
                continue
        if violations:
            raise ConversionError(*violations)
        return converted

    def _convert(self, annotation: Any, value: Any, path: ArgumentPath) -> Any:
        annotation = _unwrap(annotation)
        if _has_validators(annotation):
            return self._validate_pydantic(annotation, value, path)
        origin, type_args = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is typing.Literal:
            return _choose_literal(type_args, value, path)
        if origin is typing.Union or origin is types.UnionType:
            return self._convert_union(type_args, value, path)
        kind = annotation if origin is None else origin
        if any(kind is array_type for array_type in ARRAY_TYPES):
            return self._convert_array(kind, type_args, value, path)
        if any(kind is object_type for object_type in OBJECT_TYPES):
            return self._convert_object(type_args, value, path)
        if kind is None or any(kind is scalar_type for scalar_type in _SCALAR_TYPES):
            return _check_scalar(kind, value, path)
        convert_class = self._find_converter(kind) if origin is None else None
        return value if convert_class is None else convert_class(kind, value, path)

    def _find_converter(self, kind: Any) -> Callable[[Any, Any, ArgumentPath], Any] | None:
        if not isinstance(kind, type):
            return None
        if _is_pydantic_type(kind):
            return self._validate_pydantic
        if typing.is_typeddict(kind):
            return self._convert_typed_dict
        if hasattr(kind, "__dataclass_fields__"):
            return self._convert_dataclass
        return find_text_converter(kind)

    def _convert_union(self, members: tuple[Any, ...], value: Any, path: ArgumentPath) -> Any:
        """Return the value unchanged if a member accepts JSON like it, else as the first member that accepts it.

        pydantic chooses between its own types: the first one that accepts a value may ignore most of its fields.
        """
        typed_members = [member for member in members if classify_type(member) == "typed"]
        models = [member for member in typed_members if _is_pydantic_type(_unwrap(member))]
        choices: list[tuple[Callable[..., Any], Any]] = []
        choices += [(self._convert, member) for member in members if classify_type(member) == "plain"]
        if len(models) > 1:
            model_union: Any = typing.Union[tuple(models)]  # noqa: UP007 - built at run time
            choices.append((self._validate_pydantic, model_union))
        choices += [(self._convert, member) for member in typed_members if len(models) < 2 or member not in models]
        errors = []
        for convert, member in choices:
            try:
                return convert(member, value, path)
            except ConversionError as error:
                errors.append(error)
        if any(classify_type(member) == "opaque" for member in members):
            return value
        if len(typed_members) == 1:
            raise errors[-1]
        raise ConversionError(Violation(path, f"does not match any of {', '.join(map(_name, members))}"))

    def _convert_array(self, kind: Any, type_args: tuple[Any, ...], value: Any, path: ArgumentPath) -> Any:
        if isinstance(kind, type) and kind not in LIST_TYPES and isinstance(value, kind):
            return value
        if not isinstance(value, list | tuple):
            raise ConversionError(Violation(path, f"Expected an array, got {_name(type(value))}"))
        item_types = [type_args[0] if type_args else Any] * len(value)
        if kind is tuple and type_args and type_args[-1] is not Ellipsis:
            if len(value) != len(type_args):
                raise ConversionError(Violation(path, f"Expected {len(type_args)} items, got {len(value)}"))
            item_types = list(type_args)
        indexes = range(len(value))
        items = self._convert_all(zip(indexes, item_types, value, strict=True), path)
        return list(items.values()) if kind in LIST_TYPES else kind(items.values())

    def _convert_object(self, type_args: tuple[Any, ...], value: Any, path: ArgumentPath) -> dict[Any, Any]:
        _require_object(value, path)
        key_type, value_type = type_args if len(type_args) == 2 else (str, Any)
        values = self._convert_all(((key, value_type, item) for key, item in value.items()), path)
        return {self._convert_key(key_type, key, path): item for key, item in values.items()}

    def _convert_key(self, key_type: Any, key: Any, path: ArgumentPath) -> Any:
        """Convert a key. JSON has only texts, so `{"5": ...}` is how it writes `{5: ...}`."""
        is_number = _unwrap(key_type) is int and isinstance(key, str) and key.isdecimal() and str(int(key)) == key
        return int(key) if is_number else self._convert(key_type, key, (*path, key))

    def _convert_all(self, items: Iterable[tuple[Any, Any, Any]], path: ArgumentPath) -> dict[Any, Any]:
        """Convert items of a key, a type and a value. Return the values by key."""
        converted: dict[Any, Any] = {}
        violations: list[Violation] = []
        for key, annotation, value in items:
            try:
                converted[key] = self._convert(annotation, value, (*path, key))
            except ConversionError as error:
                violations += error.violations
        if violations:
            raise ConversionError(*violations)
        return converted

    def _convert_typed_dict(self, kind: Any, value: Any, path: ArgumentPath) -> dict[str, Any]:
        _require_object(value, path)
        fields = self._fields_of(kind)
        return self._convert_all(
            ((name, fields[name].annotation if name in fields else Any, item) for name, item in value.items()), path
        )

    def _convert_dataclass(self, kind: Any, value: Any, path: ArgumentPath) -> Any:
        if isinstance(value, kind):
            return value
        _require_object(value, path)
        fields = self._fields_of(kind)
        missing_names = [name for name, field in fields.items() if field.is_required and name not in value]
        violations = [
            *(Violation((*path, name), "is required") for name in missing_names),
            *(Violation((*path, name), "is not a field") for name in value if name not in fields),
        ]
        if violations:
            raise ConversionError(*violations)
        values = self._convert_all(((name, fields[name].annotation, item) for name, item in value.items()), path)
        try:
            return kind(**values)
        except Exception as error:  # noqa: BLE001 - the class rejects these values
            raise ConversionError(Violation(path, str(error) or type(error).__name__, error)) from None

    def _fields_of(self, kind: Any) -> dict[str, _Field]:
        """Return the fields that the constructor takes. Raise if they are unknown: the value is then not converted."""
        if kind not in self._fields:
            hints = typing.get_type_hints(kind, include_extras=True)
            if typing.is_typeddict(kind):
                self._fields[kind] = {name: _Field(hint, False) for name, hint in hints.items()}
            else:
                import dataclasses  # lazy: loaded by the program that has one

                parameters = inspect.signature(kind).parameters
                if parameters.keys() != {field.name for field in dataclasses.fields(kind) if field.init}:
                    raise TypeError("the author wrote the constructor")
                self._fields[kind] = {
                    name: _Field(hints[name], parameter.default is parameter.empty)
                    for name, parameter in parameters.items()
                }
        return self._fields[kind]

    def _validate_pydantic(self, kind: Any, value: Any, path: ArgumentPath) -> Any:
        import json  # lazy: few programs have such arguments

        if kind not in self._adapters:
            self._adapters[kind] = sys.modules["pydantic"].TypeAdapter(kind)
        adapter = self._adapters[kind]
        try:
            try:
                document = json.dumps(value)
            except (TypeError, ValueError, RecursionError):  # Python objects, perhaps of this type
                return adapter.validate_python(value)
            return adapter.validate_json(document)  # as JSON: strict models accept a date only there
        except sys.modules["pydantic"].PydanticUserError:
            raise  # the class is not complete
        except sys.modules["pydantic"].ValidationError as error:
            raise ConversionError(
                *(Violation((*path, *fault["loc"]), fault["msg"]) for fault in error.errors(include_url=False))
            ) from None
        except Exception as error:  # noqa: BLE001 - a validator of the user
            raise ConversionError(Violation(path, str(error) or type(error).__name__, error)) from None


def _needs_conversion(annotation: Any) -> bool:
    try:
        return classify_type(annotation) == "typed"
    except Exception:  # noqa: BLE001 - annotations may be arbitrary code
        return False


def classify_type(annotation: Any) -> TypeClass:
    """Return whether values of this type are JSON as they are, must be converted, or cannot be converted."""
    annotation = _unwrap(annotation)
    if _has_validators(annotation):
        return "typed"
    origin, type_args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return "typed" if any(isinstance(member, enum.Enum) for member in type_args) else "plain"
    if origin is typing.Union or origin is types.UnionType:
        classes = {classify_type(member) for member in type_args}
        return "typed" if "typed" in classes else "opaque" if "opaque" in classes else "plain"
    kind = annotation if origin is None else origin
    if any(kind is array_type for array_type in (tuple, set, frozenset)):
        return "typed"
    is_object = any(kind is object_type for object_type in OBJECT_TYPES)
    if is_object and len(type_args) == 2 and _unwrap(type_args[0]) is int:
        return "typed"  # the keys of JSON objects are texts
    if is_object or any(kind is list_type for list_type in LIST_TYPES):
        return "typed" if any(classify_type(member) == "typed" for member in type_args) else "plain"
    if kind is None or any(kind is scalar_type for scalar_type in _SCALAR_TYPES):
        return "plain"
    if not isinstance(annotation, type) or origin is not None:
        return "opaque"
    is_typed = _is_pydantic_type(annotation) or typing.is_typeddict(annotation)
    is_typed = is_typed or hasattr(annotation, "__dataclass_fields__") or find_text_converter(annotation) is not None
    return "typed" if is_typed else "opaque"


def _unwrap(annotation: Any) -> Any:
    """Return a type without `Annotated`, `Required`, `NotRequired` and `NewType`, up to validators of pydantic."""
    while not _has_validators(annotation):
        if any(typing.get_origin(annotation) is wrapper for wrapper in _WRAPPERS):
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        else:
            break
    return annotation


def _has_validators(annotation: Any) -> bool:
    """Return whether `Annotated` adds a validator of pydantic, such as `BeforeValidator`, which decides alone."""
    marks = typing.get_args(annotation)[1:] if typing.get_origin(annotation) is typing.Annotated else ()
    return any(map(_is_pydantic_type, marks))


def _is_pydantic_type(kind: Any) -> bool:
    """Return whether pydantic validates values of a class, or a mark in `Annotated` validates them for pydantic."""
    names = ("__get_pydantic_core_schema__", "__pydantic_core_schema__")
    return "pydantic" in sys.modules and any(hasattr(kind, name) for name in names)


def find_text_converter(kind: type) -> Callable[[Any, Any, ArgumentPath], Any] | None:
    """Return the converter of a class whose values JSON writes as texts or numbers: enums, dates, UUIDs, paths."""
    import datetime  # lazy: most functions have no such arguments
    import decimal
    import pathlib
    import uuid

    if issubclass(kind, enum.Enum):
        return _convert_enum if is_json_enum(kind) else None
    parsed_types = datetime.datetime, datetime.date, datetime.time, uuid.UUID, decimal.Decimal
    if any(kind is parsed_type for parsed_type in parsed_types):
        return _convert_by_msgspec
    return _convert_path if issubclass(kind, pathlib.PurePath) else None


def _convert_enum(kind: Any, value: Any, path: ArgumentPath) -> Any:
    try:
        converted = kind(value)
        if isinstance(value, bool) is isinstance(converted.value, bool) or converted is value:
            return converted  # otherwise True was taken for 1
    except Exception:  # noqa: BLE001 - an enum may define how it looks up values
        pass
    members = ", ".join(repr(member.value) for member in list(kind)[:20])
    raise ConversionError(Violation(path, f"{value!r:.100} is not one of {members}"))


def _convert_by_msgspec(kind: Any, value: Any, path: ArgumentPath) -> Any:
    import msgspec

    if isinstance(value, kind):
        return value
    build_decoder(kind)  # before two threads convert to it at once
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConversionError(Violation(path, f"{error}: {value!r:.100}")) from None


def _convert_path(kind: Any, value: Any, path: ArgumentPath) -> Any:
    if isinstance(value, str):
        return kind(value)
    if isinstance(value, kind):
        return value
    raise ConversionError(Violation(path, f"Expected a string, got {_name(type(value))}"))


def _choose_literal(members: tuple[Any, ...], value: Any, path: ArgumentPath) -> Any:
    for member in members:
        if member is value or (type(member) is type(value) and member == value):
            return member
        if isinstance(member, enum.Enum) and type(member.value) is type(value) and member.value == value:
            return member
    raise ConversionError(Violation(path, f"{value!r:.100} is not one of {', '.join(map(repr, members[:20]))}"))


def _check_scalar(kind: Any, value: Any, path: ArgumentPath) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and is_number:
        return value
    if kind is int and is_number and (isinstance(value, int) or value.is_integer()):
        return int(value)
    if kind in (str, bool, types.NoneType, None) and isinstance(value, types.NoneType if kind is None else kind):
        return value
    raise ConversionError(Violation(path, f"Expected {_name(kind)}, got {_name(type(value))}"))


def _require_object(value: Any, path: ArgumentPath) -> None:
    if not isinstance(value, Mapping):
        raise ConversionError(Violation(path, f"Expected an object, got {_name(type(value))}"))


_JSON_NAMES = {
    str: "a string", int: "an integer", float: "a number", bool: "a boolean", types.NoneType: "null", None: "null",
    dict: "an object", list: "an array",
}  # fmt: skip


def _name(kind: Any) -> str:
    """Return the name of a type in the words of JSON Schema, which a model reads."""
    for json_type, name in _JSON_NAMES.items():
        if kind is json_type:
            return name
    return getattr(kind, "__name__", None) or str(kind)
