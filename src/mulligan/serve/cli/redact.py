"""mulligan redact: a filter that removes secrets and personal data from text."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import IO, Any, Literal

import click

from mulligan.redaction import Redactor
from mulligan.serve.cli.options import as_json
from mulligan.serve.cli.progress import Progress

_MOST = 64 * 1024 * 1024
"""Limit for one line. A longer line is processed in parts."""
_PIECE = 8000
"""Length of text that a redactor reads without truncation."""
_AWAY = 0x10F700 - 0xDC00
_BYTES = re.compile("[\udc80-\udcff]")
_KEPT = re.compile("[\U0010f780-\U0010f7ff]")
_HALVES = re.compile("[\ud800-\udfff]")
_PLACEHOLDER = re.compile(r"\[redacted ([a-z0-9_]{1,40})\]")
_BLOCK = 400
"""Longest private key. After that, lines are processed one by one again."""


@click.command(
    epilog="Examples:\n\n  kubectl logs api | mulligan redact > shareable.log\n\n"
    "  mulligan redact --report < build.log > shareable.log\n\n"
    "  mulligan redact --jsonl --all < calls.jsonl > clean.jsonl"
)
@click.argument("files", nargs=-1, metavar="")
@click.option("--jsonl", is_flag=True, help='One object a line: its field "text" is redacted, the others stay.')
@click.option("--all", "everything", is_flag=True, help="With --jsonl: every string, and what its name says is secret.")
@click.option(
    "--level",
    type=click.Choice(["local", "shared"]),
    default="local",
    show_default=True,
    help="With --all: shared leaves of every value its type and length.",
)
@click.option("--report", is_flag=True, help="Say on standard error which kinds were found, never what it was.")
@as_json
def redact(
    files: tuple[str, ...],
    jsonl: bool,
    everything: bool,
    level: Literal["local", "shared"],
    report: bool,
    as_json: bool,
) -> None:
    """Take secrets and personal data out of a text.

    Reads standard input, writes standard output, line by line: each line is looked at for itself, a private key whole.
    What is taken out leaves its kind, as in [redacted api_key]. --json is --report as JSON. Of a long text, standard
    error shows how far it is, where that is a terminal and standard output is not.

    Exit 1 when a line of --jsonl could not be read: an object with the field "error" stands in its place.
    """
    if files:
        # Do not repeat an argument that is not a file name: it may be the text with its secrets.
        place = files[0] if Redactor().text(files[0]) == files[0] and not files[0].split()[1:] else "FILE"
        raise click.UsageError(f"text is read from standard input only: `mulligan redact < {place}`.")
    if everything and not jsonl:
        raise click.UsageError("--all is about the fields of --jsonl. For plain text, leave it out.")
    if level == "shared" and not everything:
        raise click.UsageError("--level shared is about values: add --jsonl --all. Text is the same at both levels.")
    if sys.stdin.isatty():
        raise click.UsageError("give me a text on standard input, as the examples of --help do.")
    redactor = Redactor(level=level)
    found: Counter[str] = Counter()
    progress = Progress("Redacting", sys.stdin.buffer)
    lines = _decoded(sys.stdin.buffer, progress)
    try:
        bad = _objects(lines, redactor, everything, found) if jsonl else _texts(lines, redactor, found)
    finally:
        progress.done()
    if report or as_json:
        _tell(found, bad, as_json)
    if bad:
        raise SystemExit(1)


def _texts(lines: Iterator[str], redactor: Redactor, found: Counter[str]) -> int:
    for text in _paragraphs(lines):
        _put(_redacted(text, redactor, found))
    return 0


def _paragraphs(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines, but join the lines of a private key: no single line identifies it."""
    held: list[str] = []
    for line in lines:
        if held or ("-----BEGIN " in line and "PRIVATE KEY" in line and "-----END " not in line):
            held.append(line)
            if "-----END " not in line and len(held) < _BLOCK:
                continue
            line = "".join(held)
            held.clear()
        yield line
    yield "".join(held)


def _objects(lines: Iterator[str], redactor: Redactor, everything: bool, found: Counter[str]) -> int:
    bad = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            _put(line)
            continue
        try:
            given = json.loads(line)
            if everything and isinstance(given, dict):
                given = redactor.value(given)
            elif not everything:
                given["text"] = _redacted(given["text"], redactor, found)
            said = _spelt(given) if isinstance(given, dict) else ""
        except (ValueError, TypeError, KeyError, RecursionError):
            said = ""
        if not said:
            bad += 1
            wanted = "an object that can be read" if everything else 'an object with a string "text"'
            _put(json.dumps({"error": f"line {number} is not {wanted}"}) + "\n")
            continue
        if everything:
            _count(said, line, found)
        _put(said + "\n")
    return bad


def _spelt(given: dict[str, Any]) -> str:
    said = json.dumps(given, ensure_ascii=False)
    # A lone surrogate can only be written as an escape.
    return said if said.isprintable() or not _HALVES.search(said) else json.dumps(given)


def _redacted(text: str, redactor: Redactor, found: Counter[str]) -> str:
    if not isinstance(text, str):
        raise TypeError
    redacted = "".join(redactor.text(piece) for piece in _pieces(text))
    _count(redacted, text, found)
    return redacted


def _pieces(text: str) -> Iterator[str]:
    """Split a long text between words, so that no secret is cut in two."""
    while len(text) > _PIECE and "PRIVATE KEY" not in text[:_PIECE]:
        end = max(text.rfind(mark, 0, _PIECE) for mark in " ,\n") + 1 or _PIECE
        yield text[:end]
        text = text[end:]
    yield text


def _count(after: str, before: str, found: Counter[str]) -> None:
    found.update(_PLACEHOLDER.findall(after))
    found.subtract(_PLACEHOLDER.findall(before))


def _decoded(lines: IO[bytes], progress: Progress) -> Iterator[str]:
    """Decode lines. Map a byte that is not UTF-8 to a private-use character; `_write_text` maps it back."""
    while line := lines.readline(_MOST):
        text = line.decode("utf-8", "surrogateescape")
        yield text if text.isascii() else _BYTES.sub(lambda hit: chr(ord(hit[0]) + _AWAY), text)
        progress.read(len(line))


def _put(text: str) -> None:
    if not text.isascii():
        text = _KEPT.sub(lambda hit: chr(ord(hit[0]) - _AWAY), text)
    stream = sys.stdout.buffer
    stream.write(text.encode("utf-8", "surrogateescape"))
    stream.flush()


def _tell(found: Counter[str], bad: int, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"found": dict((+found).most_common()), "unreadable": bad}), err=True)
        return
    found = +found
    total = sum(found.values())
    told = f"{total:,} found." if total else "Nothing found."
    lines = "1 line" if bad == 1 else f"{bad:,} lines"
    click.echo(f"{told} {lines} could not be read." if bad else told, err=True)
    if total:
        click.echo(err=True)
    for kind, times in found.most_common():
        click.echo(f"  {times:>7,}  {kind}", err=True)
