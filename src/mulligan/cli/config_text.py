"""Settings files edited as text: comments, order of keys, escapes, indentation and line ends stay as they are.

`JsonText` here, `TomlText` and `YamlText` in `toml_text.py` hold the text of a file and `value`, what it says. `set`
and `remove` return the edited document. A text that would say something else than intended is refused. JSON may have
comments, trailing commas and a byte order mark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

Path = tuple[str | int, ...]


class ConfigSyntaxError(ValueError):
    """A text that cannot be parsed, or an edit that is not possible in this layout."""

    def __init__(self, message: str, text: str = "", position: int | None = None) -> None:
        if position is not None:
            line = text.count("\n", 0, position) + 1
            column = position - (text.rfind("\n", 0, position) + 1) + 1
            message = f"{message} (line {line}, column {column})"
        super().__init__(message)

    def __eq__(self, other: object) -> bool:
        """Compare by message: an entry that cannot be parsed is the same before and after an edit of another one."""
        return isinstance(other, ConfigSyntaxError) and self.args == other.args

    __hash__ = ValueError.__hash__


class Node(NamedTuple):
    """A value with its position in the text. `entry_start` is where its key starts, or the value if it has no key."""

    entry_start: int
    start: int
    end: int
    children: dict[Any, Node] | None = None
    """Members by key, or items by index. None for a value without parts."""
    value: Any = None


_MISSING = object()


class ConfigText:
    """Text of a settings file and its meaning. Edits return a new document."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        unit = re.search(r"^([ \t]{1,8})[^\s*/]", text, re.MULTILINE)
        self.unit = unit[1] if unit else "  "
        self.value = self._parse()

    def _parse(self) -> Any:
        raise NotImplementedError

    def read(self, path: Path, default: Any = None) -> Any:
        """Return the value at this path, or the default."""
        value = self.value
        for key in path:
            try:
                value = value[key]
            except (LookupError, TypeError):
                return default
        return value

    def has(self, path: Path) -> bool:
        return self.read(path, _MISSING) is not _MISSING

    def set(self, path: Path, value: Any) -> Self:
        """Return the document with this value. Missing tables on the way are created."""
        raise NotImplementedError

    def remove(self, path: Path) -> Self:
        """Return the document without the value at this path."""
        raise NotImplementedError

    def _check(self, text: str, expected: Any) -> Self:
        try:
            edited = type(self)(text)
        except ConfigSyntaxError as error:
            raise ConfigSyntaxError(f"the layout of this file is not supported: {error}") from None
        if not self._is_equal(edited.value, expected):
            raise ConfigSyntaxError("the layout of this file is not supported")
        return edited

    def _is_equal(self, value: Any, expected: Any) -> bool:
        return bool(value == expected)


_TRIVIA = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR = re.compile(r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null)(?![\w.+-])")


def _skip_trivia(text: str, position: int) -> int:
    """Return the position after white space and comments."""
    match = _TRIVIA.match(text, position)
    return match.end() if match else position


def _find_comma_end(text: str, position: int) -> int | None:
    """Return the position after the comma that follows a value, or None."""
    position = _skip_trivia(text, position)
    return position + 1 if text[position : position + 1] == "," else None


class JsonText(ConfigText):
    """JSON with comments, trailing commas and a byte order mark. A text without content is an empty object."""

    def _parse(self) -> Any:
        start = 1 if self.text.startswith("\ufeff") else 0
        if not self.text[start:].strip():
            self.text += "{}" + self.newline
        self._root = self._scan_value(_skip_trivia(self.text, start), 0)
        end = _skip_trivia(self.text, self._root.end)
        if end < len(self.text):
            raise ConfigSyntaxError("text after the end", self.text, end)
        return self._root.value

    def _scan_value(self, start: int, depth: int, entry_start: int | None = None) -> Node:
        text, first = self.text, self.text[start : start + 1]
        entry_start = start if entry_start is None else entry_start
        # Limit of nested values. Settings files are far below it.
        if depth > 200:
            raise ConfigSyntaxError("nested too deeply", text, start)
        if first and first in "{[":
            return self._scan_container(start, depth, entry_start)
        match = _STRING.match(text, start) if first == '"' else _SCALAR.match(text, start)
        if match is None:
            raise ConfigSyntaxError("not a JSON value" if first else "the text ends early", text, start)
        return Node(entry_start, start, match.end(), None, self._decode(match[0], start))

    def _decode(self, literal: str, position: int) -> Any:
        try:
            return json.loads(literal)
        except ValueError:
            raise ConfigSyntaxError("not a JSON value", self.text, position) from None

    def _scan_container(self, start: int, depth: int, entry_start: int) -> Node:
        text, is_object = self.text, self.text[start] == "{"
        closing = "}" if is_object else "]"
        children: dict[Any, Node] = {}
        position = _skip_trivia(self.text, start + 1)
        while text[position : position + 1] != closing:
            key: Any = len(children)
            child_start = position
            if is_object:
                match = _STRING.match(text, position)
                if match is None:
                    raise ConfigSyntaxError('expected a key in quotes or "}"', text, position)
                key = self._decode(match[0], position)
                if key in children:
                    raise ConfigSyntaxError(f"the key {key!r} occurs twice", text, position)
                position = _skip_trivia(self.text, match.end())
                if text[position : position + 1] != ":":
                    raise ConfigSyntaxError('expected ":"', text, position)
                position = _skip_trivia(self.text, position + 1)
            children[key] = self._scan_value(position, depth + 1, child_start)
            position = _skip_trivia(self.text, children[key].end)
            if text[position : position + 1] == ",":
                position = _skip_trivia(self.text, position + 1)
            elif text[position : position + 1] != closing:
                raise ConfigSyntaxError(f'expected "," or "{closing}"', text, position)
        values = {key: node.value for key, node in children.items()}
        value = values if is_object else list(values.values())
        return Node(entry_start, start, position + 1, children, value)

    def find(self, path: Path) -> Node | None:
        node: Node | None = self._root
        for key in path:
            node = node.children.get(key) if node is not None and node.children is not None else None
        return node

    def dump(self, value: Any, indent: str = "", is_compact: bool = True) -> str:
        text = json.dumps(value, ensure_ascii=False, indent=None if is_compact else self.unit)
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            text = json.dumps(value, indent=None if is_compact else self.unit)
        return text.replace("\n", self.newline + indent)

    def set(self, path: Path, value: Any) -> Self:
        if self.read(path) == value and self.has(path):
            return self
        node = self.find(path)
        text = self._replace_value(node, value) if node is not None else self._insert(path, value)
        return self._check(text, with_value(self.value, path, value))

    def _replace_value(self, node: Node, value: Any) -> str:
        items = list((node.children or {}).values())
        if added := count_added(node.value, value):
            literals = "".join(f"{self.dump(item)}, " for item in value[:added])
            return self._replace(items[0].start, items[0].start, literals)
        if removed := count_added(value, node.value):
            return self._replace(items[0].start, items[removed].start, "")
        is_compact = "\n" not in self.text[node.start : node.end]
        return self._replace(node.start, node.end, self.dump(value, self._indent_at(node.entry_start), is_compact))

    def remove(self, path: Path) -> Self:
        if not self.has(path):
            return self
        expected = without_value(self.value, path)
        *preferred_texts, last_text = self._removals(path)
        for text in preferred_texts:
            try:
                return self._check(text, expected)
            except ConfigSyntaxError:  # a comment would hide what follows
                continue
        return self._check(last_text, expected)

    def _insert(self, path: Path, value: Any) -> str:
        depth = next(depth for depth in range(len(path), -1, -1) if self.find(path[:depth]) is not None)
        parent = self.find(path[:depth])
        if parent is None or parent.children is None or isinstance(path[depth], int) == isinstance(parent.value, dict):
            name = ".".join(map(str, path[:depth])) or "the file"
            raise ConfigSyntaxError(f"`{name}` is not {'a list' if isinstance(path[depth], int) else 'a table'}")
        for key in reversed(path[depth + 1 :]):
            value = [value] if isinstance(key, int) else {key: value}
        prefix = f"{json.dumps(path[depth], ensure_ascii=False)}: " if isinstance(path[depth], str) else ""
        children = list(parent.children.values())
        if not children:
            indent = self._indent_at(parent.entry_start)
            if "\n" not in self.text.strip() and parent.entry_start != self._root.start:
                return self._replace(parent.start + 1, parent.start + 1, prefix + self.dump(value))
            line = self.newline + indent + self.unit + prefix + self.dump(value, indent + self.unit, is_compact=False)
            return self._replace(parent.start + 1, parent.start + 1, line + self.newline + indent)
        last = children[-1]
        comma_end = _find_comma_end(self.text, last.end)
        if not self._is_first_on_line(last.entry_start):
            member = prefix + self.dump(value)
            position, addition = (comma_end, f" {member},") if comma_end else (last.end, f", {member}")
            return self._replace(position, position, addition)
        indent = self._indent_at(last.entry_start)
        position = comma_end or last.end
        comment = re.compile(r"[ \t]*(?://[^\r\n]*|/\*[^\r\n]*?\*/(?=[ \t]*\r?\n))").match(self.text, position)
        line = self.newline + indent + prefix + self.dump(value, indent, is_compact=False) + ("," if comma_end else "")
        after = comment.end() if comment else position
        return self.text[:position] + ("" if comma_end else ",") + self.text[position:after] + line + self.text[after:]

    def _replace(self, start: int, end: int, new: str) -> str:
        return self.text[:start] + new + self.text[end:]

    def _indent_at(self, position: int) -> str:
        """Return the white space at the start of the line of this position."""
        line_start = self.text.rfind("\n", 0, position) + 1
        return re.compile(r"[ \t]*").match(self.text, line_start)[0]  # type: ignore[index]

    def _is_first_on_line(self, position: int) -> bool:
        line_start = self.text.rfind("\n", 0, position) + 1
        return line_start > 0 and not self.text[line_start:position].strip(" \t")

    def _removals(self, path: Path) -> Iterator[str]:
        """Yield the texts without a value, the best layout first."""
        parent, key = self.find(path[:-1]), path[-1]
        assert parent is not None
        assert parent.children is not None
        children = list(parent.children.values())
        index = list(parent.children).index(key)
        node, text = children[index], self.text
        inner = text[parent.start + 1 : node.entry_start], text[node.end : parent.end - 1]
        if len(children) == 1 and not (inner[0] + inner[1]).strip(" \t\r\n,"):
            yield text[: parent.start + 1] + text[parent.end - 1 :]
        comma_end = _find_comma_end(text, node.end)
        previous_comma_end = _find_comma_end(text, children[index - 1].end) if index else None
        line = text[: node.entry_start].rstrip(" \t")
        start = len(line.removesuffix("\n").removesuffix("\r") if line.endswith("\n") else line)
        if comma_end is not None:
            yield text[:start] + text[node.end : comma_end - 1] + text[comma_end:]
            following = re.compile(r"[ \t]*").match(text, comma_end)
            yield text[: node.entry_start] + text[following.end() if following else comma_end :]
            yield text[: node.entry_start] + text[node.end : comma_end - 1] + text[comma_end:]
        elif previous_comma_end is not None:  # the last member without a comma behind it: the comma before it goes too
            position = previous_comma_end
            yield text[: position - 1] + text[position : max(position, start)] + text[node.end :]
            yield text[: position - 1] + text[position : node.entry_start] + text[node.end :]
        else:
            yield text[:start] + text[node.end :]
            yield text[: node.entry_start] + text[node.end :]


# Values by path


def count_added(old: Any, new: Any) -> int:
    """Return how many items a list has before those of another, so that their comments can stay; 0 if it has others."""
    if not (isinstance(old, list) and isinstance(new, list) and old):
        return 0
    added = len(new) - len(old)
    return added if added > 0 and new[added:] == old else 0


def with_value(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    key, remaining_path = path[0], path[1:]
    if isinstance(key, int):
        items = list(value or ())
        items[key : key + 1] = [with_value(items[key] if key < len(items) else None, remaining_path, new)]
        return items
    return {**(value or {}), key: with_value((value or {}).get(key), remaining_path, new)}


def without_value(value: Any, path: Path) -> Any:
    key, remaining_path = path[0], path[1:]
    if remaining_path:
        return with_value(value, (key,), without_value(value[key], remaining_path))
    if isinstance(value, list):
        return [item for index, item in enumerate(value) if index != key]
    return {name: part for name, part in value.items() if name != key}
