"""Shell commands, parsed: words, pipelines and documents of POSIX shells, and of PowerShell as far as agents use it.

The parser accepts any text in linear time. It is not a shell: it expands nothing, and what it cannot read is a word.
Every word has its position in the text. `shlex` has no positions and rejects an open quote; a full grammar would
reject the error texts that repeat half a command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from mulligan.redaction.regex import LazyRegex

ESCAPE_FILLER = "\x1f"
"""Character that replaces a backslash where a quoted command is parsed, so that positions stay the same."""

_TOKEN = LazyRegex(
    # The most frequent tokens come first: a plain word, and the space after it.
    r"(?P<text>(?!,(?<=[\"'].))[\w./:=@%+,~^*?!\[\]{}-]++|\$(?![\"'(])|&(?![&\s])|<[A-Za-z][\w -]{0,30}+>|(?<=\S)\#)"
    r"|(?P<space>[ \t\r]++|[\\`]\r?\n|,(?=[ \"'])|(?<=\w)[\"'], ?[\"'](?=[\w-]))"
    r"|(?P<filler>\x1f)"
    r"|(?P<apostrophe>'(?<=[A-Za-z].)(?=(?:t|s|re|ve|ll|d|m)\b))"
    r"|(?P<quoted>'[^']*+'|\$'[^'\\]*+(?:\\.[^'\\]*+)*'|\$?\"[^\"\\`]*+(?:[\\`].[^\"\\`]*+)*\")"
    r"|(?P<escape>\\.)"
    r"|(?P<heredoc><<-?[ \t]?\\?[\"']?(?P<label>[A-Za-z_]\w{0,40}+)[\"']?)"
    r"|(?P<redirection>(?<![=-])>{1,2}(?:&\d?)?|<(?!<))"
    r"|(?P<operator>\n|&&|\|[|&]?|;{1,2}|&|\$?\(|\)|`|<<<)"
    r"|(?P<comment>\#[^\n]*+)"
    r"|(?P<other>.)",
    re.DOTALL,
)
_WORD_TOKENS = frozenset(("text", "quoted", "escape", "apostrophe", "other"))


class Word(NamedTuple):
    """A word of a command and its position in the text."""

    text: str
    """The word without its quotes and backslashes."""
    start: int
    end: int
    is_quoted: bool
    """Whether a quotation mark begins the word."""


class Command(NamedTuple):
    """A simple command: a program with its arguments, and the assignments before them."""

    words: tuple[Word, ...]
    operator: str = ""
    """The operator before the command, such as a pipe."""
    is_document: bool = False
    """Whether this is a line of a here-document."""
    files: tuple[str, ...] = ()


def parse_commands(text: str) -> Iterator[Command]:
    """Yield the simple commands of a text, in order, without their redirections."""
    words: list[Word] = []
    files: list[str] = []
    operator = ""
    start, pieces, is_quoted = -1, [""], False
    labels: list[str] = []
    label, is_document = "", False
    is_file = False  # the next word names the file of a redirection

    for token in _TOKEN.finditer(text):
        group = token.lastgroup
        if group == "filler":
            continue
        if group in _WORD_TOKENS:
            if start < 0:
                start, pieces, is_quoted = token.start(), [], group == "quoted"
            piece = token[0]
            pieces.append(_unquote(piece) if group == "quoted" else piece[1:] if group == "escape" else piece)
            continue
        if start >= 0:
            if is_file:
                files.append("".join(pieces))
            else:
                words.append(Word("".join(pieces), start, token.start(), is_quoted))
            start, is_file = -1, False
        if group == "redirection":
            is_file = token[0][-1] != "&" and not token[0][-1].isdigit()
        elif group == "heredoc":
            labels.append(token["label"])
        elif group == "operator":
            if label and len(words) == 1 and words[0].text == label:
                words, label, is_document = [], "", False
            if words:
                yield Command(tuple(words), operator, is_document, tuple(files))
            words, files, operator, is_file = [], [], token[0], False
            if token[0] == "\n" and labels and not label:
                label, is_document = labels.pop(0), True
    if start >= 0 and is_file:
        files.append("".join(pieces))
    elif start >= 0:
        words.append(Word("".join(pieces), start, len(text), is_quoted))
    if words:
        yield Command(tuple(words), operator, is_document, tuple(files))


def _unquote(piece: str) -> str:
    piece = piece.removeprefix("$").replace(ESCAPE_FILLER, "")
    mark, piece = piece[0], piece[1:-1]
    if mark == '"' and "\\" in piece:
        piece = piece.replace('\\"', '"').replace("\\$", "$").replace("\\\\", "\\")
    return piece


def unescape_nested(text: str) -> str:
    """Return the text inside a quoted word as a command of its own: each backslash before a quote is a filler."""
    return text.replace('\\"', f'{ESCAPE_FILLER}"').replace("\\'", f"{ESCAPE_FILLER}'") if "\\" in text else text
