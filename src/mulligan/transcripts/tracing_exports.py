"""Reader for exports of tracing products: observations of Langfuse, runs of LangSmith and spans of Phoenix.

JSON, JSON lines, CSV or Parquet. Each row becomes a span with attributes that the SDKs of these products send, so that
`otlp.py` builds the runs.
"""

from __future__ import annotations

import ast
import csv
import io
import itertools
import json
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec

from mulligan.core.failure import INSTALL_EXTRA
from mulligan.core.records import History
from mulligan.redaction.plain_data import truncate_text
from mulligan.transcripts.log_lines import (
    MAX_LINE_BYTES,
    LogLines,
    UnreadableFileError,
    decode_line,
    parse_json,
    replace_invalid_unicode,
)
from mulligan.transcripts.otlp import Span, read_spans
from mulligan.transcripts.run_builder import MAX_LABEL_CHARS, ReaderState, bound_arguments, to_milliseconds

NAME = "tracing-export"
_PARQUET = b"PAR1"
_HEAD_MARKS = (
    (b"run_type", b"trace_id"),
    (b"observations", b"startTime"),
    (b"parentObservationId", b"traceId"),
    (b"parent_observation_id", b"trace_id"),
    (b"context.trace_id", b"span_kind"),
    (b"span_kind", b"status_code", b"parent_id"),
    (b"timestamp", b"sessionId", b"bookmarked"),
    (b"timestamp", b"session_id", b"bookmarked"),
)
"""Names at the beginning of an export, of LangSmith, Langfuse or Phoenix."""
_CONTAINERS = ("observations", "runs", "data", "spans")
"""Names under which an answer of an API holds its rows."""
_TEXT_ATTRIBUTES = ("input.value", "output.value", "llm.invocation_parameters")
"""Attributes of Phoenix whose text may be JSON."""
MAX_PYTHON_CHARS = 128_000
"""Longer texts are not parsed as Python: its parser needs 100 times as much memory as JSON's."""
MAX_TEXT_CHARS = 64 * 1024
"""Characters of a text of a span that are held in memory."""
_DECODER = msgspec.json.Decoder(dict[str, Any] | list[Any])
_NEXT_ITEM = re.compile(r"[\s,]*(?=[^\s,\]])")
_NEXT_NAME = re.compile(r'[\s,]*"(\w+)"\s*:\s*')

Row = Mapping[str, Any]


def recognizes(head: bytes) -> bool:
    return head.startswith(_PARQUET) or any(all(mark in head for mark in marks) for marks in _HEAD_MARKS)


def read(lines: LogLines, state: ReaderState) -> Iterator[History]:
    return read_spans(_iter_spans(lines, state), state)


def _iter_spans(lines: LogLines, state: ReaderState) -> Iterator[Span]:
    row_count = 0
    for row_count, row in enumerate(_iter_rows(lines, state), 1):
        to_span = _find_product(row)
        span = to_span(row) if to_span is not None else None
        if span is not None and span.trace and span.start:
            yield span
        else:
            state.skip_line(lines, _explain_skipped(row, span), "row", row_count)
    if not row_count and not lines.read_error:
        lines.read_error = "it has no rows that could be read"


def _explain_skipped(row: Row, span: Span | None) -> str:
    if span is not None:
        return "its times cannot be read" if span.trace else "it names no trace"
    if "timestamp" in row and ("sessionId" in row or "session_id" in row):
        return "a trace of Langfuse without its observations: export the table Observations, or one trace as JSON"
    return "not an observation of Langfuse, a run of LangSmith or a span of Phoenix"


def _iter_rows(lines: LogLines, state: ReaderState) -> Iterator[Row]:
    head = lines.head()
    if head.startswith(_PARQUET):
        yield from _iter_parquet_rows(lines, state)
    elif head.lstrip()[:1] in (b"{", b"["):
        for value in _iter_documents(lines, state):
            yield from _unpack(value)
    else:
        yield from _iter_csv_rows(lines, state)


def _iter_documents(lines: LogLines, state: ReaderState) -> Iterator[Any]:
    """Yield the value of each line, or of the whole file if its first line has none.

    Of a broken document, it yields the rows before the fault.
    """
    if decode_line(next(iter(lines), b""), _DECODER) is not None:
        yield from state.decode_lines(lines, _DECODER)
        return
    if (data := lines.read_all()) is None:
        return
    state.line_count += 1
    document = decode_line(data, _DECODER)
    if document is not None:
        yield document
    elif data[:1] == b"{" and decode_line(b"".join(data.split(b"\n", 2)[1:2]), _DECODER) is not None:
        yield from state.decode_lines(lines, _DECODER)  # only the first line is broken
    else:
        text = replace_invalid_unicode(data).decode()
        reader = _BrokenDocument(text)
        is_document = False
        for value in reader.iter_values(len(text) - len(text.lstrip())):
            is_document = True
            yield value
        if is_document or text.lstrip()[:1] == "[":
            line = text.count("\n", 0, reader.end) + 1
            lines.read_error = lines.read_error or f"broken JSON in line {line}, or in the item that starts there"
        else:
            yield from state.decode_lines(lines, _DECODER)


class _BrokenDocument:
    """A JSON document that is cut off or damaged. Its complete rows can be read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._decoder = json.JSONDecoder(parse_constant=lambda constant: None)
        self.end = 0
        """Where the last value starts that could not be read."""

    def iter_values(self, start: int) -> Iterator[Any]:
        """Yield the items of a list, or the object around a list of rows with one row each, before the fault."""
        if self._text[start : start + 1] == "[":
            yield from self._iter_items(start + 1)
        elif self._text[start : start + 1] == "{":
            yield from self._iter_rows(start + 1)

    def _iter_items(self, start: int, has_container: bool = False) -> Iterator[Any]:
        while match := _NEXT_ITEM.match(self._text, start):
            self.end = match.end()
            try:
                value, start = self._decoder.raw_decode(self._text, match.end())
            except (ValueError, RecursionError):
                if not has_container and self._text[match.end()] == "{":
                    yield from self._iter_rows(match.end() + 1)
                return
            yield value

    def _iter_rows(self, start: int) -> Iterator[dict[str, Any]]:
        fields: dict[str, Any] = {}
        while match := _NEXT_NAME.match(self._text, start):
            name, start = match[1], match.end()
            if name in _CONTAINERS and self._text[start : start + 1] == "[":
                for row in self._iter_items(start + 1, has_container=True):
                    yield {**fields, name: [row]}
                return
            try:
                fields[name], start = self._decoder.raw_decode(self._text, start)
            except (ValueError, RecursionError):
                return


def _unpack(value: Any) -> Iterator[Row]:
    """Yield the rows of a document: itself, a list, an answer of an API, or the columns of a table.

    A trace gives its rows its own fields, and a run its children.
    """
    if isinstance(value, list):
        for item in value:
            yield from _unpack(item)
        return
    if not isinstance(value, dict):
        yield {}
        return
    if any(isinstance(value.get(name), dict) for name in ("span_kind", "run_type")):
        columns = {name: column for name, column in value.items() if isinstance(column, dict)}
        for index in next(column for name, column in columns.items() if name in ("span_kind", "run_type")):
            yield {name: column[index] for name, column in columns.items() if column.get(index) is not None}
        return
    if "run_type" in value and isinstance(children := value.get("child_runs"), list):
        yield value
        id = value.get("id")
        for row in _unpack(children):
            defaults = {"trace_id": value.get("trace_id") or id, "parent_run_id": id}
            yield defaults | {name: field for name, field in row.items() if field is not None}
        return
    container = next((name for name in _CONTAINERS if isinstance(value.get(name), list)), None)
    if container is None:
        yield value
        return
    trace = value["trace"] if isinstance(value.get("trace"), dict) else value
    trace_fields = {
        "traceId": trace.get("id"), "traceName": trace.get("name"), "userId": trace.get("userId"),
        "sessionId": trace.get("sessionId"), "tags": trace.get("tags"), "release": trace.get("release"),
    } if container == "observations" else {}  # fmt: skip
    for item in value[container]:
        for row in _unpack(item):
            yield {**trace_fields, **row}


def _iter_csv_rows(lines: LogLines, state: ReaderState) -> Iterator[Row]:
    csv.field_size_limit(MAX_LINE_BYTES)
    lines.file.seek(0)
    lines.offset = lines.size
    text_file = io.TextIOWrapper(lines.file, "utf-8-sig", "replace", newline="")
    last_line, is_inside_cell = "", False

    def note_line(line: str) -> str:
        nonlocal last_line
        last_line = line
        return line

    def note_end() -> None:
        nonlocal is_inside_cell
        is_inside_cell = True  # after a complete row, the csv module asks for no further line

    header = lines.head().partition(b"\n")[0].decode("utf-8", "replace")
    delimiter = max(",;\t", key=header.count)  # spreadsheets of some countries write semicolons
    lines.file.seek(0)
    reader = csv.reader(itertools.chain(map(note_line, text_file), iter(note_end, None)), delimiter=delimiter)
    try:
        names = next(reader, [])
        for cells in reader:
            if not cells:
                continue
            state.line_count += 1
            lines.number = reader.line_num
            if is_inside_cell or len(cells) < len(names) or any(cells[len(names) :]):
                counts = f"it has {len(cells)} of {len(names)} cells"
                state.skip_line(lines, counts + (", the last of them cut off" if is_inside_cell else ""))
            else:
                if not last_line.endswith(("\n", "\r")):
                    lines.read_error = "its last row has no line break, so that its last cell may be cut off"
                cells_by_name = zip(names, cells, strict=False)
                yield {name: _parse_cell(name, cell) for name, cell in cells_by_name if name and cell}
    except csv.Error as error:
        lines.read_error = f"broken CSV in line {reader.line_num} ({error})"
    except EOFError:
        lines.read_error = "the gzip file is truncated"
    except (OSError, zlib.error) as error:
        lines.read_error = f"it is damaged ({error})"
    finally:
        text_file.detach()  # it would close the file


def _iter_parquet_rows(lines: LogLines, state: ReaderState) -> Iterator[Row]:
    try:
        from pyarrow import ArrowException, parquet  # imported only where it is needed
    except ImportError:
        reason = f"it is a Parquet file, which needs pyarrow. {INSTALL_EXTRA.format('parquet')}"
        raise UnreadableFileError(reason) from None
    lines.offset = lines.size
    try:
        for batch in parquet.ParquetFile(lines.file).iter_batches(batch_size=1000):
            for row in batch.to_pylist():
                state.line_count += 1
                yield {name: _parse_cell(name, _to_json_value(cell)) for name, cell in row.items() if cell is not None}
    except (ArrowException, OSError) as error:
        lines.read_error = f"it is a damaged Parquet file ({str(error)[:200]})"


def _to_json_value(cell: Any) -> Any:
    """Return a value of Parquet as JSON has it: a map, which is a list of pairs, as an object."""
    if isinstance(cell, Decimal):
        return float(cell)
    if isinstance(cell, dict):
        return {name: _to_json_value(item) for name, item in cell.items()}
    if not isinstance(cell, list):
        return cell
    if cell and all(isinstance(item, tuple) and len(item) == 2 for item in cell):
        return {str(name): _to_json_value(item) for name, item in cell}
    return list(map(_to_json_value, cell))


def _parse_cell(name: str, cell: Any) -> Any:
    """Return the value of a table's cell, which holds lists and objects as JSON, or as pandas writes them.

    Attributes of spans that are JSON stay text.
    """
    if not isinstance(cell, str) or cell[:1] not in ("{", "["):
        return cell
    value = parse_json(cell)
    if value is cell:
        return _parse_python(cell)
    return cell if name.startswith("attributes.") else value


def _parse_python(text: str) -> Any:
    """Parse the text that Python writes for lists and objects. Return the text if it is anything else."""
    if len(text) > MAX_PYTHON_CHARS:
        return text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes that Python would not have written
            return _evaluate(ast.parse(text, mode="eval").body)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return text


def _evaluate(node: ast.expr) -> Any:
    """Return the value of a literal. Nothing is executed: a call such as `datetime(...)` becomes its text or null."""
    match node:
        case ast.Dict():
            return {
                str(_evaluate(name)): _evaluate(item)
                for name, item in zip(node.keys, node.values, strict=True)
                if name is not None
            }
        case ast.List() | ast.Tuple() | ast.Set():
            return list(map(_evaluate, node.elts))
        case ast.Call(args=[argument, *_]):  # array([...]), UUID('...'), Timestamp('...')
            is_value = isinstance(argument, ast.List) or isinstance(getattr(argument, "value", None), str)
            return _evaluate(argument) if is_value else None
        case ast.Name(id="nan" | "inf" | "NaT") | ast.Call():
            return None
        case _:
            return ast.literal_eval(node)


def _find_product(row: Row) -> Callable[[Row], Span] | None:
    """Return what makes a span of a row, by the names of its fields."""
    if "run_type" in row:
        return _from_langsmith
    if "span_kind" in row or "context.span_id" in row:
        return _from_phoenix
    is_observation = _get(row, "start_time") is not None and _get(row, "trace_id") is not None
    return _from_langfuse if is_observation and _get(row, "type") is not None else None


def _from_langfuse(row: Row) -> Span:
    kind = str(_get(row, "type")).lower()
    version = _get(row, "prompt_version")
    facts = {
        "langfuse.observation.type": "chain" if kind == "span" else kind,
        "langfuse.trace.name": _get(row, "trace_name"),
        "langfuse.user.id": _get(row, "user_id"),
        "langfuse.session.id": _get(row, "session_id"),
        "langfuse.trace.tags": _get(row, "tags", "trace_tags"),
        "langfuse.observation.input": _to_text(_get(row, "input")),
        "langfuse.observation.output": _to_text(_get(row, "output")),
        "langfuse.observation.model.name": _get(row, "provided_model_name", "model"),
        "langfuse.observation.usage_details": _to_text(_to_numbers(_get(row, "usage_details", "usage"))),
        "langfuse.observation.cost_details": _to_text(_to_numbers(_get(row, "cost_details"))),
        "langfuse.observation.level": _get(row, "level"),
        "langfuse.observation.prompt.name": _get(row, "prompt_name"),
        "langfuse.observation.prompt.version": _to_number(version),
        "llm.cost.total": _to_number(_get(row, "total_cost", "calculated_total_cost")),
        "gen_ai.agent.version": _get(row, "release", "version"),
    }
    return _span(
        row,
        "langfuse",
        trace=_get(row, "trace_id"),
        id=_get(row, "id"),
        parent=_get(row, "parent_observation_id"),
        facts=facts,
        has_failed=_get(row, "level") == "ERROR",
        message=_get(row, "status_message"),
    )


def _from_langsmith(row: Row) -> Span:
    extra = _object(row, "extra")
    metadata = _object(extra, "metadata") or _object(row, "custom_metadata")  # the second by the product's command
    parameters, usage = _object(extra, "invocation_params"), {**row, **_object(row, "token_usage")}
    message, trace_mark, stack = str(row.get("error") or "").partition("Traceback (most recent call last)")
    message = message.strip() or stack.strip().rpartition("\n")[2]
    id, parent = row.get("id") or row.get("run_id"), row.get("parent_run_id")
    facts = {
        "langsmith.span.kind": row.get("run_type"),
        "langsmith.trace.name": None if parent else row.get("name"),
        "langsmith.span.tags": row.get("tags"),
        "langsmith.metadata.thread_id": next(
            (metadata[name] for name in ("session_id", "thread_id", "conversation_id") if metadata.get(name)), None
        ),
        "langsmith.metadata.user_id": metadata.get("user_id"),
        "gen_ai.request.model": metadata.get("ls_model_name") or parameters.get("model"),
        "gen_ai.usage.input_tokens": _to_number(usage.get("prompt_tokens")),
        "gen_ai.usage.output_tokens": _to_number(usage.get("completion_tokens")),
        "llm.cost.total": _to_number(row.get("total_cost")),
        "gen_ai.tool.name": row.get("name") if row.get("run_type") == "tool" else None,
        "gen_ai.tool.call.arguments": _to_text(row.get("inputs")),
        "gen_ai.tool.call.result": _to_text(_unwrap_output(row.get("outputs"))),
        "gen_ai.agent.version": metadata.get("revision_id"),
        "input.value": _to_text(row.get("inputs")),
    }
    exception = {"exception.message": message, "exception.stacktrace": f"{trace_mark}{stack}"}
    return _span(
        row,
        "langsmith",
        trace=row.get("trace_id") or id,
        id=id,
        parent=parent,
        facts=facts,
        has_failed=bool(row.get("error")) or row.get("status") == "error",
        message=message,
        events=[("exception", exception)] if stack else [],
    )


def _from_phoenix(row: Row) -> Span:
    context = _object(row, "context")
    facts: dict[str, Any] = {"openinference.span.kind": row.get("span_kind")}
    for name, value in row.items():
        if name == "attributes" and isinstance(value, dict):
            facts |= _flatten(value)
        elif name.startswith("attributes."):
            facts |= _flatten({name.removeprefix("attributes."): value})
    numbers = [name for name in facts if name.startswith(("llm.token_count.", "llm.cost."))]
    facts |= {name: _to_number(facts[name]) for name in numbers}  # tables may hold text
    facts |= {name: _to_text(facts[name]) for name in _TEXT_ATTRIBUTES if name in facts}
    row_events = row.get("events")
    events = [event for event in row_events if isinstance(event, dict)] if isinstance(row_events, list) else []
    return _span(
        row,
        "phoenix",
        trace=row.get("context.trace_id") or context.get("trace_id"),
        id=row.get("context.span_id") or context.get("span_id"),
        parent=row.get("parent_id"),
        facts=facts,
        has_failed=row.get("status_code") == "ERROR",
        message=row.get("status_message"),
        events=[(str(event.get("name")), _flatten(_object(event, "attributes"))) for event in events],
    )


def _span(
    row: Row,
    product: str,
    *,
    trace: Any,
    id: Any,
    parent: Any,
    facts: dict[str, Any],
    has_failed: bool,
    message: Any,
    events: list[tuple[str, dict[str, Any]]] | None = None,
) -> Span:
    end = _to_nanoseconds(_get(row, "end_time"))
    start = _to_nanoseconds(_get(row, "start_time")) or end
    environment = _get(row, "environment")
    return Span(
        trace=str(trace or ""),
        id=str(id or ""),
        parent=str(parent or ""),
        name=str(row.get("name") or "")[:MAX_LABEL_CHARS],
        start=start,
        end=end or start,
        facts={name: _bound(value) for name, value in facts.items() if value is not None},
        has_failed=has_failed,
        message=truncate_text(str(message or ""), MAX_TEXT_CHARS),
        events=[(name, {key: _bound(value) for key, value in fields.items()}) for name, fields in events or []],
        resource={"deployment.environment": environment} if isinstance(environment, str) else {},
        scope=NAME,
        format=product,
    )


def _get(row: Row, *names: str) -> Any:
    """Return the first field that has a value. APIs write names in camel case, exports of tables in snake case."""
    for name in names:
        first_word, *words = name.split("_")
        for written_name in (name, first_word + "".join(map(str.capitalize, words))):
            if row.get(written_name) is not None:
                return row[written_name]
    return None


def _object(row: Row, name: str) -> dict[str, Any]:
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested attributes with dotted names."""
    facts: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, dict) and f"{prefix}{name}" not in _TEXT_ATTRIBUTES:
            facts |= _flatten(item, f"{prefix}{name}.")
        else:
            facts[f"{prefix}{name}"] = item
    return facts


def _to_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value, enc_hook=str).decode()


def _bound(value: Any) -> Any:
    """Shorten a long text. One that is JSON stays JSON."""
    if not isinstance(value, str) or len(value) <= MAX_TEXT_CHARS:
        return value
    parsed = parse_json(value)
    return _to_text(bound_arguments(parsed)) if parsed is not value else truncate_text(value, MAX_TEXT_CHARS)


def _to_number(value: Any) -> int | float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if number.is_integer() else number


def _to_numbers(counts: Any) -> Any:
    """Return counts by name as numbers: databases write large integers as text."""
    return {name: _to_number(count) for name, count in counts.items()} if isinstance(counts, dict) else counts


def _unwrap_output(outputs: Any) -> Any:
    """Return what a tool answered: of a LangChain message in `{"output": ...}`, its content, and an error status."""
    if isinstance(outputs, dict) and outputs.keys() == {"output"}:
        outputs = outputs["output"]
    if isinstance(outputs, dict) and "lc" in outputs and isinstance(fields := outputs.get("kwargs"), dict):
        outputs = fields  # serialized with its class
    if not isinstance(outputs, dict) or "content" not in outputs or outputs.keys() <= {"content", "status"}:
        return outputs
    if outputs.get("type") != "tool" and "tool_call_id" not in outputs:
        return outputs
    is_error = outputs.get("status") == "error"
    return {"content": outputs["content"], "status": "error"} if is_error else outputs["content"]


def _to_nanoseconds(value: Any) -> int:
    """Convert a time. Without a zone it is in UTC, as these products write it."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.removesuffix(" UTC"))
        except ValueError:
            value = float(value) if value.replace(".", "", 1).isdigit() else 0
    if isinstance(value, datetime):
        try:
            return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1e6) * 1000
        except (OverflowError, ValueError):
            return 0
    return to_milliseconds(value) * 1_000_000
