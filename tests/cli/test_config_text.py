"""Settings files are edited as text: what is not ours stays as it was, byte for byte."""

from __future__ import annotations

import json
import tomllib

import pytest
from config_documents import SCALARS, TOML_KEYS, json_documents, toml_documents
from hypothesis import given
from hypothesis import strategies as st

from mulligan.cli.config_text import ConfigSyntaxError, JsonText
from mulligan.cli.toml_text import TomlText, YamlText

ENTRY = {"command": "sh", "args": ["-c", "x"]}


def strip_json(text: str) -> object:
    """Parse JSON with comments by another way than the code under test: strings first, then comments and commas."""
    pieces, position = [], 0
    while position < len(text):
        if text[position] == '"':
            end = position + 1
            while text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            pieces.append(text[position : end + 1])
            position = end + 1
        elif text.startswith("//", position):
            position = text.find("\n", position) if "\n" in text[position:] else len(text)
        elif text.startswith("/*", position):
            position = text.index("*/", position + 2) + 2
        else:
            if text[position] in "}]" and pieces and pieces[-1] == ",":
                pieces.pop()
            if not text[position].isspace() and text[position] != "\ufeff":
                pieces.append(text[position])
            position += 1
    return json.loads("".join(pieces))


# JSON


def test_entry_is_added_in_the_style_of_the_file():
    text = '{\n\t// mine\n\t"theme": "d\\u0061rk", // keep\n\t"servers": {\n\t\t"a": {"url": "x"},\n\t},\n}\n'
    edited = JsonText(text).set(("servers", "b"), ENTRY).text
    assert edited == text.replace(
        '"x"},\n',
        '"x"},\n\t\t"b": {\n\t\t\t"command": "sh",\n\t\t\t"args": [\n\t\t\t\t"-c",\n\t\t\t\t"x"\n\t\t\t]\n\t\t},\n',
    )


def test_entry_of_a_file_on_one_line_stays_on_it():
    assert JsonText('{"a":{"b":1}}').set(("a", "c"), ENTRY).text == (
        '{"a":{"b":1, "c": {"command": "sh", "args": ["-c", "x"]}}}'
    )


def test_comment_behind_the_last_member_stays_behind_it():
    assert JsonText('{\n  "a": 1 // one\n}').set(("b",), 2).text == '{\n  "a": 1, // one\n  "b": 2\n}'


def test_line_ends_and_byte_order_mark_stay():
    text = '\ufeff{\r\n  "a": 1\r\n}\r\n'
    edited = JsonText(text).set(("b",), {"c": 1}).text
    assert edited == '\ufeff{\r\n  "a": 1,\r\n  "b": {\r\n    "c": 1\r\n  }\r\n}\r\n'
    assert JsonText(edited).remove(("b",)).text == text


def test_comments_of_a_list_stay_when_words_are_put_before_its_items():
    text = '{"args": [\n  // first\n  "caf\\u00e9", /* second */\n  "b",\n]}'
    edited = JsonText(text).set(("args",), ["x", "y", "café", "b"])
    assert edited.text == text.replace('"caf', '"x", "y", "caf')
    assert edited.set(("args",), ["café", "b"]).text == text


def test_member_between_others_is_removed_with_its_comma():
    assert JsonText('{"a": 1, "b": 2, "c": 3}').remove(("b",)).text == '{"a": 1, "c": 3}'
    assert JsonText('{\n  "a": 1, // x\n  "b": 2, "c": 3\n}').remove(("b",)).value == {"a": 1, "c": 3}
    assert JsonText('{\n  "a": 1, // x\n  "b": 2,\n  // y\n  "c": 3\n}').remove(("b",)).text == (
        '{\n  "a": 1, // x\n  // y\n  "c": 3\n}'
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "ends early|expected a key"),
        ('{"a": 1\n "b": 2}', r"line 2, column 2"),
        ('{"a": 1, "a": 2}', r"'a' occurs twice \(line 1, column 10\)"),
        ('{"a": 01}', "column"),
        ('{"a": nul}', "not a JSON value"),
        ('{"a": "\t"}', "not a JSON value"),
        ("{} x", r"text after the end \(line 1, column 4\)"),
        ("{'a': 1}", "a key in quotes"),
        ('{"a": "\\x"}', "not a JSON value"),
        ("[" * 10_000, "nested too deeply"),
        ('{"a": ' + "1" * 5000 + "}", "not a JSON value"),
        ("{/* }", "a key in quotes"),
    ],
)
def test_text_that_is_no_json_is_refused_with_its_position(text, reason):
    with pytest.raises(ConfigSyntaxError, match=reason):
        JsonText(text)


def test_value_is_not_put_into_a_text():
    with pytest.raises(ConfigSyntaxError, match="`a` is not a table"):
        JsonText('{"a": "x"}').set(("a", "b"), 1)


def test_lone_surrogate_of_the_file_stays():
    text = '{"a": "\\ud800"}'
    edited = JsonText(text).set(("b",), "\ud800")
    assert edited.text == '{"a": "\\ud800", "b": "\\ud800"}'
    assert edited.remove(("b",)).text == text


@given(json_documents(), st.lists(st.sampled_from(["mulligan", "hooks", "new"]), min_size=1, max_size=2), SCALARS)
def test_json_says_the_same_and_the_new_value_and_removing_it_restores_the_bytes(text, path, value):
    document = JsonText(text)
    before = strip_json(text)
    assert document.value == before
    edited = document.set(tuple(path), {"command": value, "args": [1]})
    nested = {"command": value, "args": [1]} if len(path) == 1 else {path[1]: {"command": value, "args": [1]}}
    assert strip_json(edited.text) == {**before, path[0]: nested}
    restored = edited.remove((path[0],)).text
    # White space of an object without members is the exception: the record of an installation restores it.
    assert restored == text if before else "".join(restored.split()) == "".join(text.split())


@given(json_documents())
def test_json_of_which_any_member_is_removed_says_the_others(text):
    document = JsonText(text)
    for key in document.value:
        edited = document.remove((key,))
        assert strip_json(edited.text) == {name: value for name, value in document.value.items() if name != key}


# TOML

TOML = """# mine
model = 'x'   # quoted so

[mcp_servers.git]   # of the team
args = [
  "mcp-server-git",  # one
  "--repository", "/srv/caf\\u00e9",
]
command = "uvx"

[mcp_servers.git.env]
A = "b"

# about files
[mcp_servers.files]
command = "npx"
"""


def test_comments_of_a_toml_list_stay_when_words_are_put_before_its_items():
    path = ("mcp_servers", "git", "args")
    document = TomlText(TOML)
    edited = document.set(path, ["-c", "uvx", *document.read(path)])
    assert edited.text == TOML.replace('  "mcp-server-git"', '  "-c",\n  "uvx",\n  "mcp-server-git"')
    assert edited.set(path, document.read(path)).text == TOML


def test_toml_table_is_added_at_the_end_and_removed():
    edited = TomlText(TOML).set(("mcp_servers", "mulligan"), ENTRY)
    assert edited.text == TOML + '\n[mcp_servers.mulligan]\ncommand = "sh"\nargs = ["-c", "x"]\n'
    assert edited.remove(("mcp_servers", "mulligan")).text.rstrip() == TOML.rstrip()


def test_toml_key_is_added_to_its_table_and_removed():
    edited = TomlText(TOML).set(("mcp_servers", "files", "args"), [])
    assert edited.text == TOML + "args = []\n"
    edited = TomlText(TOML).set(("mcp_servers", "git", "cwd"), "/srv")
    assert 'command = "uvx"\ncwd = "/srv"\n\n[mcp' in edited.text
    assert edited.remove(("mcp_servers", "git", "cwd")).text == TOML


def test_toml_inline_table_is_edited_in_its_line():
    text = 'x = 1\r\nmcp_servers = { git = { command = "uvx" }, web = { url = "u" } }\r\n'
    edited = TomlText(text).set(("mcp_servers", "git", "args"), ["a"])
    assert edited.text == text.replace('"uvx" }', '"uvx", args = ["a"]}')
    assert edited.remove(("mcp_servers", "git", "args")).text == text


@pytest.mark.parametrize(
    ("text", "reason"), [("[a\n", "line 1"), ("a = \nb = 1", "line 1, column 5"), ("a = 1\na = 2", "line 2")]
)
def test_text_that_is_no_toml_is_refused_with_its_position(text, reason):
    with pytest.raises(ConfigSyntaxError, match=reason):
        TomlText(text)


@given(toml_documents())
def test_toml_says_the_same_and_the_new_table_and_removing_it_restores_what_it_said(text):
    before = tomllib.loads(text)
    edited = TomlText(text).set(("mcp_servers", "mulligan"), ENTRY)
    assert tomllib.loads(edited.text) == {**before, "mcp_servers": {"mulligan": ENTRY}}
    assert edited.text.startswith(text)
    restored = edited.remove(("mcp_servers", "mulligan")).text
    assert restored.rstrip() == text.rstrip()


@given(toml_documents(), TOML_KEYS)
def test_toml_of_which_a_key_is_replaced_says_the_others(text, key):
    document = TomlText(text)
    for table in ((), ("one",), ("two", "three")):
        path = (*table, *(part.strip("\"'") for part in ([key] if key != "d.e" else ["d", "e"])))
        if document.has(path):
            edited = document.set(path, ["new"])
            assert edited.read(path) == ["new"]


# YAML


def test_yaml_that_is_not_understood_is_no_value():
    value = YamlText("extensions:\n  git:\n    cmd: |\n      uvx\n").value["extensions"]["git"]["cmd"]
    assert isinstance(value, ConfigSyntaxError)
