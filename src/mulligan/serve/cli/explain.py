"""mulligan explain, also available as mulligan classify."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import IO, Any

import click

from mulligan import settings as settings_file
from mulligan.classify.classifier import Classifier
from mulligan.classify.fingerprint import VERSION, template
from mulligan.failure import Failure, Remedy
from mulligan.records import Lesson
from mulligan.redaction import clean
from mulligan.report.tables import columns, count, pairs
from mulligan.serve.cli.options import as_json, width

_MOST = 64 * 1024 * 1024
"""Limit for one text or one line. The classifier reads only both ends, but must find them."""

_MOVES = {
    Remedy.WAIT: "wait, then the same again",
    Remedy.REPAIR: "change the arguments",
    Remedy.COMPRESS: "shorten the conversation",
    Remedy.TELL: "tell the model, which must do something else",
    Remedy.STOP: "stop, a person must act",
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
    epilog="Examples:\n\n  make 2>&1 | mulligan explain\n\n  mulligan explain --tool Bash --why build.log\n\n"
    "  mulligan explain --jsonl errors.jsonl --json"
)
@click.argument("file", required=False, type=click.Path(allow_dash=True))
@click.option("--jsonl", is_flag=True, help="One object a line: text, and if known tool, status, exception, ...")
@click.option("--tool", help="The tool that failed.")
@click.option("--source", type=click.Choice(_SOURCES), help="What was called. Without it, the text decides.")
@click.option("--status", type=click.IntRange(100, 599), help="The HTTP status.")
@click.option("--exception", help="The exception's class, such as openai.RateLimitError.")
@click.option("--why", is_flag=True, help="What the fingerprint is made of.")
@as_json
def explain(
    file: str | None,
    jsonl: bool,
    tool: str | None,
    source: str | None,
    status: int | None,
    exception: str | None,
    why: bool,
    as_json: bool,
) -> None:
    """What kind of failure is this, and whose move is it?

    Reads an error's text from FILE or from standard input, or with --jsonl one object a line: an answer with the field
    "error" stands in the place of one that cannot be read. Exit 1 when none can.
    """
    with _opened(file) as stream:
        if jsonl:
            if tool or source or status or exception:
                raise click.UsageError("with --jsonl, tool, source, status and exception stand in each line.")
            is_any_read = _each(_lines(stream), as_json, why)
            sys.exit(0 if is_any_read else 1)
        text = stream.read(_MOST).decode("utf-8", "replace")
    if not text.strip():
        raise click.UsageError("there is no text to explain. Pipe one in, or type `mulligan explain build.log`.")
    asked = {"text": text, "tool": tool, "source": source, "status": status, "exception": exception}
    failure = _classify()(**asked)
    known = _known(failure, tool or "")
    if as_json:
        facts = _facts(failure, asked, why)
        if known is not None:
            facts["known"] = {
                "lesson": known.id,
                "mistake": clean(known.mistake),
                "correction": clean(known.correction),
            }
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    for line in _told(failure, asked, why, known):
        click.echo(line)


def _known(failure: Failure, tool: str) -> Lesson | None:
    """Return the seed lesson about this failure, unless it is disabled in the store."""
    from mulligan.remember.seeds import corpus  # only for a single text
    from mulligan.remember.store import LOCAL
    from mulligan.serve.cli.options import opened

    if not corpus.known(None, LOCAL, tool, failure):
        return None
    return next(iter(corpus.known(opened(settings_file.read()), LOCAL, tool, failure)), None)


def _opened(file: str | None) -> IO[bytes]:
    if file is None and sys.stdin.isatty():
        raise click.UsageError("give me a text on standard input, or a file: `mulligan explain build.log`.")
    try:
        return click.open_file(file or "-", "rb")
    except OSError as error:
        said = f"{clean(str(file), 200)} cannot be read: {error.strerror}."
        if any(letter.isspace() for letter in str(file)):
            said += " If that is the error itself, pipe it in: echo TEXT | mulligan explain"
        raise click.UsageError(said) from None


def _classify() -> Callable[..., Failure]:
    """Return the classifier with the kinds and rules of the current settings."""
    settings = settings_file.read()
    return Classifier.from_settings({"kinds": settings.kinds, "rules": settings.rules}).classify


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    while line := stream.readline(_MOST):
        yield line


def _each(lines: Iterator[bytes], as_json: bool, why: bool) -> bool:
    """Classify each line and print the result in order. An unreadable line prints an `error` instead.

    Return False if every line was unreadable.
    """
    rows: list[tuple[str, ...]] = []
    number = bad = 0
    classify = _classify()
    for number, line in enumerate(lines, 1):
        try:
            asked = _asked(line)
        except ValueError as error:
            bad += 1
            if as_json:
                click.echo(json.dumps({"error": f"line {number}: {error}"}))
            rows.append((str(number), "error", "", "", "", str(error)))
            continue
        failure = classify(**asked)
        if as_json:
            click.echo(json.dumps(_facts(failure, asked, why), ensure_ascii=False))
            continue
        sure = f"{failure.confidence:.2f}"
        said = clean(template(failure.message, asked.get("arguments")) if why else failure.message, 100)
        said = " ".join(said.split())
        rows.append((str(number), str(failure.kind), failure.remedy.value, failure.ran.value, sure, said))
    is_any_read = not number or bad < number
    if as_json:
        return is_any_read
    click.echo(f"{count(len(rows), 'line')}, {bad} of them unreadable." if bad else f"{count(len(rows), 'line')}.")
    if rows:
        click.echo()
        head = ("line", "kind", "remedy", "ran", "sure", "template" if why else "message")
        for row in columns([head, *rows], right=(0, 4)):
            click.echo(row)
    return is_any_read


def _asked(line: bytes) -> dict[str, Any]:
    """Return the arguments of `classify`. Raise ValueError with the reason if the line is invalid."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError('not a JSON object, such as {"text": "Connection refused"}') from None
    if not isinstance(given, dict):
        raise ValueError('not a JSON object, such as {"text": "Connection refused"}')
    if given.get("text") is None:
        raise ValueError('no "text"')
    asked = {}
    for name, (sort, wanted) in _FIELDS.items():
        value = given.get(name)
        if value is None:
            continue
        if not isinstance(value, sort) or (sort is int and isinstance(value, bool)):
            raise ValueError(f'"{name}" is {wanted}')
        asked[name] = value
    if asked.get("source", "tool") not in _SOURCES:
        raise ValueError(f'"source" is one of {", ".join(_SOURCES)}')
    return asked


def _facts(failure: Failure, asked: dict[str, Any], why: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "type": failure.kind.type,
        "code": failure.kind.code,
        "remedy": failure.remedy.value,
        "ran": failure.ran.value,
        "confidence": round(failure.confidence, 2),
        "evidence": [clean(each, 200) for each in failure.evidence],
        "fingerprint": failure.fingerprint,
        "message": clean(failure.message),
        "hint": clean(failure.hint),
    }
    if why:
        facts["template"] = clean(template(failure.message, asked.get("arguments")))
    return facts


def _told(failure: Failure, asked: dict[str, Any], why: bool, known: Lesson | None = None) -> Iterator[str]:
    yield f"{failure.kind}: {_MOVES[failure.remedy]}."
    yield ""
    rows = [
        ("message", clean(failure.message) or "nothing was said"),
        ("hint", clean(failure.hint)),
        *([("known", f"{clean(known.mistake)} {clean(known.correction)} [{known.id}]")] if known is not None else []),
        (
            "ran",
            {"no": "no, nothing happened", "yes": "yes", "unknown": "unknown, it may have happened"}[failure.ran.value],
        ),
        ("sure", f"{failure.confidence:.2f}"),
        ("evidence", ", ".join(clean(each, 200) for each in failure.evidence) or "none"),
        ("fingerprint", failure.fingerprint),
    ]
    if failure.retry_after is not None:
        rows.append(("wait", f"{failure.retry_after:g} s, as it asked"))
    if why:
        rows.append(("made of", f"kind, tool and this text (version {VERSION}):"))
        rows.append(("", clean(template(failure.message, asked.get("arguments"))) or "nothing"))
    yield from pairs(((name, " ".join(value.split())) for name, value in rows), width())
