"""mulligan classify."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import IO, Any

import click

from mulligan import settings as settings_file
from mulligan.classify.classifier import Classifier
from mulligan.classify.fingerprint import VERSION, build_template
from mulligan.cli.options import as_json, terminal_width
from mulligan.core.failure import Failure, Remedy
from mulligan.core.records import Lesson
from mulligan.redaction import sanitize
from mulligan.report.tables import format_count, render_columns, render_pairs

_MAX_TEXT_BYTES = 64 * 1024 * 1024
"""Limit for one text or one line. The classifier reads only both ends, but must find them."""

_REMEDY_SENTENCES = {
    Remedy.RETRY: "retry after a backoff",
    Remedy.REPAIR: "change the arguments",
    Remedy.COMPRESS: "shorten the conversation",
    Remedy.REPLAN: "report the failure to the model, which must change its plan",
    Remedy.STOP: "stop, a person must act first",
}

_SOURCES = ("tool", "model", "retrieval", "orchestration")
_FIELDS: dict[str, tuple[type | tuple[type, ...], str]] = {
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
    with _open_input(file) as stream:
        if jsonl:
            if tool or source or status or exception:
                raise click.UsageError(
                    "--jsonl excludes --tool, --source, --status and --exception. Put these fields into each line."
                )
            is_any_read = _classify_lines(_read_lines(stream), as_json, show_fingerprint)
            sys.exit(0 if is_any_read else 1)
        text = stream.read(_MAX_TEXT_BYTES).decode("utf-8", "replace")
    if not text.strip():
        raise click.UsageError(
            "The input is empty. Pipe an error text in, or name a file: `mulligan classify build.log`."
        )
    error_fields = {"text": text, "tool": tool, "source": source, "status": status, "exception": exception}
    failure = _build_classifier()(**error_fields)
    seed_lesson = _find_seed_lesson(failure, tool or "")
    if as_json:
        facts = _facts(failure, error_fields, show_fingerprint)
        if seed_lesson is not None:
            facts["seed_lesson"] = {
                "id": seed_lesson.id,
                "mistake": sanitize(seed_lesson.mistake),
                "correction": sanitize(seed_lesson.correction),
            }
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    for line in _describe_failure(failure, error_fields, show_fingerprint, seed_lesson):
        click.echo(line)


def _find_seed_lesson(failure: Failure, tool: str) -> Lesson | None:
    """Return the seed lesson about this failure, unless it is disabled in the store."""
    from mulligan.cli.options import open_existing_store
    from mulligan.learn.seeds import corpus  # only for a single text
    from mulligan.store.base import DEFAULT_TENANT

    if not corpus.find_matching_seeds(None, DEFAULT_TENANT, tool, failure):
        return None
    return next(
        iter(
            corpus.find_matching_seeds(
                open_existing_store(settings_file.load_settings()), DEFAULT_TENANT, tool, failure
            )
        ),
        None,
    )


def _open_input(file: str | None) -> IO[bytes]:
    if file is None and sys.stdin.isatty():
        raise click.UsageError("No input. Pipe an error text in, or name a file: `mulligan classify build.log`.")
    try:
        return click.open_file(file or "-", "rb")
    except OSError as error:
        message = f"Cannot read {sanitize(str(file), 200)!r}: {error.strerror}."
        if any(letter.isspace() for letter in str(file)):
            message += " To classify the text itself, pipe it in: echo TEXT | mulligan classify"
        raise click.UsageError(message) from None


def _build_classifier() -> Callable[..., Failure]:
    """Return the classifier with the kinds and rules of the current settings."""
    settings = settings_file.load_settings()
    return Classifier.from_settings({"kinds": settings.kinds, "rules": settings.rules}).classify


def _read_lines(stream: IO[bytes]) -> Iterator[bytes]:
    while line := stream.readline(_MAX_TEXT_BYTES):
        yield line


def _classify_lines(lines: Iterator[bytes], as_json: bool, should_show_fingerprint: bool) -> bool:
    """Classify each line and print the result in order. An unreadable line prints an `error` instead.

    Return False if every line was unreadable.
    """
    rows: list[tuple[str, ...]] = []
    number = unreadable_count = 0
    classify_error = _build_classifier()
    for number, line in enumerate(lines, 1):
        try:
            error_fields = _parse_error_line(line)
        except ValueError as error:
            unreadable_count += 1
            if as_json:
                click.echo(json.dumps({"error": f"line {number}: {error}"}))
            rows.append((str(number), "error", "", "", "", str(error)))
            continue
        failure = classify_error(**error_fields)
        if as_json:
            click.echo(json.dumps(_facts(failure, error_fields, should_show_fingerprint), ensure_ascii=False))
            continue
        confidence = f"{failure.confidence:.2f}"
        message = sanitize(
            build_template(failure.message, error_fields.get("arguments"))
            if should_show_fingerprint
            else failure.message,
            100,
        )
        message = " ".join(message.split())
        rows.append(
            (str(number), str(failure.kind), failure.remedy.value, failure.took_effect.value, confidence, message)
        )
    is_any_read = not number or unreadable_count < number
    if as_json:
        return is_any_read
    click.echo(
        f"{format_count(len(rows), 'line')}, {unreadable_count} unreadable."
        if unreadable_count
        else f"{format_count(len(rows), 'line')}."
    )
    if rows:
        click.echo()
        head = (
            "line",
            "kind",
            "remedy",
            "took effect",
            "confidence",
            "template" if should_show_fingerprint else "message",
        )
        for row in render_columns([head, *rows], right=(0, 4)):
            click.echo(row)
    return is_any_read


def _parse_error_line(line: bytes) -> dict[str, Any]:
    """Return the arguments of `classify`. Raise ValueError with the reason if the line is invalid."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError('not a JSON object; expected one such as {"text": "Connection refused"}') from None
    if not isinstance(parsed, dict):
        raise ValueError('not a JSON object; expected one such as {"text": "Connection refused"}')
    if parsed.get("text") is None:
        raise ValueError('missing field "text"')
    error_fields = {}
    for name, (expected_type, description) in _FIELDS.items():
        value = parsed.get(name)
        if value is None:
            continue
        if not isinstance(value, expected_type) or (expected_type is int and isinstance(value, bool)):
            raise ValueError(f'"{name}" must be {description}')
        error_fields[name] = value
    if error_fields.get("source", "tool") not in _SOURCES:
        raise ValueError(f'"source" must be one of {", ".join(_SOURCES)}')
    return error_fields


def _facts(failure: Failure, error_fields: dict[str, Any], should_show_fingerprint: bool) -> dict[str, Any]:
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
    if should_show_fingerprint:
        facts["template"] = sanitize(build_template(failure.message, error_fields.get("arguments")))
    return facts


def _describe_failure(
    failure: Failure, error_fields: dict[str, Any], should_show_fingerprint: bool, seed_lesson: Lesson | None = None
) -> Iterator[str]:
    yield f"{failure.kind}: {_REMEDY_SENTENCES[failure.remedy]}."
    yield ""
    rows = [
        ("message", sanitize(failure.message) or "(empty)"),
        ("hint", sanitize(failure.hint)),
        *(
            [("seed lesson", f"{sanitize(seed_lesson.mistake)} {sanitize(seed_lesson.correction)} [{seed_lesson.id}]")]
            if seed_lesson is not None
            else []
        ),
        (
            "took effect",
            {"no": "no, the call did not execute", "yes": "yes", "unknown": "unknown, it may have executed"}[
                failure.took_effect.value
            ],
        ),
        ("confidence", f"{failure.confidence:.2f}"),
        ("evidence", ", ".join(sanitize(evidence_text, 200) for evidence_text in failure.evidence) or "none"),
        ("fingerprint", failure.fingerprint),
    ]
    if failure.retry_after is not None:
        rows.append(("retry after", f"{failure.retry_after:g} s, as requested by the service"))
    if should_show_fingerprint:
        rows.append(("template", f"fingerprint version {VERSION}: kind, tool and this text"))
        rows.append(("", sanitize(build_template(failure.message, error_fields.get("arguments"))) or "nothing"))
    yield from render_pairs(((name, " ".join(value.split())) for name, value in rows), terminal_width())
