"""Servers of the command line and of files with `mcpServers`."""

from __future__ import annotations

import json

import pytest

from mulligan.core.failure import SettingsError
from mulligan.proxy.config import parse_headers, read_config, server_name_from_url

ENVIRONMENT = {"TOKEN": "abc", "HOME": "/home/user"}


def write(tmp_path, servers, text=None):
    path = tmp_path / "mcp.json"
    path.write_text(text if text is not None else json.dumps({"mcpServers": servers}))
    return path


def test_headers_take_values_from_the_environment():
    headers = parse_headers(["Authorization: Bearer ${TOKEN}", "X-Team:${env:TEAM:-search}"], ENVIRONMENT)
    assert headers == {"Authorization": "Bearer abc", "X-Team": "search"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Authorization Bearer", "has no colon"),
        ("A b: c", "Invalid header name"),
        ("A: ${MISSING}", "no variable MISSING"),
        ("A: one\ntwo", "characters that a header cannot contain"),
    ],
)
def test_an_invalid_header_is_refused_without_its_value(line, words):
    with pytest.raises(SettingsError, match=words) as raised:
        parse_headers([line], ENVIRONMENT)
    assert "two" not in str(raised.value)


def test_a_file_has_commands_and_urls(tmp_path):
    servers = {
        "files": {"command": "npx", "args": ["-y", "server", "${HOME}"], "env": {"KEY": "${TOKEN}"}},
        "my server": {"url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
        "old": {"type": "sse", "url": "https://example.com/sse"},
        "off": {"command": "x", "disabled": True},
    }
    targets = read_config(write(tmp_path, servers), ENVIRONMENT)
    assert list(targets) == ["files", "my-server", "old"]
    assert targets["files"].command == ["npx", "-y", "server", "/home/user"]
    assert targets["files"].environment == {**ENVIRONMENT, "KEY": "abc"}
    assert targets["my-server"].headers == {"Authorization": "Bearer abc"}
    assert [target.is_sse for target in targets.values()] == [False, False, True]


def test_comments_trailing_commas_and_a_byte_order_mark_are_accepted(tmp_path):
    text = '\ufeff{ // servers\n "mcpServers": {"a": {"url": "http://x/y", /* "b" */ }, },\n}'
    assert read_config(write(tmp_path, None, text), {})["a"].url == "http://x/y"


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        ([], "has no servers"),
        ({"a": {}}, "Missing command or url in server 'a'"),
        ({"a": {"url": "file:///etc/passwd"}}, "Invalid URL in server 'a'"),
        ({"a": {"command": "x", "args": [1]}}, "Invalid 'args'"),
        ({"a": {"command": "x", "env": {"A": "${NOPE}"}}}, "no variable NOPE"),
        ({"a b": {"command": "x"}, "a-b": {"command": "y"}}, "two servers named 'a-b'"),
    ],
)
def test_an_invalid_entry_is_named(tmp_path, servers, words):
    with pytest.raises(SettingsError, match=words):
        read_config(write(tmp_path, servers), {})


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"mcpServers": "\ud800"}', "\0"])
def test_a_broken_file_is_refused(tmp_path, text):
    path = tmp_path / "mcp.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(SettingsError, match=r"mcp\.json"):
        read_config(path, {})


def test_a_name_comes_from_the_host():
    assert server_name_from_url("https://mcp.example.com/mcp?key=1") == "example-com"
    assert server_name_from_url("http://localhost:3000/mcp") == "localhost-3000"
