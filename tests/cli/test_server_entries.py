"""All servers of a client at once, in all its files; what is written there, and what runs without mulligan."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from config_documents import SPACES, json_documents, toml_documents
from hypothesis import given
from hypothesis import strategies as st
from mcp_client import FAKE

from mulligan.cli import clients, install, server_entries
from mulligan.cli.clients import MCP_CLIENTS, SHARED_WRAPPER, USER_WRAPPER, SettingsFile, build_start_command
from mulligan.cli.config_edits import apply_installation, plan_restoration
from mulligan.cli.server_entries import ServerList, find_broken_entries
from mulligan.settings import hook_folder

TOKEN = "Bearer sk-1234"


@pytest.fixture(autouse=True)
def _remote_support(monkeypatch):
    """Proxies of servers with a URL need the mcp package, which may be missing. No test connects to one."""
    monkeypatch.setattr(server_entries, "has_remote_support", lambda: True)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The folder in which commands run."""
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(Path.home() / ".config"))
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


# The home folder


@pytest.mark.parametrize("is_home", [True, False])
def test_file_that_is_both_the_users_and_the_projects_is_the_users(types, project, monkeypatch, is_home):
    text = (
        '{"mcpServers": {"notes": {"command": "python", "args": ["server.py"]},\n'
        '  "remote": {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer abcdef"}}}}\n'
    )
    monkeypatch.chdir(Path.home() if is_home else project)
    path = put(Path.home() / ".cursor/mcp.json", text)
    code, output, _ = types("install", "proxy", "--client", "cursor", "--all", "--repair")
    assert code == 0
    assert "Calls to notes, remote from Cursor now go through mulligan." in output
    assert "Skipped" not in output
    assert "proxy --name notes --repair -- python" in output.replace('", "', " ")
    for entry in json.loads(path.read_text())["mcpServers"].values():
        assert entry["args"][:2] == ["-c", USER_WRAPPER]
    assert types("uninstall", "proxy", "--all")[0] == 0
    assert path.read_text() == text
    assert not list(hook_folder().with_name("installed").glob("*"))


def test_uninstalling_elsewhere_names_the_files_where_it_is_still_installed(types, project, tmp_path, monkeypatch):
    path = put(project / ".mcp.json", '{"mcpServers": {"git": {"command": "uvx"}}}')
    assert types("install", "proxy", "--all")[0] == 0
    monkeypatch.chdir(tmp_path)
    assert f"Still installed in {path}." in types("uninstall", "proxy", "--all")[1]
    monkeypatch.chdir(project)
    assert "Still installed" not in types("uninstall", "proxy", "--all")[1]


def test_replacing_the_proxy_of_a_url_in_a_shared_file_changes_all_or_nothing(types, project):
    put(project / ".mcp.json", '{"mcpServers": {"far": {"url": "https://mcp.example/"}}}')
    assert types("install", "proxy", "--client", "claude-code", "--project", "--server", "far")[0] == 0
    before = (project / ".mcp.json").read_text()
    output = types("install", "proxy", "--all", "--repair")[1]
    assert "so this entry was not changed" in output
    assert "now go through" not in output
    assert (project / ".mcp.json").read_text() == before


def test_unknown_client_is_answered_with_those_it_may_stand_for(types):
    code, _, complaint = types("install", "proxy", "--client", "claude", "--all")
    assert code == 2
    assert "Unknown client 'claude'. Did you mean claude-desktop or claude-code?" in complaint


# All servers at once

STDIO = '{"command": "uvx", "args": ["a"], "env": {"K": "v"}, "cwd": "/srv", "disabled": true}'


def write_all_clients(project: Path) -> dict[Path, bytes]:
    """Write a settings file for each client and scope, each in its own layout. Return their bytes."""
    home = Path.home()
    local = json.dumps({str(project): {"mcpServers": {"mine": {"type": "stdio", "command": "uvx"}}}})
    texts = {
        home / ".claude.json": f'{{"numStartups": 3, "mcpServers": {{"git": {STDIO}}}, "projects": {local}}}',
        project / ".mcp.json": f'{{\r\n  "mcpServers": {{\r\n    "git": {STDIO},\r\n  }},\r\n}}',
        home / ".codex/config.toml": "[mcp_servers.git]\ncommand = 'uvx' # mine\ncwd = '/srv'\nenabled = false",
        home / ".gemini/settings.json": f'// mine\n{{"mcpServers":{{"git":{STDIO}}}}}',
        home / ".config/opencode/opencode.jsonc": '{"mcp": {"git": {"type": "local", "command": ["uvx", "a"], '
        '"environment": {"K": "v"}, "enabled": false}}}\n',
        home / ".config/amp/settings.json": f'{{"amp.mcpServers": {{"git": {STDIO}}}}}',
        project / ".github/mcp.json": f'{{"mcpServers": {{"git": {STDIO}}}}}',
        project / ".vscode/mcp.json": f'{{\n\t"inputs": [], // none\n\t"servers": {{\n\t\t"git": {STDIO}\n\t}}\n}}\n',
        home / ".cursor/mcp.json": f'\ufeff{{"mcpServers": {{"git": {STDIO}}}}}',
        home / ".config/goose/config.yaml": "extensions:\n  git:\n    cmd: uvx\n    args: [\"a\"]\n    type: stdio\n",
    }  # fmt: skip
    return {put(path, text): text.encode() for path, text in texts.items()}


def test_all_servers_of_all_clients_are_proxied_at_once_and_restored_byte_for_byte(types, project):
    texts = write_all_clients(project)
    code, output, _ = types("install", "proxy", "--all", "--json")
    assert code == 0
    servers = {(item["client"], item["scope"], item["server"]) for item in json.loads(output)["servers"]}
    assert servers == {
        ("claude-code", "user", "git"), ("claude-code", "local", "mine"), ("claude-code", "project", "git"),
        ("codex", "user", "git"), ("gemini", "user", "git"), ("opencode", "user", "git"), ("vscode", "project", "git"),
        ("cursor", "user", "git"), ("amp", "user", "git"), ("copilot", "project", "git"), ("goose", "user", "git"),
    }  # fmt: skip
    assert all(path.read_bytes() != text for path, text in texts.items())
    assert types("install", "proxy", "--all")[1].startswith("Nothing to change")
    assert types("uninstall", "proxy", "--all")[0] == 0
    assert {path: path.read_bytes() for path in texts} == texts
    assert not list(hook_folder().parent.rglob("installed*"))


def test_other_keys_of_an_entry_stay(types, project):
    write_all_clients(project)
    types("install", "proxy", "--all")
    for path, key in ((Path.home() / ".claude.json", "mcpServers"), (project / ".mcp.json", "mcpServers")):
        entry = clients_entry(path, key)
        assert {name: entry[name] for name in ("env", "cwd", "disabled")} == {
            "env": {"K": "v"}, "cwd": "/srv", "disabled": True,
        }  # fmt: skip
    entry = clients_entry(Path.home() / ".config/opencode/opencode.jsonc", "mcp")
    assert entry["command"][-3:] == ["--", "uvx", "a"]
    assert (entry["environment"], entry["enabled"], entry["type"]) == ({"K": "v"}, False, "local")
    codex = tomllib.loads((Path.home() / ".codex/config.toml").read_text())["mcp_servers"]["git"]
    assert (codex["cwd"], codex["enabled"], codex["args"][-1]) == ("/srv", False, "uvx")


def clients_entry(path: Path, key: str, server: str = "git") -> dict[str, object]:
    from mulligan.cli.config_text import JsonText

    return JsonText(path.read_bytes().decode()).value[key][server]


def test_files_that_teams_commit_name_no_path_of_this_machine(types, project):
    write_all_clients(project)
    types("install", "proxy", "--all")
    for path in (project / ".mcp.json", project / ".vscode/mcp.json"):
        assert sys.executable not in path.read_text()
        assert str(Path(clients.__file__).parent) not in path.read_text()
        assert "command -v mulligan" in path.read_text()


def test_own_server_is_not_proxied(types, project):
    types("install", "mcp-server", "--client", "cursor")
    assert "Nothing to change" in types("install", "proxy", "--client", "cursor", "--all")[1]


def test_server_that_cannot_be_proxied_is_named_and_the_others_are_proxied(types, project):
    put(
        project / ".mcp.json",
        '{"mcpServers": {"web": {"type": "http", "url": "https://a"}, "git": {"command": "uvx"}}}',
    )
    code, output, _ = types("install", "proxy", "--client", "claude-code", "--all")
    assert code == 0
    assert "Calls to git from Claude Code now go through mulligan" in output
    assert "Skipped: " in output
    assert "'web' has a URL" in output


# Servers with a URL

URLS = {
    "claude-code": {
        "type": "http",
        "url": "https://mcp.example/a",
        "headers": {"Authorization": TOKEN, "X-Team": "team-blue"},
    },
    "cursor": {"url": "https://mcp.example/a", "headers": {"Authorization": TOKEN}, "disabled": True},
    "vscode": {"type": "sse", "url": "https://mcp.example/sse"},
    "gemini": {"httpUrl": "https://mcp.example/a", "headers": {"Authorization": "Bearer $KEY"}, "trust": True},
    "opencode": {"type": "remote", "url": "https://mcp.example/a", "headers": {"X-Key": "{env:KEY}"}, "enabled": True},
}


@pytest.mark.parametrize("client", URLS)
@pytest.mark.parametrize("is_edited", [False, True])
def test_server_with_a_url_is_proxied_and_restored(types, project, client, is_edited):
    known = MCP_CLIENTS[client]
    (key,) = known.server_files[0].key
    path = put(clients.settings_path(known.server_files[0]), json.dumps({key: {"web": URLS[client]}}, indent=3))
    before = path.read_bytes()
    assert types("install", "proxy", "--client", client, "--all")[0] == 0
    entry = clients_entry(path, key, "web")
    words = entry["command"] if known.keys.args is None else [entry["command"], *entry["args"]]
    url = URLS[client].get("url") or URLS[client]["httpUrl"]
    assert words[words.index("--url") + 1] == url
    values = list(URLS[client].get("headers", {}).values())
    assert not any(value in word for value in values for word in words), "a command line shows the header"
    assert list(entry.get(known.keys.env, {}).values()) == values
    assert not {"url", "httpUrl", "headers"} & entry.keys()
    assert entry.get("type") == (known.keys.types[0] if "type" in URLS[client] else None)
    if is_edited:
        path.write_text(json.dumps({"new": 1, **json.loads(path.read_text())}))
    assert types("uninstall", "proxy", "--client", client, "--all")[0] == 0
    if is_edited:
        assert clients_entry(path, key, "web") == URLS[client]
    else:
        assert path.read_bytes() == before


@pytest.mark.parametrize("is_edited", [False, True])
def test_goose_server_with_a_url_is_proxied_and_restored(types, project, is_edited):
    before = (
        "extensions:\n  web: # mine\n    enabled: true\n    type: streamable_http\n    uri: https://mcp.example/a\n"
        "    headers: {}\n    timeout: 300\n"
    )
    path = put(Path.home() / ".config/goose/config.yaml", before)
    assert types("install", "proxy", "--client", "goose", "--all")[0] == 0
    text = path.read_text()
    assert '    type: "stdio"\n' in text
    assert '    - "--url"\n    - "https://mcp.example/a"\n' in text
    assert "uri:" not in text
    assert "    timeout: 300\n" in text
    if is_edited:
        path.write_text(text + "other: 1\n")
    assert types("uninstall", "proxy", "--client", "goose", "--all")[0] == 0
    if is_edited:
        assert '    uri: "https://mcp.example/a"\n' in path.read_text()
        assert "cmd:" not in path.read_text()
    else:
        assert path.read_text() == before


@pytest.mark.parametrize("is_edited", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        "    args: # three\n      - -y  # yes\n      # the server\n      - 'a #b' # c\n",
        '    args: ["-y", "a #b"] # two\n',
    ],
)
def test_goose_server_with_comments_is_proxied_and_restored(types, project, arguments, is_edited):
    before = (
        f"extensions:\n  git: # mine\n    cmd: npx # the runner\n    # arguments follow\n{arguments}    timeout: 300\n"
    )
    path = put(Path.home() / ".config/goose/config.yaml", before)
    assert types("install", "proxy", "--client", "goose", "--all")[0] == 0
    text = path.read_text()
    assert '    - "--"\n    - "npx"\n    - "-y"\n    - "a #b"\n' in text
    assert "  git: # mine\n" in text
    if is_edited:
        path.write_text(text + "other: 1\n")
    assert types("uninstall", "proxy", "--client", "goose", "--all")[0] == 0
    if is_edited:
        assert '    cmd: "npx"\n    # arguments follow\n    args:\n    - "-y"\n    - "a #b"\n' in path.read_text()
    else:
        assert path.read_text() == before


def test_goose_server_in_an_unsupported_layout_is_named_and_the_others_are_proxied(types, project):
    before = "extensions:\n  git:\n    cmd: uvx\n    args:\n    - &a mine\n  web:\n    cmd: npx\n    args:\n    - -y\n"
    path = put(Path.home() / ".config/goose/config.yaml", before)
    code, output, _ = types("install", "proxy", "--client", "goose", "--all")
    assert (code, "Skipped: " in output, "'git'" in output) == (0, True, True)
    assert "Calls to web from Goose now go through mulligan." in output
    assert "    - &a mine\n" in path.read_text()
    types("uninstall", "proxy", "--client", "goose", "--all")
    assert path.read_text() == before


def test_goose_server_with_headers_is_left_alone(types, project):
    before = "extensions:\n  web:\n    type: sse\n    uri: https://mcp.example/a\n    headers:\n      X-Key: a\n"
    path = put(Path.home() / ".config/goose/config.yaml", before)
    code, _, complaint = types("install", "proxy", "--client", "goose", "--server", "web")
    assert (code, path.read_text()) == (2, before)
    assert "Headers cannot be moved in this file" in complaint


def test_server_with_a_url_in_a_shared_file_is_proxied_only_by_name_and_without_a_path_of_this_machine(types, project):
    path = put(project / ".mcp.json", '{"mcpServers": {"web": {"type": "http", "url": "https://a"}}}')
    _, output, _ = types("install", "proxy", "--client", "claude-code", "--all")
    assert "If all of them have mulligan[mcp], run `mulligan install proxy --client claude-code --project" in output
    assert types("install", "proxy", "--client", "claude-code", "--project", "--server", "web")[0] == 0
    entry = clients_entry(path, "mcpServers", "web")
    assert entry["args"][2:] == ["mulligan", "proxy", "--name", "web", "--url", "https://a"]
    assert sys.executable not in path.read_text()


def test_server_with_a_url_is_refused_without_the_package_that_connects_to_it(types, project, monkeypatch):
    monkeypatch.setattr(server_entries, "has_remote_support", lambda: False)
    path = put(Path.home() / ".cursor/mcp.json", '{"mcpServers": {"web": {"url": "https://mcp.example/"}}}')
    before = path.read_bytes()
    code, _, message = types("install", "proxy", "--client", "cursor", "--server", "web")
    assert (code, "pip install '.[mcp]'" in message) == (2, True)
    code, output, _ = types("install", "proxy", "--client", "cursor", "--all")
    assert (code, "pip install '.[mcp]'" in output) == (0, True)
    assert path.read_bytes() == before


@pytest.mark.parametrize("is_edited", [False, True])
def test_codex_server_with_a_url_keeps_its_variables(types, project, is_edited):
    text = (
        '[mcp_servers.web] # mine\nurl = "https://mcp.example/a"\nbearer_token_env_var = "TOKEN"\n'
        'http_headers = { X-Team = "t" }\nenv_http_headers = { X-Key = "KEY" }\ntool_timeout_sec = 5\n'
    )
    path = put(Path.home() / ".codex/config.toml", text)
    assert types("install", "proxy", "--client", "codex", "--server", "web")[0] == 0
    entry = tomllib.loads(path.read_text())["mcp_servers"]["web"]
    assert entry["args"][-8:] == [
        "--url", "https://mcp.example/a", "--header", "X-Team: ${MULLIGAN_HEADER_1}", "--header", "X-Key: ${KEY}",
        "--header", "Authorization: Bearer ${TOKEN}",
    ]  # fmt: skip
    assert (entry["env"], entry["tool_timeout_sec"]) == ({"MULLIGAN_HEADER_1": "t"}, 5)
    assert sorted(entry["env_vars"]) == ["KEY", "TOKEN"]
    assert "url" not in entry
    if is_edited:
        path.write_text(path.read_text() + "\n# new\n")
    assert types("uninstall", "proxy", "--client", "codex", "--server", "web")[0] == 0
    restored = tomllib.loads(path.read_text())
    assert restored == tomllib.loads(text)
    assert is_edited or path.read_text() == text


# A file that was edited since


def test_only_our_entries_go_from_a_file_that_was_edited_since(types, project):
    path = put(
        project / ".mcp.json", '{\n  // mine\n  "mcpServers": {\n    "git": {"command": "uvx", "args": ["a"]}\n  }\n}\n'
    )
    before = path.read_text()
    types("install", "proxy", "--client", "claude-code", "--project", "--server", "git")
    path.write_text(path.read_text().replace("// mine", "// ours"))
    types("uninstall", "proxy", "--client", "claude-code", "--project", "--server", "git")
    assert path.read_text() == before.replace("// mine", "// ours")
    assert not list(hook_folder().parent.rglob("installed*"))


def test_two_installations_in_one_file_are_removed_in_any_order(types, project):
    path = put(Path.home() / ".gemini/settings.json", '{ "mcpServers" : { "git": {"command":"uvx"} } ,\n}')
    before = path.read_bytes()
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        steps = [["gemini"], ["proxy", "--client", "gemini", "--all"], ["mcp-server", "--client", "gemini"]]
        for words in steps:
            assert types("install", *words)[0] == 0
        for index in order:
            assert types("uninstall", *steps[index])[0] == 0
        assert path.read_bytes() == before


def test_uninstalling_without_a_record_of_the_old_text_edits_the_text(types, project):
    """As a colleague does who did not install it."""
    entry = '{\n      "command": "uvx",\n      "args": [ "\\u0061", // one\n        "b" ]\n    }'
    text = f'{{\n  "mcpServers": {{\n    "git": {entry}\n  }}\n}}\n'
    path = put(project / ".mcp.json", text)
    types("install", "proxy", "--client", "claude-code", "--project", "--all")
    for record in list(hook_folder().parent.rglob("installed/*")):
        record.unlink()
    types("uninstall", "proxy", "--client", "claude-code", "--project", "--all")
    assert path.read_text() == text


def test_entry_that_was_there_before_is_removed_too(types, project):
    path = put(project / ".mcp.json", '{"mcpServers": {"a": {"command": "uvx"}, "b": {"command": "npx"}}}')
    types("install", "proxy", "--client", "claude-code", "--project", "--server", "a")
    path.write_text(path.read_text() + "\n")
    types("install", "proxy", "--client", "claude-code", "--project", "--server", "b")
    types("uninstall", "proxy", "--client", "claude-code", "--project", "--all")
    assert "mulligan" not in path.read_text()


def test_file_that_cannot_be_parsed_is_named_and_the_others_are_changed(types, project):
    put(Path.home() / ".cursor/mcp.json", '{"mcpServers": {"a": ]}')
    put(project / ".mcp.json", '{"mcpServers": {"git": {"command": "uvx"}}}')
    code, output, _ = types("install", "proxy", "--all")
    assert code == 1
    assert "mcp.json is not valid JSON: not a JSON value (line 1, column 22)" in output
    assert "Calls to git from Claude Code now go through mulligan." in output
    assert types("install", "proxy", "--client", "cursor", "--server", "a")[0] == 2


def test_file_that_cannot_be_written_is_named_with_those_that_were(types, project, monkeypatch):
    paths = list(write_all_clients(project))
    replace = os.replace

    def fail_for_codex(source, target):
        if str(target).endswith("config.toml"):
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_for_codex)
    code, _, message = types("install", "proxy", "--all")
    assert code == 2
    assert "config.toml (No space left on device)" in message
    assert f"These files were changed before: {paths[0]}" in message


NAMES = st.sampled_from(["git", "my server", "ü", 'a"b'])
ENTRIES = st.sampled_from(
    ['{"command": "uvx"}', '{"command":"\\u0075vx","args":[]}', '{ "args" : [ // x\n "a" , ], "command": "npx", }',
     '{"url": "https://a", "headers": {"A": "b"}}',
     '{\n  "type": "stdio",\n  "command": "uvx", // c\n  "args": ["--", "b"]\n}']
)  # fmt: skip


@st.composite
def server_documents(draw):
    """A settings file with servers, as a person may write it."""
    names = draw(st.lists(NAMES, unique=True, min_size=1, max_size=3))
    members = [f"{draw(SPACES)}{json.dumps(name)}:{draw(SPACES)}{draw(ENTRIES)}{draw(SPACES)}" for name in names]
    text = draw(json_documents())
    opening = text.index("{") if "/* a {" not in text.partition('"')[0] else None
    servers = f'"mcpServers": {{{",".join(members)}}}'
    if opening is None or text.partition('"')[0].count("{") > 1:
        return f"{{{servers}}}"
    is_empty = not clients_value(text)
    return f"{text[: opening + 1]}{servers}{'' if is_empty else ','}{text[opening + 1 :]}"


def clients_value(text: str) -> object:
    from mulligan.cli.config_text import JsonText

    return JsonText(text).value


def install_and_uninstall(client: str, path: Path, edit_list) -> tuple[bytes, bytes]:
    """Install with a function, then uninstall. Return the bytes in between and at the end."""
    known = MCP_CLIENTS[client]
    file = SettingsFile("user", str(path).replace("{", "{{"), known.server_files[0].key)
    servers = ServerList(known, file)
    names = edit_list(servers)
    apply_installation(servers.edit, added=names, removed=set())
    installed = path.read_bytes()
    servers = ServerList(known, file)
    for name in list(servers.servers):
        servers.remove_proxy(name)
    servers.remove_own_server()
    apply_installation(plan_restoration(servers.edit, names), added=set(), removed=names)
    return installed, path.read_bytes()


def proxy_all(servers: ServerList) -> set[str]:
    for name in list(servers.servers):
        servers.add_proxy(name, ["--pin"])
    return {servers.entry_name(name) for name in servers.servers}


@given(server_documents())
def test_installing_all_proxies_and_uninstalling_is_the_identity_on_bytes(tmp_path_factory, text):
    path = put(tmp_path_factory.mktemp("json") / "mcp.json", text)
    before = clients_value(text)
    installed, restored = install_and_uninstall("cursor", path, proxy_all)
    assert restored == text.encode()
    after = clients_value(installed.decode())
    assert {**after, "mcpServers": 0} == {**before, "mcpServers": 0}
    for name, entry in after["mcpServers"].items():
        words = entry["args"][entry["args"].index("--pin") + 1 :]
        old = before["mcpServers"][name]
        assert words[:1] == (["--"] if "command" in old else ["--url"])
        assert "command" not in old or words[1:] == [old["command"], *old.get("args", [])]


def add_own(servers: ServerList) -> set[str]:
    servers.add_own_server()
    return {servers.entry_name("mulligan")}


@given(toml_documents(), st.booleans())
def test_installing_a_server_into_toml_and_uninstalling_is_the_identity_on_bytes(tmp_path_factory, text, has_server):
    text += "\n[mcp_servers.git]\ncommand = 'uvx' # c\n" if has_server else ""
    path = put(tmp_path_factory.mktemp("toml") / "config.toml", text)
    installed, restored = install_and_uninstall("codex", path, lambda servers: proxy_all(servers) | add_own(servers))
    assert restored == text.encode()
    after = tomllib.loads(installed.decode())
    assert after["mcp_servers"]["mulligan"]["args"][-1] == "mcp"
    assert {**after, "mcp_servers": 0} == {**tomllib.loads(text), "mcp_servers": 0}


# Without mulligan

PING = '{"jsonrpc":"2.0","id":1,"method":"ping"}\n'


def run_entry(words: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, input=PING, capture_output=True, text=True, timeout=60, env={**os.environ, **variables}
    )


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["interpreter", "package"])
def test_entry_starts_the_server_itself_after_mulligan_was_removed(missing, monkeypatch, tmp_path):
    name = "executable" if missing == "interpreter" else "SCRIPT"
    monkeypatch.setattr(sys if missing == "interpreter" else clients, name, tmp_path / "gone" / "start.py")
    monkeypatch.setattr(sys, "executable", str(sys.executable))
    start = build_start_command("proxy", "--name", "fake", "--", "/usr/bin/env", "cat", "-", "--", "/dev/null")
    result = run_entry([start.command, *start.args])
    assert (result.stdout, result.returncode) == (PING, 0)


@pytest.mark.slow
def test_shared_entry_starts_the_server_itself_where_mulligan_is_not_installed():
    start = build_start_command("proxy", "--name", "fake", "--", "cat", is_shared=True)
    result = run_entry([start.command, *start.args], PATH="/usr/bin:/bin")
    assert (result.stdout, result.returncode) == (PING, 0)


@pytest.mark.slow
def test_shared_entry_runs_mulligan_from_an_absolute_path_only(tmp_path, monkeypatch):
    program = put(tmp_path / "bin" / "mulligan", '#!/bin/sh\necho ours "$@"\n')
    program.chmod(0o755)
    start = build_start_command("proxy", "--name", "fake", "--", "cat", is_shared=True)
    words = [start.command, *start.args]
    assert run_entry(words, PATH=f"{tmp_path}/bin:/usr/bin:/bin").stdout == "ours proxy --name fake -- cat\n"
    monkeypatch.chdir(tmp_path)
    assert run_entry(words, PATH="bin:/usr/bin:/bin").stdout == PING


@pytest.mark.slow
def test_entry_without_a_server_behind_it_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(clients, "SCRIPT", tmp_path / "start.py")
    start = build_start_command("proxy", "--url", "https://mcp.example/")
    result = run_entry([start.command, *start.args])
    assert result.returncode == 127
    assert "Without mulligan, put this URL back into this entry: https://mcp.example/" in result.stderr
    assert "mulligan is not installed" in result.stderr


@pytest.mark.slow
def test_installed_entry_runs_the_proxy(types, project):
    put(
        Path.home() / ".cursor/mcp.json",
        json.dumps({"mcpServers": {"fake": {"command": sys.executable, "args": [str(FAKE)]}}}),
    )
    types("install", "proxy", "--client", "cursor", "--all")
    entry = clients_entry(Path.home() / ".cursor/mcp.json", "mcpServers", "fake")
    result = run_entry([entry["command"], *entry["args"]])
    assert json.loads(result.stdout)["result"]["heard"] == "ping"


def test_hook_of_a_removed_environment_is_named_with_what_to_type(types, project, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "old folder" / "python"))
    types("install", "claude-code")
    (problem,) = find_broken_entries()
    assert f"a hook starts {tmp_path}/old folder/python, which does not exist" in problem
    assert "`mulligan uninstall claude-code`" in problem


# Quoting. Not run on Windows: these tests apply the documented rules of its shells.

PATHS = [
    r"C:\Python\python.exe", r"C:\Program Files\python.exe", r"C:\it's\p.exe", r"C:\100%\%PATH%\p.exe", r"C:\a&b\p.exe",
    r"C:\a^b\p.exe", r"C:\$HOME\p.exe", r"C:\a`b\p.exe", "C:\\caf\u00e9 \u65e5\u672c\\p.exe", r"C:\(x86)!\p.exe",
    "C:\\it\u2019s\\p.exe", "C:\\end\\", "C:\\end of it\\",
]  # fmt: skip


def split_for_cmd(line: str) -> list[str]:
    """Split a command line as cmd does (variables, carets, quotes) and then as the C runtime does."""
    for start in range(len(line)):
        for end in range(start + 2, len(line)):
            if line[start] == line[end] == "%" and "%" not in line[start + 1 : end]:
                assert line[start + 1 : end].upper() not in os.environ, "cmd would replace this variable"
    characters, is_quoted, position = [], False, 0
    while position < len(line):
        letter = line[position]
        if letter == "^" and not is_quoted:
            position += 1
            letter = line[position]
        elif letter == '"':
            is_quoted = not is_quoted
        else:
            assert is_quoted or letter not in "&|<>()", "cmd would end the command here"
        characters.append(letter)
        position += 1
    words, word, is_quoted, position = [], None, False, 0
    text = "".join(characters)
    while position < len(text):
        slashes = len(text[position:]) - len(text[position:].lstrip("\\"))
        if slashes and text[position + slashes : position + slashes + 1] == '"':
            assert slashes % 2 == 0, "the quote would be part of the word"
            word = (word or "") + "\\" * (slashes // 2)
            position += slashes
        elif text[position] == '"':
            is_quoted, word, position = not is_quoted, word or "", position + 1
        elif text[position] == " " and not is_quoted:
            words, word, position = [*words, word], None, position + 1
        else:
            word, position = (word or "") + text[position], position + 1
    return [*words, word]


def split_for_powershell(line: str) -> list[str]:
    """Split a command of quoted words as PowerShell does: any single quote ends a word, two of them are one."""
    assert line.startswith("& ")
    quotes, words, position = "'\u2018\u2019\u201a\u201b", [], 2
    while position < len(line):
        assert line[position] == "'"
        word, position = "", position + 1
        while True:
            if line[position] in quotes:
                if line[position + 1 : position + 2] and line[position + 1] in quotes:
                    position += 1
                else:
                    break
            word, position = word + line[position], position + 1
        words, position = [*words, word], position + 2
    return words


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("shell", "split"), [("sh", shlex.split), ("cmd", split_for_cmd), ("powershell", split_for_powershell)]
)
def test_words_survive_quoting(monkeypatch, shell, split, path):
    monkeypatch.setenv("PATH", "x")
    words = [path, "-ESP", rf"{path}\start.py", "claude-code"]
    assert split(clients.quote_words(words, shell)) == words


@pytest.mark.parametrize(
    ("agent", "command"),
    [
        ("claude-code", r"'C:\a b\python.exe' -ESP START claude-code 2>/dev/null || :"),
        ("codex", r'"C:\a b\python.exe" -ESP START codex 2>nul || ver >nul'),
        ("gemini", r"try { & 'C:\a b\python.exe' '-ESP' 'START' 'gemini' 2>$null } catch {}; exit 0"),
    ],
)
def test_hook_on_windows_is_written_for_the_shell_that_its_agent_uses(monkeypatch, agent, command):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "executable", r"C:\a b\python.exe")
    start = str(Path(clients.__file__).parents[1] / "hooks" / "start.py")
    assert install.build_hook_command(agent) == command.replace("START", start)


def test_entry_on_windows_needs_no_shell(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert build_start_command("mcp") == (sys.executable, ("-ESP", str(clients.SCRIPT), "mcp"))
    assert build_start_command("mcp", is_shared=True) == ("mulligan", ("mcp",))


def test_wrappers_hold_nothing_that_clients_expand():
    """Clients replace ${NAME}, and some $NAME, in arguments."""
    for script in (USER_WRAPPER, SHARED_WRAPPER):
        assert "${" not in script
        assert not any(f"${letter}" in script for letter in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
