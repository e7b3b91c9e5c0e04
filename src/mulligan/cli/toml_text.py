"""TOML, edited with tomlkit, and YAML, edited as text: what Goose writes, and the list `read` of Aider."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from mulligan.cli.config_text import ConfigSyntaxError, ConfigText, Path, count_added, with_value, without_value
from mulligan.core.failure import SettingsError

if TYPE_CHECKING:
    import tomlkit

_BYTE_ORDER_MARK = "\ufeff"


class TomlText(ConfigText):
    """TOML 1.0. `tomllib` says what it means, and tomlkit edits it."""

    def _parse(self) -> Any:
        import tomllib  # 10 ms, and few commands need it

        try:
            return tomllib.loads(self.text.removeprefix(_BYTE_ORDER_MARK))
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            line = self.text.count("\n") + 1
            raise ConfigSyntaxError(str(error).replace("at end of document", f"at line {line}, the end")) from None

    def _read_document(self) -> tomlkit.TOMLDocument:
        import tomlkit  # 40 ms, and few commands need it

        return tomlkit.parse(self.text.removeprefix(_BYTE_ORDER_MARK))

    def _edit(self, path: Path, edit: Callable[[Any], None], expected: Any) -> Self:
        """Return the document after an edit of the table or list at a path."""
        document: Any = self._read_document()
        edit(_find_item(document, path))
        mark = self.text[: len(self.text) - len(self.text.removeprefix(_BYTE_ORDER_MARK))]
        return self._check(mark + document.as_string(), expected)

    def dump(self, value: Any, indent: str = "", is_compact: bool = True) -> str:
        return str(_to_item(value).as_string())

    def set(self, path: Path, value: Any) -> Self:
        if self.has(path) and self.read(path) == value:
            return self
        expected = with_value(self.value, path, value)
        parent = self.read(path[:-1])
        if parent is None or (isinstance(value, dict) and not self._is_inline(path[:-1])):
            return self._check(self._append_table(path, value), expected)

        old = self.read(path)
        added, removed = count_added(old, value), count_added(value, old)

        def set_key(table: Any) -> None:
            if not added and not removed:
                table[path[-1]] = _to_item(value)
            for item in reversed(value[:added] if added else ()):
                table[path[-1]].insert(0, _to_item(item))
            for _ in range(removed):
                del table[path[-1]][0]

        return self._edit(path[:-1], set_key, expected)

    def remove(self, path: Path) -> Self:
        if not self.has(path):
            return self

        def remove_key(table: Any) -> None:
            del table[path[-1]]

        return self._edit(path[:-1], remove_key, without_value(self.value, path))

    def _is_inline(self, path: Path) -> bool:
        import tomlkit.items

        item = _find_item(self._read_document(), path)
        return isinstance(item, tomlkit.items.InlineTable)

    def _append_table(self, path: Path, value: Any) -> str:
        """Return the text with a new table at its end, which has this value."""
        *names, key = path
        if isinstance(value, dict):
            names, body = [*names, key], value
        else:
            body = {str(key): value}
        import tomlkit

        lines = [f"[{'.'.join(tomlkit.key(str(name)).as_string() for name in names)}]"]
        lines += [f"{tomlkit.key(name).as_string()} = {self.dump(part)}" for name, part in body.items()]
        content = self.text.removeprefix(_BYTE_ORDER_MARK).rstrip(" \t\r\n")
        gap = "" if not content else self.newline if self.text.endswith("\n") else 2 * self.newline
        return self.text + gap + self.newline.join(lines) + self.newline

    def _is_equal(self, value: Any, expected: Any) -> bool:
        return bool(_without_empty_tables(value) == _without_empty_tables(expected))


def _find_item(document: Any, path: Path) -> Any:
    item = document
    for key in path:
        try:
            item = item[key]
        except (LookupError, TypeError):
            raise ConfigSyntaxError(f"cannot find {'.'.join(map(str, path))} in the text") from None
    return item


def _to_item(value: Any) -> Any:
    """Return a value for tomlkit: tables on one line."""
    import tomlkit

    if isinstance(value, dict):
        table = tomlkit.inline_table()
        table.update({key: _to_item(part) for key, part in value.items()})
        return table
    if isinstance(value, list):
        array = tomlkit.array()
        array.extend(map(_to_item, value))
        return array
    return tomlkit.item(value)


def _without_empty_tables(value: Any) -> Any:
    """Return the value without empty tables: a table that only a header declares goes with its last key."""
    if not isinstance(value, dict):
        return value
    parts = {key: _without_empty_tables(part) for key, part in value.items()}
    return {key: part for key, part in parts.items() if part != {}}


# YAML, by lines: the simple layout that Goose writes

_YAML_TABLE = re.compile(r"^(?P<name>[\w-]+):[ \t]*(?:#.*)?\n(?P<body>(?:[ \t]+.*\n|[ \t]*\r?\n|#.*\n)*)", re.MULTILINE)
_YAML_ENTRY = re.compile(
    r"^(?P<indent> +)(?P<quote>[\"']?)(?P<name>[^\s\"'#:][^\"':\n]*)(?P=quote):[ \t]*(?:#.*)?\r?\n"
    r"(?P<body>(?:(?P=indent) +.*\n|[ \t]*\r?\n|[ \t]*#.*\n)*)",
    re.MULTILINE,
)
_YAML_KEY = re.compile(
    r"^(?P<indent> +)(?P<name>cmd|args|uri|type|headers):[ \t]*(?P<value>.*)\n"
    r"(?P<body>(?:(?:[ \t]*#.*\n)*(?P=indent)(?: *- | +[^#\s]).*\n)*)",
    re.MULTILINE,
)


_YAML_COMMENT = re.compile(r"(?:^|[ \t])#.*")
_YAML_SCALAR = re.compile(r"""(?P<value>"(?:[^"\\\n]|\\.)*"|'(?:[^'\n]|'')*'|[^"'\s#][^\n]*?)(?:[ \t]+#[^\n]*)?""")


class YamlText(ConfigText):
    """Tables of entries with `cmd`, `args`, `uri`, `type` and `headers`, as Goose writes them. No other YAML is read.

    A value that cannot be parsed is a `ConfigSyntaxError` in `value`.
    """

    def _parse(self) -> Any:
        self._keys: dict[Path, re.Match[str]] = {}
        value: dict[str, Any] = {}
        self._lines = self.text if self.text.endswith("\n") else f"{self.text}\n"
        for table in _YAML_TABLE.finditer(self._lines):
            entries = value.setdefault(table["name"], {})
            for entry in _YAML_ENTRY.finditer(self._lines, table.start("body"), table.end("body")):
                parts = entries.setdefault(entry["name"], {})
                for key in _YAML_KEY.finditer(self._lines, entry.start("body"), entry.end("body")):
                    self._keys[table["name"], entry["name"], key["name"]] = key
                    parts[key["name"]] = _parse_yaml_value(key)
        return value

    def dump(self, value: Any, indent: str = "", is_compact: bool = True) -> str:
        return json.dumps(value, ensure_ascii=False)

    def set(self, path: Path, value: Any) -> Self:
        if self.read(path) == value:
            return self
        names = (path[-1], "cmd", "uri")
        key = next((self._keys[*path[:-1], name] for name in names if (*path[:-1], name) in self._keys), None)
        if key is None or isinstance(value, dict):
            raise ConfigSyntaxError("a new entry cannot be written here")
        start, indent = key.start() if path in self._keys else key.end(), key["indent"]
        lines = [f"{indent}{path[-1]}: {self.dump(value)}"]
        if isinstance(value, list) and value:
            lines = [f"{indent}{path[-1]}:", *(f"{indent}- {self.dump(item)}" for item in value)]
        new = "".join(line + self.newline for line in lines)
        text = self._lines[:start] + new + self._lines[key.end() :]
        return self._check(text, with_value(self.value, path, value))

    def remove(self, path: Path) -> Self:
        if not self.has(path):
            return self
        key = self._keys[path]
        return self._check(self._lines[: key.start()] + self._lines[key.end() :], without_value(self.value, path))


def _parse_yaml_value(key: re.Match[str]) -> Any:
    if key["name"] == "headers":
        if key["value"].strip() in ("", "{}") and not key["body"]:
            return {}
        return ConfigSyntaxError("Headers cannot be moved in this file.")
    if key["name"] != "args":
        return _parse_yaml_scalar(f"{key['value']}\n{key['body']}")
    text = key["value"].strip()
    if _YAML_COMMENT.sub("", text).strip() in ("", "[]"):
        items = [line.strip() for line in key["body"].splitlines() if line.strip().startswith("- ")]
        values = [_parse_yaml_scalar(item[2:]) for item in items]
        return next((value for value in values if isinstance(value, ConfigSyntaxError)), values)
    try:
        values, end = json.JSONDecoder().raw_decode(text)
        if not _YAML_COMMENT.sub("", text[end:]).strip():
            return values
    except ValueError:
        pass  # not parsed, below
    return ConfigSyntaxError("Arguments cannot be parsed. Write each one on its own line after `- `.")


def _parse_yaml_scalar(text: str) -> str | ConfigSyntaxError:
    """Parse a YAML scalar that is unquoted, or quoted on one line, with a comment after it."""
    text = text.strip()
    if match := _YAML_SCALAR.fullmatch(text):
        text = match["value"].rstrip()
    if text[:1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            pass  # not parsed, below
    elif "\n" not in text and text[:1] == "'" and text[-1:] == "'" and len(text) > 1:
        return text[1:-1].replace("''", "'")
    elif text and not re.search(r"^[&*!|>{}\[\]%@`#']|\n| #|: ", text):
        return text
    return ConfigSyntaxError(f"A value cannot be parsed: {text[:80]}.")


# Files that `.aider.conf.yml` tells Aider to read at its start


_READ_KEY = re.compile(
    r"^read[ \t]*:[ \t]*(?P<value>[^\r\n]*?)[ \t]*(?P<comment>(?:(?<=\s)#[^\r\n]*)?)(?=\r?$)", re.MULTILINE
)
_READ_ITEM = re.compile(r"(?:[ \t]*(?:#[^\r\n]*)?\r?\n)*(?P<indent>[ \t]*)- [^\r\n]*")
_READ_VALUE = re.compile(r"[\w./~-][\w./~ -]*|\"[^\"\\]*\"|'[^']*'")


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
        while match := _READ_ITEM.match(text, end + len(newline)):
            end, indent = match.end(), match["indent"]
        if indent is not None:
            return f"{text[:end]}{newline}{indent}- {item}{text[end:]}"
    if value.startswith("[") and value.endswith("]"):
        members = value[1:-1].strip()
        new = f"[{members}, {item}]" if members else f"[{item}]"
    elif not value or _READ_VALUE.fullmatch(value):
        new = f"[{value}, {item}]" if value else item
    else:
        raise SettingsError(f"The list `read` has a layout that mulligan does not edit. Add {item} to it yourself.")
    separator = "" if text[key.start("value") - 1].isspace() else " "
    return text[: key.start("value")] + separator + new + text[key.end("value") :]


def reads_file(text: str, file: str) -> bool:
    """Return whether these settings name a file as `add_read_file` writes it."""
    return _find_read_item(text, file) is not None


def remove_read_file(text: str, file: str) -> str:
    """Return the settings without the file that `add_read_file` added."""
    match = _find_read_item(text, file)
    return text if match is None else text[: match.start()] + text[match.end() :]


def _find_read_item(text: str, file: str) -> re.Match[str] | None:
    item = re.escape(json.dumps(file, ensure_ascii=False))
    own_line = rf"^(?:read[ \t]*:|[ \t]*-)[ \t]*{item}[ \t]*\r?\n?"
    in_list = rf", ?{item}(?=\])|(?<=\[){item}(?:, ?)?"
    return re.search(rf"{own_line}|(?:{in_list})", text, re.MULTILINE)
