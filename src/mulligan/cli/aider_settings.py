"""The files that `.aider.conf.yml` tells Aider to read at its start: add one, remove it again."""

from __future__ import annotations

import json
import re

from mulligan.core.failure import SettingsError

_READ_KEY = re.compile(
    r"^read[ \t]*:[ \t]*(?P<value>[^\r\n]*?)[ \t]*(?P<comment>(?:(?<=\s)#[^\r\n]*)?)(?=\r?$)", re.MULTILINE
)
_ITEM = re.compile(r"(?:[ \t]*(?:#[^\r\n]*)?\r?\n)*(?P<indent>[ \t]*)- [^\r\n]*")
_PLAIN = re.compile(r"[\w./~-][\w./~ -]*|\"[^\"\\]*\"|'[^']*'")


def add_read_file(text: str, file: str) -> str:
    """Return the settings with this file in the list `read`. Raise SettingsError for a layout that is not known."""
    item, newline = json.dumps(file, ensure_ascii=False), "\r\n" if "\r\n" in text else "\n"
    if reads_file(text, file):
        return text
    key = _READ_KEY.search(text)
    if key is None:
        gap = newline if text and not text.endswith("\n") else ""
        return f"{text}{gap}read: {item}{newline}"
    value = key["value"]
    if not value:
        end, indent = key.end(), None
        while match := _ITEM.match(text, end + len(newline)):
            end, indent = match.end(), match["indent"]
        if indent is not None:
            return f"{text[:end]}{newline}{indent}- {item}{text[end:]}"
    if value.startswith("[") and value.endswith("]"):
        members = value[1:-1].strip()
        new = f"[{members}, {item}]" if members else f"[{item}]"
    elif not value or _PLAIN.fullmatch(value):
        new = f"[{value}, {item}]" if value else item
    else:
        raise SettingsError(f"The list `read` has a layout that mulligan does not edit. Add {item} to it yourself.")
    separator = "" if text[key.start("value") - 1].isspace() else " "
    return text[: key.start("value")] + separator + new + text[key.end("value") :]


def reads_file(text: str, file: str) -> bool:
    """Return whether these settings name a file as `add_read_file` writes it."""
    return _find_item(text, file) is not None


def remove_read_file(text: str, file: str) -> str:
    """Return the settings without the file that `add_read_file` added."""
    match = _find_item(text, file)
    return text if match is None else text[: match.start()] + text[match.end() :]


def _find_item(text: str, file: str) -> re.Match[str] | None:
    item = re.escape(json.dumps(file, ensure_ascii=False))
    own_line = rf"^(?:read[ \t]*:|[ \t]*-)[ \t]*{item}[ \t]*\r?\n?"
    in_list = rf", ?{item}(?=\])|(?<=\[){item}(?:, ?)?"
    return re.search(rf"{own_line}|(?:{in_list})", text, re.MULTILINE)
