"""Reference pages of the documentation site, generated from the code: names, commands, settings, events, metrics."""

from __future__ import annotations

import ast
import enum
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

import mulligan
from mulligan.api import Mulligan
from mulligan.cli import SECTIONS, cli
from mulligan.contract.counters import Cell, Stats
from mulligan.core import records
from mulligan.core.events import EVENTS
from mulligan.core.failure import Failure
from mulligan.recover.policy import REMOVED_SETTINGS, Policy
from mulligan.report.stats import render_metrics, render_unrecognized_spans
from mulligan.server.routes import api_document
from mulligan.settings import NOT_FOR_PROJECTS, STRICTNESS, TABLE_NAMES, Settings

HELP_WIDTH = 100
RECORDS = (
    records.Run, records.Step, Failure, records.Recovery, records.RecoveryStop, records.Change, records.Link,
    records.Compaction, records.CompressionAction, records.Lesson,
)  # fmt: skip
"""Records that events carry."""
GENERATED = "Generated from the code when this site is built."


def build_pages() -> dict[str, str]:
    """Return every reference page: its path below `docs` and its Markdown."""
    return {
        "reference/python.md": _render_python(),
        "reference/commands.md": _render_commands(),
        "reference/settings.md": _render_settings(),
        "reference/events.md": _render_events(),
        "reference/metrics.md": _render_metrics(),
        "reference/http.md": _render_http(),
    }


def read_field_docs(cls: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class, its base classes included."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not base.__module__.startswith("mulligan."):
            continue
        definition = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(definition, ast.ClassDef)
        for field, text in itertools.pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                docs[field.target.id] = inspect.cleandoc(ast.literal_eval(text.value))
    return docs


def _join(title: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", GENERATED, *parts)) + "\n"


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table. Every cell becomes one line."""
    lines = [list(columns)]
    lines += [["---"] * len(lines[0]), *([_cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


def _code(value: object) -> str:
    return f"`{value}`"


def _annotation(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return text.replace("'", '"')


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        value = field.default
        return _code(value.value if isinstance(value, enum.Enum) else repr(value).replace("'", '"'))
    return "" if field.default_factory is msgspec.NODEFAULT else "empty"


def _field_rows(cls: type[msgspec.Struct]) -> Iterator[tuple[str, str, str, str]]:
    docs = read_field_docs(cls)
    types = {
        name: annotation for base in reversed(cls.__mro__) for name, annotation in inspect.get_annotations(base).items()
    }
    for field in msgspec.structs.fields(cls):
        annotation = _annotation(types.get(field.name, "Any"))
        yield _code(field.name), _code(annotation), _default(field), docs.get(field.name, "")


# Python names


def _render_python() -> str:
    functions = [name for name in mulligan.__all__ if name.islower()]
    classes = [name for name in mulligan.__all__ if not name.islower()]
    parts = [
        "Every public name of the package. `mulligan.NAME` is imported on first use. The functions are methods of "
        "`Mulligan` too: `Mulligan(store=...)` is an independent instance with its own settings.",
        "## Functions",
        *(_render_function(f"mulligan.{name}", getattr(Mulligan, name), "###") for name in functions),
        "## Classes",
        *(_render_class(name, getattr(mulligan, name)) for name in classes),
    ]
    return _join("Python API", *parts)


def _render_function(title: str, function: Callable[..., Any], heading: str) -> str:
    doc = inspect.getdoc(function)
    assert doc, f"{title} has no docstring"
    name = title.rpartition(".")[2]
    return f"{heading} {title}\n\n```text\n{name}{_signature(function)}\n```\n\n{doc}"


class _PlainAnnotation:
    """An annotation that is rendered without quotation marks."""

    def __init__(self, annotation: Any) -> None:
        self._text = _annotation(annotation)

    def __repr__(self) -> str:
        return self._text


def _signature(function: Callable[..., Any]) -> str:
    """Return the parameters as Python code, one per line if they do not fit into one."""
    signature = inspect.signature(function)
    parameters = [
        parameter
        if parameter.annotation is parameter.empty
        else parameter.replace(annotation=_PlainAnnotation(parameter.annotation))
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    returned = signature.return_annotation
    suffix = "" if returned is signature.empty else f" -> {_annotation(returned)}"
    text = str(inspect.Signature(parameters)).replace("'", '"')
    if len(text) + len(suffix) <= HELP_WIDTH - 20:
        return text + suffix
    lines = [str(parameter).replace("'", '"') for parameter in parameters]
    is_keyword_only = [parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters]
    if True in is_keyword_only:
        lines.insert(is_keyword_only.index(True), "*")
    return "(\n" + "".join(f"    {line},\n" for line in lines) + f"){suffix}"


def _render_class(name: str, cls: type) -> str:
    parts = [f"### mulligan.{name}", inspect.getdoc(cls) or ""]
    if issubclass(cls, enum.Enum):
        parts.append(_table(("member", "value"), ((_code(member.name), _code(member.value)) for member in cls)))
    elif issubclass(cls, msgspec.Struct) and cls.__struct_fields__:
        parts.append(_table(("field", "type", "default", "meaning"), _field_rows(cls)))
    elif "__init__" in vars(cls):
        parts.insert(1, f"```text\n{name}{_signature(cls).removesuffix(' -> None')}\n```")
    if cls is Mulligan:
        names = [method for method in vars(cls) if method not in mulligan.__all__]
    else:
        names = [method for base in cls.__mro__ if base.__module__.startswith("mulligan.") for method in vars(base)]
    for method in dict.fromkeys(names):
        value = inspect.getattr_static(cls, method)
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if not method.startswith("_") and inspect.isfunction(function) and inspect.getdoc(function):
            parts.append(_render_function(f"{name}.{method}", function, "####"))
    return "\n\n".join(part for part in parts if part)


# Commands


def _render_commands() -> str:
    parts = [
        "Every command with its options, as `--help` prints them. [The command line](../serve.md) is the overview."
    ]
    root = click.Context(cli, info_name="mulligan", terminal_width=HELP_WIDTH, max_content_width=HELP_WIDTH)
    for section, commands in SECTIONS.items():
        parts.append(f"## {section}")
        for name in commands:
            command = cli.get_command(root, name)
            assert command is not None
            parts += _render_command(command, name, root)
    return _join("Commands", *parts)


def _render_command(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(
        command, info_name=name, parent=parent, terminal_width=HELP_WIDTH, max_content_width=HELP_WIDTH
    )
    path = context.command_path
    yield f"{'###' if path.count(' ') == 1 else '####'} {path}\n\n```text\n{command.get_help(context)}\n```"
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            subcommand = command.get_command(context, child)
            if subcommand is not None and not subcommand.hidden:
                yield from _render_command(subcommand, child, context)


# Settings


def _render_settings() -> str:
    rows = [
        (name, annotation, default, _variable(name), _project_rule(name), meaning)
        for name, annotation, default, meaning in itertools.chain(_field_rows(Settings), _field_rows(Policy))
        if name != "`policy`" and name.strip("`") not in REMOVED_SETTINGS
    ]
    columns = ("setting", "type", "default", "environment variable", "in a project file", "meaning")
    return _join("Settings", "[Change settings](../settings.md) says where to set them.", _table(columns, rows))


def _variable(name: str) -> str:
    bare_name = name.strip("`")
    return "" if bare_name in TABLE_NAMES else _code(f"MULLIGAN_{bare_name.upper()}")


def _project_rule(name: str) -> str:
    bare_name = name.strip("`")
    if bare_name in (*NOT_FOR_PROJECTS, "token"):
        return "no"
    if bare_name == "store":
        return "a file only"
    return "only stricter" if bare_name in STRICTNESS else "yes"


# Events and records


def _render_events() -> str:
    columns = ("field", "type", "default", "meaning")
    parts = [
        "[Listen to events](../report.md#listen-to-events) has an example. Times are UTC milliseconds.",
        "## Events",
    ]
    for name, event in EVENTS.items():
        parts += [f"### {name}", _table(columns, _field_rows(event))]
    parts.append("## Records")
    for record in RECORDS:
        parts += [f"### {record.__name__}", inspect.getdoc(record) or "", _table(columns, _field_rows(record))]
    return _join("Events and records", *parts)


# Metrics


def _render_metrics() -> str:
    lines = [*render_metrics(Cell(), Stats(total=Cell())), *render_unrecognized_spans({})]
    types = dict(line.split(" ", 3)[2:] for line in lines if line.startswith("# TYPE"))
    help_texts = dict(line.split(" ", 3)[2:] for line in lines if line.startswith("# HELP"))
    prometheus = _table(
        ("metric", "type", "meaning"), ((_code(name), kind, help_texts[name]) for name, kind in types.items())
    )
    instruments = _table(
        ("metric", "instrument", "unit", "meaning"),
        ((_code(name), instrument, unit, meaning) for instrument, name, unit, meaning in read_instruments()),
    )
    return _join(
        "Metrics",
        "[Metrics](../report.md#metrics) defines the metrics of `mulligan stats` and `/v1/stats`.",
        "## Prometheus: `/metrics`",
        prometheus,
        "## OpenTelemetry: `mulligan.otel.Otel`",
        instruments,
    )


def read_instruments() -> list[tuple[str, str, str, str]]:
    """Return each OpenTelemetry instrument: type, name, unit and description. The source is read, not imported: the
    package is an extra."""
    source = Path(mulligan.__file__).with_name("otel.py").read_text()
    return re.findall(r'create_(\w+)\(\s*"([^"]+)",\s*"([^"]+)",\s*"([^"]+)"', source)


# HTTP API


def _render_http() -> str:
    document = api_document()
    parts = [
        "[Use the HTTP API](../http-api.md) shows requests with their responses. A server has them at `/docs` too, "
        "and as OpenAPI 3.1 at `/openapi.json`."
    ]
    for tag in document["tags"]:
        parts += [f"## {tag['name']}", tag["description"]]
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if tag["name"] in operation["tags"]:
                    parts += _render_operation(path, method, operation, document)
    return _join("HTTP API", *parts)


def _render_operation(path: str, method: str, operation: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    yield f"### {method.upper()} {path}"
    yield f"{operation['summary']}. Statuses: {', '.join(operation['responses'])}."
    if parameters := operation.get("parameters"):
        rows = ((_code(item["name"]), _schema_type(item["schema"]), item.get("description", "")) for item in parameters)
        yield _table(("parameter", "type", "meaning"), rows)
    if body := operation.get("requestBody"):
        schema = body["content"]["application/json"]["schema"]
        properties = _find_properties(schema, document["components"]["schemas"])
        rows = ((_code(name), _schema_type(value), value.get("description", "")) for name, value in properties.items())
        yield _table(("field of the body", "type", "meaning"), rows)


def _find_properties(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a body: of the object itself, or of the members of a list."""
    if reference := schema.get("$ref"):
        schema = schemas[reference.rpartition("/")[2]]
    if "properties" in schema:
        properties: dict[str, Any] = schema["properties"]
        return properties
    candidates = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), schema.get("items", {})]
    return next((found for item in candidates if item and (found := _find_properties(item, schemas))), {})


def _schema_type(schema: dict[str, Any]) -> str:
    if reference := schema.get("$ref"):
        return str(reference.rpartition("/")[2])
    if "enum" in schema:
        return ", ".join(_code(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_schema_type, schema["anyOf"])))
    types = schema.get("type", "any")
    if types == "array" and schema.get("items"):
        return f"array of {_schema_type(schema['items'])}"
    return types if isinstance(types, str) else " or ".join(types)
