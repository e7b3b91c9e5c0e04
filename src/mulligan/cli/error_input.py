"""Error texts as people type or paste them: words, a file, a Python traceback, an HTTP status, a JSON object."""

from __future__ import annotations

import itertools
import json
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import click

from mulligan.classify.declared_errors import AgentError, InfraError
from mulligan.classify.results import strip_frame
from mulligan.redaction import sanitize

MAX_INPUT_BYTES = 64 * 1024 * 1024
"""Limit for one text or one line. The classifier reads only both ends, but must find them."""
TRACEBACK_HEADER = "Traceback (most recent call last):"
FILE_SUFFIXES = (".log", ".txt", ".out", ".err", ".json", ".jsonl")
DECLARED_ERRORS: dict[str, type[AgentError | InfraError]] = {
    f"{cls.__module__}.{cls.__name__}": cls for cls in (AgentError, InfraError)
}
"""Exceptions of mulligan by the names under which tracebacks show them. Their class decides the kind."""
_CHAIN_LINE = re.compile(
    r"^(?:The above exception was the direct cause of the following exception|"
    r"During handling of the above exception, another exception occurred):$",
    re.MULTILINE,
)
_EXCEPTION_LINE = re.compile(r"([A-Za-z_][\w.<>]{0,199})(?:: (.*))?")

FieldTypes = Mapping[str, tuple[type, str]]
"""Fields of a JSON object: their type, and its description for error messages."""
ERROR_FIELDS: FieldTypes = {
    "text": (str, "a string"),
    "tool": (str, "a string"),
    "source": (str, "a string"),
    "exception": (str, "a string"),
    "status": (int, "a number"),
    "category": (str, "a category of tools"),
    "is_error": (bool, "true or false"),
    "arguments": (dict, "an object"),
}


def open_input(file: str | None, command: str, content: str, example: str) -> IO[bytes]:
    """Open the named file or standard input. A terminal as standard input is an error."""
    if file is None and sys.stdin.isatty():
        raise click.UsageError(f"No input. Pipe {content} in, or type: mulligan {command} {example}")
    try:
        return click.open_file(file or "-", "rb")
    except OSError as error:
        raise click.UsageError(f"Cannot read {sanitize(str(file), 200)!r}: {error.strerror}.") from None


def read_error_text(words: Sequence[str]) -> str:
    """Return the error text: the words, the content of the file that they name, or standard input."""
    if not words or words == ("-",) or _is_file_name(words):
        example = "'connection refused'"
        with open_input(words[0] if words else None, "classify", "an error text", example) as stream:
            text = stream.read(MAX_INPUT_BYTES).decode("utf-8", "replace")
    else:
        text = " ".join(words)
    if not text.strip():
        raise click.UsageError("The input is empty. Type an error text, pipe it in, or name a file.")
    return text


def _is_file_name(words: Sequence[str]) -> bool:
    """Return whether one word names a file: it exists, or it looks like a path and not like an error."""
    if len(words) != 1 or "\n" in words[0]:
        return False
    try:
        if Path(words[0]).is_file():
            return True
    except (OSError, ValueError):  # too long for a path, or a null character
        return False
    has_spaces = any(character.isspace() for character in words[0])
    return not has_spaces and (words[0].startswith(("/", "./", "../", "~/")) or words[0].endswith(FILE_SUFFIXES))


def pick_fields(parsed: Mapping[str, Any], field_types: FieldTypes) -> dict[str, Any]:
    """Return these fields without null values. Raise ValueError if one has another type."""
    fields = {name: parsed[name] for name in field_types if parsed.get(name) is not None}
    for name, value in fields.items():
        expected_type, description = field_types[name]
        if not isinstance(value, expected_type) or (expected_type is int and isinstance(value, bool)):
            raise ValueError(f'"{name}" must be {description}')
    return fields


def parse_error(text: str) -> dict[str, Any]:
    """Return the arguments for the classifier: the text with the class, the status or the fields that it contains.

    A provider's response body is passed on as it is: the classifier reads it.
    """
    if re.fullmatch(r"[0-9]{3}", text.strip()):
        return {"text": text, "status": int(text)}
    is_program_output = strip_frame(text)[1] is not None  # it has an exit code
    if TRACEBACK_HEADER in text and not is_program_output and (raised := _parse_traceback(text)):
        exception, message = raised
        if exception in DECLARED_ERRORS:
            return {"error": DECLARED_ERRORS[exception](message)}
        return {"text": message or exception.rpartition(".")[2], "exception": exception}
    if text.lstrip()[:1] == "{":
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict) and parsed.get("text") and parsed.keys() <= {"id", *ERROR_FIELDS}:
            return pick_fields(parsed, ERROR_FIELDS)
    return {"text": text}


def _parse_traceback(text: str) -> tuple[str, str] | None:
    """Return class and message of the exception that a traceback ends with, or None if it is incomplete.

    An exception without a message tells less than the one that it was raised from, which is printed before it.
    """
    blocks = _CHAIN_LINE.split(textwrap.dedent(text.replace("\r\n", "\n")))
    parsed_blocks = (_parse_exception(block.rpartition(TRACEBACK_HEADER)[2]) for block in blocks)
    exceptions = [raised for raised in parsed_blocks if raised is not None]
    return next((raised for raised in reversed(exceptions) if raised[1]), exceptions[-1] if exceptions else None)


def _parse_exception(block: str) -> tuple[str, str] | None:
    """Return class and message at the end of one traceback: its first line without indentation, and what follows."""
    lines = block.strip("\n").split("\n")
    while lines and (not lines[0].strip() or lines[0][:1].isspace()):
        lines.pop(0)
    match = _EXCEPTION_LINE.fullmatch(lines[0].rstrip()) if lines else None
    if match is None:
        return None
    # Start of the note that mulligan adds to an exception. It is not part of the error.
    message_lines = [match[2] or "", *itertools.takewhile(lambda line: not line.startswith("mulligan: "), lines[1:])]
    return match[1], "\n".join(message_lines).strip()
