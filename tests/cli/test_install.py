"""mulligan install and uninstall: another program's settings, edited so that nothing of theirs is lost."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from mulligan.cli import clients
from mulligan.cli.config_edits import Edit, plan_edit, read_document
from mulligan.core.failure import SettingsError
from mulligan.settings import hook_folder

ROOT = Path(__file__).parents[2]

AGENTS = {
    "claude-code": ".claude/settings.json",
    "codex": ".codex/hooks.json",
    "cursor": ".cursor/hooks.json",
    "gemini": ".gemini/settings.json",
}
PROJECTS = {
    "claude-code": ".claude/settings.local.json",
    "codex": ".codex/hooks.json",
    "cursor": ".cursor/hooks.json",
    "gemini": ".gemini/settings.json",
}
THEIRS = {
    "model": "opus",
    "hooks": {
        "PostToolUseFailure": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "their-own"}]}],
        "Stop": [{"hooks": [{"type": "command", "command": "say done"}]}],
    },
    "ünder": [1, 2.5, None],
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def stored_records(home):
    """The old texts that mulligan keeps until it is uninstalled, wherever they are."""
    paths = {*home.rglob("*"), *hook_folder().parent.rglob("*")}
    return [path for path in paths if "installed" in path.parts or "before-mulligan" in path.name]


@pytest.mark.parametrize(("agent", "place"), AGENTS.items())
def test_installing_writes_hooks_that_run_mulligan(home, types, agent, place):
    code, said, _ = types("install", agent)
    assert code == 0
    assert "+++" in said
    hooks = json.loads((home / place).read_text())["hooks"]
    assert hooks
    for entries in hooks.values():
        ((handler,),) = [entry.get("hooks", [entry]) for entry in entries]
        assert handler["command"].endswith(f" {agent} 2>/dev/null || :")
        assert handler["timeout"] in ((10_000, 3000) if agent == "gemini" else (10, 3))


@pytest.mark.parametrize(("agent", "place"), PROJECTS.items())
def test_of_a_project_its_own_file_is_edited(home, types, monkeypatch, agent, place):
    project = home / "work"
    project.mkdir()
    monkeypatch.chdir(project)
    types("install", agent, "--project")
    assert (project / place).exists()
    assert not (home / AGENTS[agent]).exists()


@pytest.mark.parametrize(("agent", "place"), AGENTS.items())
def test_installing_twice_is_installing_once(home, types, agent, place):
    types("install", agent)
    before = (home / place).read_bytes()
    code, said, _ = types("install", agent)
    assert code == 0
    assert "Nothing to change" in said
    assert (home / place).read_bytes() == before


@pytest.mark.parametrize(("agent", "place"), AGENTS.items())
def test_earlier_hooks_are_replaced_once_and_taken_away(home, types, agent, place):
    types("install", agent)
    now = (home / place).read_text()
    for earlier in (now.replace(" -ESP ", " -S "), now.replace("/hooks/start.py", "/hooks/main.py")):
        assert earlier != now
        put(home / place, earlier)
        types("install", agent)
        assert (home / place).read_text() == now
        put(home / place, earlier)
        types("uninstall", agent)
        assert not (home / place).exists()


@pytest.mark.parametrize(("agent", "place"), AGENTS.items())
def test_uninstalling_leaves_what_was_there_before(home, types, agent, place):
    path = put(home / place, json.dumps(THEIRS, indent=4, ensure_ascii=False) + "\n")
    before = path.read_text()
    types("install", agent)
    installed = json.loads(path.read_text())
    assert installed["hooks"]["PostToolUseFailure"][0] == THEIRS["hooks"]["PostToolUseFailure"][0]
    types("uninstall", agent)
    assert path.read_text() == before
    code, said, _ = types("uninstall", agent)
    assert code == 0
    assert "Not installed" in said


def test_a_file_that_held_only_our_hooks_is_gone_after_uninstalling(home, types):
    types("install", "codex")
    types("uninstall", "codex")
    assert not (home / ".codex" / "hooks.json").exists()


def test_old_text_is_stored_until_uninstalling_and_nothing_is_left_behind(home, types):
    path = put(home / ".claude/settings.json", '{"model": "opus"}')
    types("install", "claude-code")
    assert [entry.name for entry in path.parent.iterdir()] == ["settings.json"]
    (record,) = [entry for entry in stored_records(home) if entry.is_file()]
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    types("uninstall", "claude-code")
    assert path.read_text() == '{"model": "opus"}'
    assert stored_records(home) == []


def test_a_rehearsal_shows_the_difference_and_writes_nothing(home, types):
    path = put(home / ".claude/settings.json", '{"model": "opus"}')
    _, said, _ = types("install", "claude-code", "--dry-run")
    assert "+" in said
    assert "was not changed" in said
    assert path.read_text() == '{"model": "opus"}'
    assert stored_records(home) == []


def test_the_difference_shows_no_secret_of_the_settings(home, types):
    entry = {
        "command": "npx",
        "args": ["notes", "--token=s3cretone", "--api-key", "s3crettwo", "--header", "X-Any: s3cretthree"],
        "env": {"ANY_NAME": "s3cretfour", "FROM": "${HERE}"},
    }
    path = put(home / ".cursor/mcp.json", json.dumps({"mcpServers": {"notes": entry}}, indent=2))
    for options in (["--dry-run"], ["--dry-run", "--json"], []):
        code, said, _ = types("install", "proxy", "--client", "cursor", "--server", "notes", *options)
        assert code == 0
        assert "s3cret" not in said
        assert "proxy" in said
    assert all(f"s3cret{name}" in path.read_text() for name in ("one", "two", "three", "four"))


def test_the_same_facts_as_json(home, types):
    _, said, _ = types("install", "claude-code", "--json")
    told = json.loads(said)
    assert told["changed"] is True
    (file,) = told["files"]
    assert file["file"] == str(home / ".claude/settings.json")
    assert "mulligan" in file["difference"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{\n  "a": 1 // mine\n  "b": 2\n}', "(line 3, column 3)"),
        ('{"hooks": []}', "not an object of lists"),
        ('{"hooks": {"Stop": {}}}', "not an object of lists"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_what_is_not_understood_is_refused_and_left_alone(home, types, command, text, why):
    path = put(home / ".claude/settings.json", text)
    code, _, said = types(command, "claude-code")
    assert code == 2
    assert why in said
    assert path.read_text() == text
    assert stored_records(home) == []


def test_a_file_that_is_no_text_is_refused(home, types):
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    path.write_bytes(b"\xff\xfe\x00")
    code, _, said = types("install", "claude-code")
    assert (code, "UTF-8" in said) == (2, True)


def test_a_codex_configuration_that_is_no_toml_is_refused(home, types):
    put(home / ".codex/config.toml", "[features\n")
    code, _, said = types("install", "codex")
    assert (code, "not valid TOML" in said) == (2, True)
    assert not (home / ".codex/hooks.json").exists()


def test_agent_that_is_not_on_this_machine_is_told(home, types, monkeypatch):
    monkeypatch.setenv("PATH", "")
    note = f"Codex was not found on this machine: no codex on the PATH, no folder {home / '.codex'}."
    assert note in types("install", "codex")[1]
    assert "mulligan has recorded no sessions." in types("uninstall", "codex")[1]
    (home / ".codex").mkdir(exist_ok=True)
    assert "was not found" not in types("install", "codex")[1]


def test_hooks_that_are_switched_off_are_told(home, types):
    put(home / ".codex/config.toml", "[features]\nhooks = false\n")
    _, said, _ = types("install", "codex")
    assert "turns hooks off" in said


@pytest.mark.parametrize("place", [".claude/settings.json", "shop/.claude/settings.json"])
def test_switch_that_turns_all_hooks_of_claude_code_off_is_told_each_time(home, types, monkeypatch, place):
    (home / ".claude").mkdir()
    (home / "shop").mkdir()
    monkeypatch.chdir(home / "shop")
    path = put(home / place, '{"disableAllHooks": true}')
    for start in ("---", "Already installed."):
        _, said, _ = types("install", "claude-code")
        assert said.startswith(start)
        assert f"Warning: {path} turns all hooks off" in said
    path.write_text(path.read_text().replace("true", "false"))
    assert "Warning" not in types("install", "claude-code")[1]


def test_uninstalling_says_where_recorded_sessions_stay(home, types):
    types("install", "codex")
    store = Path(os.environ["MULLIGAN_HOME"]) / "mulligan.db"
    store.parent.mkdir(parents=True, exist_ok=True)
    store.touch()
    said = types("uninstall", "codex")[1]
    assert f"Recorded sessions stay in {store}" in said
    assert "mulligan forget --session ID" in said


def test_a_link_stays_one_and_rights_stay_as_they_were(home, types):
    real = put(home / "dotfiles/settings.json", "{}")
    os.chmod(real, 0o640)
    (home / ".claude").mkdir()
    (home / ".claude/settings.json").symlink_to(real)
    types("install", "claude-code")
    assert (home / ".claude/settings.json").is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert "hooks" in json.loads(real.read_text())


def test_the_folders_that_the_agents_are_told_of_are_used(home, types, monkeypatch):
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home / "elsewhere"))
    monkeypatch.setenv("CODEX_HOME", str(home / "other"))
    types("install", "claude-code")
    types("install", "codex")
    assert (home / "elsewhere/settings.json").exists()
    assert (home / "other/hooks.json").exists()


def test_the_plugin_is_told_of_the_same_events():
    plugin = json.loads((ROOT / "plugins/claude-code/hooks/hooks.json").read_text())
    assert plugin["hooks"].keys() == clients.AGENTS["claude-code"].hook_events.keys()
    for event, (entry,) in plugin["hooks"].items():
        assert entry.get("matcher") == clients.AGENTS["claude-code"].hook_events[event]
        assert "mulligan-hook claude-code" in entry["hooks"][0]["command"]
    market = json.loads((ROOT / ".claude-plugin/marketplace.json").read_text())
    assert (ROOT / market["plugins"][0]["source"] / ".claude-plugin/plugin.json").exists()


def test_what_changed_meanwhile_is_not_overwritten(tmp_path):
    path = put(tmp_path / "a.json", "{}")
    before, document = read_document(path, "json")
    edit = plan_edit(path, before, document, document.set(("b",), 1))
    path.write_text('{"c": 1}')
    with pytest.raises(SettingsError, match="changed by another program"):
        edit.apply()
    assert path.read_text() == '{"c": 1}'


def test_an_edit_that_cannot_be_finished_leaves_the_file_and_no_rubbish(tmp_path, monkeypatch):
    path = put(tmp_path / "a.json", "{}")

    def fails(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(SettingsError, match="No space"):
        Edit(path, "{}", "{ }").apply()
    assert path.read_text() == "{}"
    assert [each for each in tmp_path.iterdir() if each != path] == []
