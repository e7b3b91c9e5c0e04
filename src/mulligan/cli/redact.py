"""mulligan redact: a filter that removes secrets and personal data from text."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import IO, Any, Literal

import click

from mulligan.cli.options import CommandContext, command, show_read_progress
from mulligan.redaction import Redactor
from mulligan.report.tables import format_count

_MAX_PIECE_CHARS = 8000
"""Length of text that a redactor reads without truncation."""
_ESCAPES = {code: 0x10F700 + code - 0xDC00 for code in range(0xDC80, 0xDD00)}
"""Bytes that are not UTF-8 (lone surrogates when decoded), as private-use characters, which a redactor preserves."""
_UNESCAPES = {escape: code for code, escape in _ESCAPES.items()}
_PLACEHOLDER = re.compile(r"\[redacted ([a-z0-9_]{1,40})\]")


@command(
    "kubectl logs api | mulligan redact > shareable.log",
    "mulligan redact --report < build.log > shareable.log",
    "mulligan redact --jsonl --all < calls.jsonl > clean.jsonl",
    has_store=False,
)
@click.argument("files", nargs=-1, metavar="")
@click.option(
    "--jsonl", is_flag=True, help='Read one JSON object per line; redact its field "text" and keep the other fields.'
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="With --jsonl: redact every string, and every value whose name indicates a secret.",
)
@click.option(
    "--level",
    type=click.Choice(["local", "shared"]),
    default="local",
    show_default=True,
    help="With --all: shared replaces every value by its type and length.",
)
@click.option("--report", is_flag=True, help="Print the kinds found to standard error, never the values.")
def redact(
    context: CommandContext,
    files: tuple[str, ...],
    jsonl: bool,
    everything: bool,
    level: Literal["local", "shared"],
    report: bool,
) -> None:
    """Remove secrets and personal data from a text.

    Reads standard input and writes standard output. Each line is redacted on its own; a private key is redacted as a
    whole. A placeholder names the kind, as in [redacted api_key]. --json prints the --report as JSON. For a long text,
    progress is shown on standard error if that is a terminal and standard output is not.

    Exits 1 if a line of --jsonl is unreadable; an object with the field "error" is printed in its place.
    """
    if files:
        # Do not repeat an argument that is not a file name: it may be the text with its secrets.
        file_name = files[0] if Redactor().text(files[0]) == files[0] and not files[0].split()[1:] else "FILE"
        raise click.UsageError(f"Text is read from standard input only. Use: `mulligan redact < {file_name}`.")
    if everything and not jsonl:
        raise click.UsageError("--all needs --jsonl. For plain text, remove it.")
    if level == "shared" and not everything:
        raise click.UsageError("--level shared needs --jsonl --all. Plain text is redacted the same at both levels.")
    if sys.stdin.isatty():
        raise click.UsageError("No input. Pipe a text in, as in the examples of --help.")
    redactor = Redactor(level=level)
    kind_counts: Counter[str] = Counter()
    unreadable_count = 0
    with show_read_progress("Redacting", _input_bytes()) as report_bytes:
        lines = _decode_lines(sys.stdin.buffer, report_bytes)
        for number, text in enumerate(lines if jsonl else _join_private_keys(lines), 1):
            if not jsonl:
                redacted = _redact_text(text, redactor)
            elif not text.strip():
                redacted = text
            elif not (redacted := _redact_object(text, redactor, everything)):
                unreadable_count += 1
                expectation = "a JSON object" if everything else 'an object with a string "text"'
                _write_text(json.dumps({"error": f"line {number} is not {expectation}"}) + "\n")
                continue
            kind_counts.update(_PLACEHOLDER.findall(redacted))
            kind_counts.subtract(_PLACEHOLDER.findall(text))
            _write_text(redacted)
    if report or context.as_json:
        _print_report(kind_counts, unreadable_count, context.as_json)
    if unreadable_count:
        raise SystemExit(1)


def _join_private_keys(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines, but join the lines of a private key: no single line identifies it."""
    key_lines: list[str] = []
    for line in lines:
        if key_lines or ("-----BEGIN " in line and "PRIVATE KEY" in line and "-----END " not in line):
            key_lines.append(line)
            # Longest private key. After that, lines are processed one by one again.
            if "-----END " not in line and len(key_lines) < 400:
                continue
            line = "".join(key_lines)
            key_lines.clear()
        yield line
    yield "".join(key_lines)


def _redact_object(line: str, redactor: Redactor, everything: bool) -> str:
    """Redact a line with a JSON object. Return an empty text if it is not one, or has no text to redact."""
    try:
        parsed = json.loads(line)
        if everything:
            parsed = redactor.value(parsed)
        else:
            parsed["text"] = _redact_text(parsed["text"], redactor)
        if not isinstance(parsed, dict):
            return ""
        output = json.dumps(parsed, ensure_ascii=False)
        if re.search("[\ud800-\udfff]", output):
            output = json.dumps(parsed)  # a lone surrogate can only be written as an escape
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return output + "\n"


def _redact_text(text: Any, redactor: Redactor) -> str:
    if not isinstance(text, str):
        raise TypeError
    return "".join(map(redactor.text, _split_text(text)))


def _split_text(text: str) -> Iterator[str]:
    """Split a long text between words, so that no secret is cut in two."""
    while len(text) > _MAX_PIECE_CHARS and "PRIVATE KEY" not in text[:_MAX_PIECE_CHARS]:
        end = max(text.rfind(mark, 0, _MAX_PIECE_CHARS) for mark in " ,\n") + 1 or _MAX_PIECE_CHARS
        yield text[:end]
        text = text[end:]
    yield text


def _input_bytes() -> int:
    """Return the size of standard input, or 0 for a pipe."""
    with contextlib.suppress(OSError):  # a stream without a file descriptor
        file_status = os.fstat(sys.stdin.fileno())
        return file_status.st_size if stat.S_ISREG(file_status.st_mode) else 0
    return 0


def _decode_lines(lines: IO[bytes], report_bytes: Callable[[int], None]) -> Iterator[str]:
    """Decode lines. `_write_text` restores bytes that are not UTF-8."""
    has_terminal_output = sys.stdout.isatty()  # There, the output itself shows the progress.
    bytes_read = 0
    # Limit for one line. A longer line is processed in parts.
    while line := lines.readline(64 * 1024 * 1024):
        text = line.decode("utf-8", "surrogateescape")
        yield text if text.isascii() else text.translate(_ESCAPES)
        bytes_read += len(line)
        if not has_terminal_output:
            report_bytes(bytes_read)


def _write_text(text: str) -> None:
    stream = sys.stdout.buffer
    stream.write((text if text.isascii() else text.translate(_UNESCAPES)).encode("utf-8", "surrogateescape"))
    stream.flush()


def _print_report(kind_counts: Counter[str], unreadable_count: int, as_json: bool) -> None:
    counts = dict((+kind_counts).most_common())
    if as_json:
        click.echo(json.dumps({"found": counts, "unreadable": unreadable_count}), err=True)
        return
    summary = f"{sum(counts.values()):,} found." if counts else "Nothing found."
    if unreadable_count:
        summary += f" {format_count(unreadable_count, 'line')} could not be read."
    rows = [f"  {times:>7,}  {kind}" for kind, times in counts.items()]
    click.echo("\n".join([summary, *(["", *rows] if rows else [])]), err=True)
