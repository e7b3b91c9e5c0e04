"""mulligan classify."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import click

from mulligan import settings as settings_file
from mulligan.classify.classifier import Classifier
from mulligan.classify.fingerprint import VERSION, build_template
from mulligan.cli.options import as_json, terminal_width
from mulligan.core.failure import Failure, Remedy
from mulligan.core.records import Lesson
from mulligan.redaction import sanitize
from mulligan.report.tables import format_count, render_columns, render_pairs, to_line

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Limit for one text or one line. The classifier reads only both ends, but must find them."""

_REMEDY_SENTENCES = {
    Remedy.RETRY: "retry after a backoff",
    Remedy.REPAIR: "change the arguments",
    Remedy.COMPRESS: "shorten the conversation",
    Remedy.REPLAN: "report the failure to the model, which must change its plan",
    Remedy.STOP: "stop, a person must act first",
}
_TOOK_EFFECT_TEXTS = {
    "no": "no, the call did not execute", "yes": "yes", "unknown": "unknown, it may have executed",
}  # fmt: skip

_SOURCES = ("tool", "model", "retrieval", "orchestration")
_EXAMPLE = '{"text": "Connection refused"}'

FieldTypes = Mapping[str, tuple[type, str]]
"""Fields of a JSON object, each with its type and the description of it."""
_FIELDS: FieldTypes = {
    "text": (str, "a string"),
    "tool": (str, "a string"),
    "source": (str, "a string"),
    "exception": (str, "a string"),
    "status": (int, "a number"),
    "is_error": (bool, "true or false"),
    "arguments": (dict, "an object"),
}


@click.command(
    epilog="Examples:\n\n  make 2>&1 | mulligan classify\n\n  "
    "mulligan classify --tool Bash --show-fingerprint build.log\n\n"
    "  mulligan classify --jsonl errors.jsonl --json"
)
@click.argument("file", required=False, type=click.Path(allow_dash=True))
@click.option(
    "--jsonl", is_flag=True, help="Read one JSON object per line: text, and if known tool, status, exception, ..."
)
@click.option("--tool", help="Name of the tool that failed.")
@click.option("--source", type=click.Choice(_SOURCES), help="Type of the failed call. Default: detected from the text.")
@click.option("--status", type=click.IntRange(100, 599), help="HTTP status of the response.")
@click.option("--exception", help="Class of the exception, such as openai.RateLimitError.")
@click.option("--show-fingerprint", is_flag=True, help="Show the message template behind the fingerprint.")
@as_json
def classify(
    file: str | None,
    jsonl: bool,
    tool: str | None,
    source: str | None,
    status: int | None,
    exception: str | None,
    show_fingerprint: bool,
    as_json: bool,
) -> None:
    """Classify an error: print its kind, its remedy and a hint.

    Reads the error text from FILE or standard input. With --jsonl, reads one JSON object per line; an unreadable line
    is answered with an object that has the field "error". Exits 1 if no line is readable.
    """
    with open_input(file, "classify", "an error text", "build.log") as stream:
        if jsonl:
            if tool or source or status or exception:
                raise click.UsageError(
                    "--jsonl excludes --tool, --source, --status and --exception. Put these fields into each line."
                )
            sys.exit(0 if _classify_lines(read_lines(stream), as_json, show_fingerprint) else 1)
        text = stream.read(MAX_LINE_BYTES).decode("utf-8", "replace")
    if not text.strip():
        raise click.UsageError(
            "The input is empty. Pipe an error text in, or name a file: `mulligan classify build.log`."
        )
    failure = _build_classifier()(text=text, tool=tool, source=source, status=status, exception=exception)
    facts = _facts(failure, None, show_fingerprint)
    seed_lesson = _find_seed_lesson(failure, tool or "")
    if seed_lesson is not None:
        texts = {"mistake": sanitize(seed_lesson.mistake), "correction": sanitize(seed_lesson.correction)}
        facts["seed_lesson"] = {"id": seed_lesson.id, **texts}
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
    else:
        for line in _describe_failure(failure, facts):
            click.echo(line)


def open_input(file: str | None, command: str, content: str, example_name: str) -> IO[bytes]:
    """Open the named file or standard input. A terminal as standard input is an error."""
    if file is None and sys.stdin.isatty():
        raise click.UsageError(f"No input. Pipe {content} in, or name a file: `mulligan {command} {example_name}`.")
    try:
        return click.open_file(file or "-", "rb")
    except OSError as error:
        message = f"Cannot read {sanitize(str(file), 200)!r}: {error.strerror}."
        if any(letter.isspace() for letter in str(file)):
            message += f" To {command} the text itself, pipe it in: echo TEXT | mulligan {command}"
        raise click.UsageError(message) from None


def read_lines(stream: IO[bytes]) -> Iterator[bytes]:
    while line := stream.readline(MAX_LINE_BYTES):
        yield line


def parse_object(line: bytes, example: str) -> dict[str, Any]:
    """Parse a line. Raise ValueError with the reason if it is not a JSON object."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError(f"not a JSON object; expected one such as {example}")
    return parsed


def pick_fields(parsed: Mapping[str, Any], field_types: FieldTypes) -> dict[str, Any]:
    """Return these fields without null values. Raise ValueError if one has another type."""
    fields = {name: parsed[name] for name in field_types if parsed.get(name) is not None}
    for name, value in fields.items():
        expected_type, description = field_types[name]
        if not isinstance(value, expected_type) or (expected_type is int and isinstance(value, bool)):
            raise ValueError(f'"{name}" must be {description}')
    return fields


def _find_seed_lesson(failure: Failure, tool: str) -> Lesson | None:
    """Return the seed lesson about this failure, unless it is disabled in the store."""
    from mulligan.cli.options import open_existing_store
    from mulligan.learn import seeds  # only for a single text
    from mulligan.store.base import DEFAULT_TENANT

    if not seeds.find_matching_seeds(None, DEFAULT_TENANT, tool, failure):
        return None
    store = open_existing_store(settings_file.load_settings())
    return next(iter(seeds.find_matching_seeds(store, DEFAULT_TENANT, tool, failure)), None)


def _build_classifier() -> Callable[..., Failure]:
    """Return the classifier with the kinds and rules of the current settings."""
    settings = settings_file.load_settings()
    return Classifier.from_settings({"kinds": settings.kinds, "rules": settings.rules}).classify


def _classify_lines(lines: Iterator[bytes], as_json: bool, should_show_template: bool) -> bool:
    """Classify each line and print the result in order. An unreadable line prints an `error` instead.

    Return False if every line was unreadable.
    """
    rows: list[tuple[str, ...]] = []
    unreadable_count = 0
    classify_error = _build_classifier()
    for number, line in enumerate(lines, 1):
        try:
            fields = _parse_error_line(line)
            failure = classify_error(**fields)
        except ValueError as error:
            unreadable_count += 1
            facts = {"error": f"line {number}: {error}"}
            rows.append((str(number), "error", "", "", "", str(error)))
        else:
            facts = _facts(failure, fields.get("arguments"), should_show_template)
            message = to_line(facts["template" if should_show_template else "message"], 100)
            confidence = f"{failure.confidence:.2f}"
            rows.append((str(number), facts["kind"], facts["remedy"], facts["took_effect"], confidence, message))
        if as_json:
            click.echo(json.dumps(facts, ensure_ascii=False))
    if not as_json:
        unreadable_note = f", {unreadable_count} unreadable" if unreadable_count else ""
        click.echo(f"{format_count(len(rows), 'line')}{unreadable_note}.")
        if rows:
            titles = ("line", "kind", "remedy", "took effect", "confidence")
            titled_rows = [(*titles, "template" if should_show_template else "message"), *rows]
            click.echo("\n".join(["", *render_columns(titled_rows, right=(0, 4))]))
    return not rows or unreadable_count < len(rows)


def _parse_error_line(line: bytes) -> dict[str, Any]:
    """Return the arguments of `classify`. Raise ValueError with the reason if the line is invalid."""
    parsed = parse_object(line, _EXAMPLE)
    if parsed.get("text") is None:
        raise ValueError('missing field "text"')
    fields = pick_fields(parsed, _FIELDS)
    if fields.get("source", "tool") not in _SOURCES:
        raise ValueError(f'"source" must be one of {", ".join(_SOURCES)}')
    return fields


def _facts(failure: Failure, arguments: Any, should_show_template: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "kind": str(failure.kind),
        "type": failure.kind.type,
        "code": failure.kind.code,
        "remedy": failure.remedy.value,
        "took_effect": failure.took_effect.value,
        "confidence": round(failure.confidence, 2),
        "evidence": [sanitize(evidence_text, 200) for evidence_text in failure.evidence],
        "fingerprint": failure.fingerprint,
        "message": sanitize(failure.message),
        "hint": sanitize(failure.hint),
    }
    if should_show_template:
        facts["template"] = sanitize(build_template(failure.message, arguments))
    return facts


def _describe_failure(failure: Failure, facts: dict[str, Any]) -> Iterator[str]:
    yield f"{failure.kind}: {_REMEDY_SENTENCES[failure.remedy]}."
    yield ""
    rows = [("message", facts["message"] or "(empty)"), ("hint", facts["hint"])]
    if seed := facts.get("seed_lesson"):
        rows.append(("seed lesson", f"{seed['mistake']} {seed['correction']} [{seed['id']}]"))
    rows += [
        ("took effect", _TOOK_EFFECT_TEXTS[facts["took_effect"]]),
        ("confidence", f"{failure.confidence:.2f}"),
        ("evidence", ", ".join(facts["evidence"]) or "none"),
        ("fingerprint", failure.fingerprint),
    ]
    if failure.retry_after is not None:
        rows.append(("retry after", f"{failure.retry_after:g} s, as requested by the service"))
    if "template" in facts:
        rows.append(("template", f"fingerprint version {VERSION}: kind, tool and this text"))
        rows.append(("", facts["template"] or "nothing"))
    yield from render_pairs(((name, " ".join(value.split())) for name, value in rows), terminal_width())
