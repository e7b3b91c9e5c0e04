"""TOML, and the simple YAML that Goose writes, edited as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Self

from mulligan.cli.config_text import ConfigSyntaxError, ConfigText, Node, Path, with_value

_TOML_SPACE = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_TOML_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}(?!")' "|'''.*?'{3,5}(?!')" r'|"(?:[^"\\\n]|\\.)*"' "|'[^'\n]*'", re.DOTALL
)
_TOML_KEY_PART = re.compile(r'[ \t]*([\w-]+|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\')[ \t]*')
_TOML_BARE = re.compile(r"[^,\]}#\r\n]+")


class TomlText(ConfigText):
    """TOML 1.0. `tomllib` says what it means; the positions of its values are read here."""

    def _parse(self) -> Any:
        import tomllib  # 10 ms, and few commands need it

        try:
            value = tomllib.loads(self.text.removeprefix("\ufeff"))
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            line = self.text.count("\n") + 1
            raise ConfigSyntaxError(str(error).replace("at end of document", f"at line {line}, the end")) from None
        self._statements: dict[Path, Node] = {}
        self._tables: dict[Path, list[int]] = {(): [0, 0, 0]}
        """Start of each table's header, end of its last line with content, end of the table."""
        self._scan()
        return value

    def _scan(self) -> None:
        text, table, position = self.text, (), 1 if self.text.startswith("\ufeff") else 0
        self._tables[()] = [position, position, len(text)]
        current: Path = table
        while (position := _skip_toml(text, position)) < len(text):
            if text[position] == "[":
                self._tables[current][2] = position
                is_list = text.startswith("[[", position)
                keys, end = _scan_toml_key(text, position + 1 + is_list)
                end += 1 + is_list
                current = (*keys, sum(name[:-1] == keys for name in self._tables)) if is_list else keys
                self._tables[current] = [position, end, len(text)]
            else:
                keys, end = _scan_toml_key(text, position)
                node = _scan_toml_value(text, _skip_toml(text, end + 1), position)
                self._statements[current + keys] = node
                end = node.end
                self._tables[current][1] = end
            if end <= position:
                raise ConfigSyntaxError("the layout of this file is not supported", text, position)
            position = end

    def find(self, path: Path) -> Node | None:
        for length in range(len(path), 0, -1):
            node = self._statements.get(path[:length])
            for key in path[length:] if node is not None else ():
                node = node.children.get(key) if node is not None and node.children is not None else None
            if node is not None:
                return node
        return None

    def dump(self, value: Any, indent: str = "", is_compact: bool = True) -> str:
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{_dump_toml_key(key)} = {self.dump(part)}" for key, part in value.items()) + " }"
        if isinstance(value, list):
            return "[" + ", ".join(map(self.dump, value)) + "]"
        if isinstance(value, str):
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        return json.dumps(value)

    def _parse_literal(self, literal: str) -> Any:
        return TomlText(f"value = {literal}").value["value"]

    def _insert(self, path: Path, value: Any) -> str:
        parent, key = path[:-1], _dump_toml_key(str(path[-1]))
        if (node := self.find(parent)) is not None and node.children is not None:
            position = list(node.children.values())[-1].end if node.children else node.start + 1
            return self._replace(position, position, f"{', ' if node.children else ' '}{key} = {self.dump(value)}")
        if parent in self._tables and not isinstance(value, dict):
            start, end, _ = self._tables[parent]
            rest_of_line = re.compile(r"[ \t]*(?:#[^\r\n]*)?").match(self.text, end)
            position = rest_of_line.end() if rest_of_line else end
            line = f"{self._indent_at(start) if parent else ''}{key} = {self.dump(value)}"
            new = self.newline + line if end > start else line + self.newline
            return self._replace(position, position, new)
        body = value if isinstance(value, dict) else {str(path[-1]): value}
        header = ".".join(_dump_toml_key(str(part)) for part in (path if isinstance(value, dict) else parent))
        lines = [f"[{header}]", *(f"{_dump_toml_key(name)} = {self.dump(part)}" for name, part in body.items())]
        content = self.text.removeprefix("\ufeff").rstrip(" \t\r\n")
        gap = "" if not content else self.newline if self.text.endswith("\n") else 2 * self.newline
        return self.text + gap + self.newline.join(lines) + self.newline

    def _removals(self, path: Path) -> Iterator[str]:
        if path in self._statements:
            node = self._statements[path]
            line_start = self.text.rfind("\n", 0, node.entry_start) + 1
            line_end = self.text.find("\n", node.end) + 1 or len(self.text)
            yield self._replace(line_start, line_end, "")
            return
        parent = self.find(path[:-1])
        if parent is not None and parent.children is not None:
            yield from self._member_removals(parent, path[-1])
            return
        text = self.text
        tables = [span for table, span in self._tables.items() if table[: len(path)] == path]
        for start, content_end, _ in sorted(tables, reverse=True):
            line_end = self.text.find("\n", content_end) + 1 or len(self.text)
            before, after = text[:start], text[line_end:]
            if after.strip():
                text = before + after.lstrip("\r\n")
            else:
                content = before.rstrip(" \t\r\n")
                text = content + (self.newline if content else "")
        yield text

    def _is_equal(self, value: Any, expected: Any) -> bool:
        return bool(_without_empty_tables(value) == _without_empty_tables(expected))


def _without_empty_tables(value: Any) -> Any:
    """Return the value without empty tables: a table that only a header declares goes with its last key."""
    if not isinstance(value, dict):
        return value
    parts = {key: _without_empty_tables(part) for key, part in value.items()}
    return {key: part for key, part in parts.items() if part != {}}


def _skip_toml(text: str, position: int) -> int:
    match = _TOML_SPACE.match(text, position)
    return match.end() if match else position


def _scan_toml_key(text: str, position: int) -> tuple[tuple[str, ...], int]:
    """Return the parts of a dotted key and the position after it."""
    parts: list[str] = []
    while True:
        match = _TOML_KEY_PART.match(text, position)
        if match is None:
            raise ConfigSyntaxError("the layout of this file is not supported", text, position)
        part = match[1]
        parts.append(json.loads(part) if part[0] == '"' else part.strip("'"))
        position = match.end()
        if text[position : position + 1] != ".":
            return tuple(parts), position
        position += 1


def _scan_toml_value(text: str, start: int, entry_start: int) -> Node:
    closing = {"[": "]", "{": "}"}.get(text[start : start + 1])
    if closing is None:
        match = _TOML_STRING.match(text, start) or _TOML_BARE.match(text, start)
        if match is None:
            raise ConfigSyntaxError("the layout of this file is not supported", text, start)
        return Node(entry_start, start, start + len(match[0].rstrip()))
    children: dict[Any, Node] = {}
    position = _skip_toml(text, start + 1)
    while text[position : position + 1] not in (closing, ""):
        child_start, key = position, (len(children),)
        if closing == "}":
            key, position = _scan_toml_key(text, position)  # type: ignore[assignment]
            position = _skip_toml(text, position + 1)
        node = _scan_toml_value(text, position, child_start)
        children[key[0] if len(key) == 1 else key] = node
        position = _skip_toml(text, node.end)
        if text[position : position + 1] == ",":
            position = _skip_toml(text, position + 1)
    return Node(entry_start, start, position + 1, children)


def _dump_toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


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

    def literal(self, path: Path) -> str:
        return self.dump(self.read(path))

    def set_literal(self, path: Path, literal: str) -> Self:
        return self.set(path, json.loads(literal))

    def prepend(self, path: Path, literals: Sequence[str]) -> Self:
        return self.set(path, [json.loads(literal) for literal in literals] + self.read(path))

    def drop_first(self, path: Path, count: int) -> Self:
        return self.set(path, self.read(path)[count:])

    def find(self, path: Path) -> Node | None:
        key = self._keys.get(path)
        return Node(key.start(), key.start(), key.end()) if key else None

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

    def _removals(self, path: Path) -> Iterator[str]:
        key = self._keys[path]
        yield self._lines[: key.start()] + self._lines[key.end() :]


def _parse_yaml_value(key: re.Match[str]) -> Any:
    if key["name"] == "headers":
        if key["value"].strip() in ("", "{}") and not key["body"]:
            return {}
        return ConfigSyntaxError("Headers cannot be moved in this file.")
    if key["name"] != "args":
        return _parse_yaml_scalar(f"{key['value']}\n{key['body']}")
    text = key["value"].strip()
    if text in ("", "[]"):
        items = [line.strip() for line in key["body"].splitlines() if line.strip().startswith("- ")]
        values = [_parse_yaml_scalar(item[2:]) for item in items]
        return next((value for value in values if isinstance(value, ConfigSyntaxError)), values)
    try:
        return json.loads(text)
    except ValueError:
        return ConfigSyntaxError("Arguments cannot be parsed. Write each one on its own line after `- `.")


def _parse_yaml_scalar(text: str) -> str | ConfigSyntaxError:
    """Parse a YAML scalar that is unquoted, or quoted on one line."""
    text = text.strip()
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
