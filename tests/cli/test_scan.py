"""mulligan scan, through the command itself."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from session_logs import ClaudeCode, Codex, otlp, span, write

from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.store.sqlite import SqliteStore

MISSING = "File does not exist. Note: your current working directory is /home/ada/shop."
SECRET = "ghp_" + "Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3i2"


def session(log: ClaudeCode, first: int = 0) -> list[Any]:
    """One call that fails, is tried with another path, and works."""
    return [
        log.user("look at main.py"),
        log.call(f"toolu_{first}", "Read", 1, file_path="src/main.py", limit=100),
        log.result(f"toolu_{first}", MISSING, 2, is_error=True),
        log.call(f"toolu_{first + 1}", "Read", 4, file_path="/home/ada/shop/src/main.py", limit=100),
        log.result(f"toolu_{first + 1}", f"token = {SECRET}", 5),
    ]


@pytest.fixture
def home(monkeypatch) -> Path:
    """A machine on which Claude Code and Codex were used."""
    place = Path(os.environ["HOME"])
    projects = place / ".claude" / "projects" / "-home-ada-shop"
    projects.mkdir(parents=True)
    write(projects / "5e55.jsonl", *session(ClaudeCode("5e55")))
    sessions = place / ".codex" / "sessions" / "2026" / "03" / "01"
    sessions.mkdir(parents=True)
    log = Codex()
    write(
        sessions / "rollout-1.jsonl",
        log.meta(),
        log.call("call_1", "exec_command", 1, cmd="mak"),
        log.ended("call_1", 127, "sh: mak: command not found", 2),
    )
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    return place


def test_the_first_line_answers_the_question_and_the_rest_says_what_failed_and_what_helped(types, home):
    code, out, err = types("scan")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "66.7 % of 3 calls in 2 sessions failed: 1 of 2 failures recovered."
    assert any("claude-code" in line for line in lines)
    assert any(line.split() == ["1", "1", "tool/file_not_found", "Read"] for line in lines)
    assert any("different file_path" in line for line in lines)
    assert "--html report.html" in err
    assert "--import" in err
    assert SECRET not in out + err


def test_json_has_the_same_facts_and_what_was_read(types, home):
    code, out, _ = types("scan", "--json")
    facts = json.loads(out)
    assert code == 0
    assert (facts["calls"], facts["failures"], facts["recovered"]) == (3, 2, 1)
    assert facts["read"]["files"] == 2
    assert facts["read"]["formats"] == {"Claude Code": 1, "Codex": 1}
    assert facts["read"]["unknown"] == 0


def test_results_that_look_like_failures_are_counted_apart(types, tmp_path):
    """A log of plain messages flags nothing, and a file may contain any text."""
    call = {"id": "a", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a.txt"}'}}
    result = {"role": "tool", "tool_call_id": "a", "content": "Error: ENOENT: no such file or directory, open 'a.txt'"}
    messages = [{"role": "user", "content": "Read it."}, {"role": "assistant", "tool_calls": [call]}, result]
    path = tmp_path / "session.jsonl"
    path.write_text(json.dumps({"messages": messages}) + "\n")

    assert types("scan", str(path))[1].startswith(
        "None of 1 call in 1 session failed. Suspected failures, not counted: 1."
    )
    document = json.loads(types("scan", "--json", str(path))[1])
    assert document["suspected"] == 1
    assert document["tools"][0]["suspected"] == 1
    page = tmp_path / "report.html"
    types("scan", str(path), "--html", str(page))
    assert "1 suspected" in page.read_text()


def test_it_says_where_it_looked_when_there_is_nothing(types):
    code, out, _ = types("scan")
    assert code == 1
    assert out.splitlines()[0] == "No session logs found."
    for place in (".claude/projects", ".codex/sessions", ".gemini/tmp"):
        assert place in out
    assert "mulligan scan PATH" in out
    assert "mulligan demo" in out


def test_file_of_another_format_is_named_as_such(types, tmp_path):
    file = write(tmp_path / "broken.jsonl", "not json at all")
    code, out, _ = types("scan", str(file))
    assert code == 1
    assert f"{file}  (not a log of a supported format)" in out


def test_agents_that_keep_their_logs_elsewhere_are_found_there(types, tmp_path, monkeypatch):
    (tmp_path / "cc" / "projects" / "x").mkdir(parents=True)
    (tmp_path / "cx" / "sessions").mkdir(parents=True)
    write(tmp_path / "cc" / "projects" / "x" / "a.jsonl", *session(ClaudeCode()))
    log = Codex()
    write(tmp_path / "cx" / "sessions" / "r.jsonl", log.meta(), log.ended("x", 0, "ok", 1))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "cc"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "cx"))
    code, out, _ = types("scan", "--json")
    assert code == 0
    assert json.loads(out)["read"]["formats"] == {"Claude Code": 1, "Codex": 1}


def test_a_path_that_is_not_there_is_an_error_that_says_what_to_type(types):
    code, out, err = types("scan", "/no/such/folder")
    assert (code, out) == (2, "")
    assert err.startswith("error: /no/such/folder does not exist. Name a file or a folder")


def test_every_format_can_be_named_together_gzipped_or_not(types, tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(
        gzip.compress("".join(json.dumps(entry) + "\n" for entry in session(ClaudeCode())).encode())
    )
    tool = span("t1", "b", None, "execute_tool search", 1, 3, "search timed out", gen_ai__tool__name="search")
    write(tmp_path / "traces.jsonl", otlp(tool))
    (tmp_path / "package.json").write_text('{"name": "x"}')
    code, out, _ = types("scan", tmp_path, "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["read"]["formats"] == {"Claude Code": 1, "OTLP traces": 1}
    assert facts["read"]["other_files"] == 1
    assert facts["failures"] == 2


def test_what_cannot_be_read_is_told_and_the_rest_is_read(types, tmp_path):
    write(tmp_path / "good.jsonl", *session(ClaudeCode()), b'{"type":"assistant","message":{"tool_use')
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    code, out, err = types("scan", tmp_path)
    assert code == 0
    assert out.startswith("50.0 % of 2 calls in 1 session failed")
    assert "1 line of 6 could not be read." in err
    assert "pipe.jsonl (it is not a regular file)" in err
    assert "gone.jsonl (No such file or directory)" in err


def test_files_beside_the_logs_that_hold_keys_are_not_even_opened(types, tmp_path):
    talk = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    for name in ("auth.json", "oauth_creds.json", ".credentials.json", "talk.json"):
        (tmp_path / name).write_text(json.dumps(talk))
    facts = json.loads(types("scan", tmp_path, "--json")[1])
    assert (facts["read"]["files"], facts["read"]["other_files"]) == (1, 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_one_may_not_read_is_told(types, tmp_path):
    write(tmp_path / "a.jsonl", *session(ClaudeCode())).chmod(0)
    _, _, err = types("scan", tmp_path)
    assert "a.jsonl (Permission denied)" in err


def test_since_leaves_out_what_is_older(types, tmp_path):
    write(tmp_path / "a.jsonl", *session(ClaudeCode()))  # it says March 2026, whenever the file was written
    code, out, _ = types("scan", tmp_path, "--since", "1m")
    assert code == 1
    assert "remove --since" in out
    assert types("scan", tmp_path, "--since", "soon")[0] == 2


def test_a_page_is_written_for_its_owner_with_the_same_facts(types, home, tmp_path):
    page = tmp_path / "report.html"
    code, _, err = types("scan", "--html", page)
    assert code == 0
    assert f"Page written to {page}." in err
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "66.7 % of 3 calls in 2 sessions failed" in text
    assert SECRET not in text
    assert page.stat().st_mode & 0o077 == 0
    assert types("scan", "--html", tmp_path / "no" / "such" / "x.html")[0] == 2


def test_import_keeps_the_sessions_once_and_only_what_is_new_of_one_that_grew(types, home):
    code, _, err = types("scan", "--import")
    assert code == 0
    assert "new in" in err
    store = SqliteStore(Path(os.environ["MULLIGAN_HOME"]) / "mulligan.db")
    before = {history.run.agent: history for history in store.runs(DEFAULT_TENANT, RunQuery())}
    assert set(before) == {"claude-code", "codex"}
    assert len(before["claude-code"].links) == 1
    assert SECRET not in repr(before)
    assert "redacted" in repr(before["claude-code"].steps[1].result)

    code, out, err = types("scan", "--import")
    assert (code, "Imported: 0 records new" in err) == (0, True)
    assert out.startswith("66.7 % of 3 calls in 2 sessions failed")  # told all the same

    log = ClaudeCode("5e55")
    path = next((home / ".claude").rglob("*.jsonl"))
    more = [log.call("toolu_9", "Bash", 9, command="make"), log.result("toolu_9", "ok", 10)]
    with path.open("a") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in more)
    assert json.loads(types("scan", "--import", "--json")[1])["imported"]["new"] == 2  # the step, and the run's end
    history = store.run(DEFAULT_TENANT, before["claude-code"].run.id)
    assert history is not None
    assert [step.name for step in history.steps] == ["Read", "Read", "Bash"]
    store.close()


@pytest.mark.slow
def test_the_command_itself_reads_a_folder_without_waiting_for_a_pipe(tmp_path):
    write(tmp_path / "a.jsonl", *session(ClaudeCode()))
    os.mkfifo(tmp_path / "b.jsonl")
    done = subprocess.run(
        [sys.executable, "-m", "mulligan", "scan", str(tmp_path)],
        env={"PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("50.0 % of 2 calls in 1 session failed: 1 of 1 failure recovered.")
