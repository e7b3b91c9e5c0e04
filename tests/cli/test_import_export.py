"""mulligan export and mulligan import, through the command itself."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hook_events import handle_event
from session_logs import write

from mulligan.cli import import_export
from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind
from mulligan.core.records import Run, Step
from mulligan.core.run_links import attach_links
from mulligan.store.sqlite import SqliteStore

SECRET = "ghp_" + "Q1w2E3r4T5y6U7i8O9p0A1s2D3f4G5h6J7k8"


def row(run: str, seq: int, error: str | None = None, **parameters: Any) -> dict[str, Any]:
    return {
        "dataset": "shop", "run_id": run, "seq": seq, "tool": "order", "parameters": parameters,
        "outcome": "failure" if error else "success", "error": error, "result_excerpt": None if error else "fine",
        "ts": f"2026-03-01T10:00:{seq % 60:02}Z",
    }  # fmt: skip


def rows(runs: int) -> list[dict[str, Any]]:
    made = []
    for number in range(runs):
        made.append(row(f"r{number}", 0, "order_id must be an integer", order_id=str(number), token=SECRET))
        made.append(row(f"r{number}", 1, order_id=number, token=SECRET))
    return made


def kept(path: Path) -> list[Any]:
    store = SqliteStore(path)
    try:
        return list(store.export(DEFAULT_TENANT))
    finally:
        store.close()


@pytest.fixture
def store(tmp_path) -> Path:
    """A store with a run whose call failed and then worked."""
    path = tmp_path / "mine.db"
    made = SqliteStore(path)
    raised = {"exception": "httpx.ReadTimeout", "trace": "  app/weather.py:7 in weather"}
    failure = Failure.of(Kind("tool", "timeout"), "weather of Rome timed out", fingerprint="1:abc", **raised)
    about = {"run": "run_aaaaaaaaaaaaaaaa", "name": "weather", "arguments": {"city": "Rome", "days": 3}}
    steps = [
        Step(**about, seq=1, call=1, outcome="failure", failure=failure, started_at=1_772_000_000_000),
        Step(**about, seq=2, call=2, result="sunny", started_at=1_772_000_001_000),
    ]
    run = Run(id="run_aaaaaaaaaaaaaaaa", agent="planner", metadata={"team": "blue"}, started_at=1_772_000_000_000)
    run = msgspec.structs.replace(run, context="Plan the trip of Ada")
    ended = msgspec.structs.replace(run, ended_at=run.started_at + 9, end_reason="finished")
    made.append(DEFAULT_TENANT, [RunStarted(run), *map(StepEnded, steps), RunEnded(ended)], "test", 1)
    made.close()
    return path


def test_recorded_calls_become_runs_with_failures_classified_and_linked_and_without_secrets(types, tmp_path):
    path = write(tmp_path / "calls.jsonl", *rows(3))
    code, out, _ = types("import", "--format", "calls", path, "--store", tmp_path / "k.db")
    assert code == 0
    assert out.startswith("3 runs with 6 steps read, 9 new records in ")
    histories = kept(tmp_path / "k.db")
    assert [len(history.links) for history in histories] == [1, 1, 1]
    assert histories[0].steps[0].failure.kind == "tool/invalid_arguments"
    assert SECRET not in repr(histories)


def test_the_same_file_again_adds_nothing_and_one_that_grew_only_what_is_new(types, tmp_path):
    path = tmp_path / "calls.jsonl"
    store = tmp_path / "k.db"
    types("import", write(path, *rows(3)), "--store", store)
    code, out, _ = types("import", path, "--store", store)
    assert (code, out) == (0, f"Nothing new: everything is already in {store}.\n")
    with path.open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in (row("r9", 0, order_id=1), row("r9", 1, order_id=2)))
    facts = json.loads(types("import", path, "--store", store, "--json")[1])
    assert (facts["runs"], facts["new"]) == (1, 3)
    # Under another name it is another file, and still nothing of it is new.
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(path.read_bytes())
    assert json.loads(types("import", copy, "--store", store, "--json")[1])["new"] == 0


def test_an_import_that_was_interrupted_goes_on_where_it_was(types, tmp_path, monkeypatch):
    path = write(tmp_path / "calls.jsonl", *rows(40))
    store = tmp_path / "k.db"
    monkeypatch.setattr(import_export, "BATCH_RECORDS", 10)
    seen = 0
    whole = import_export.Importer.build_events

    def interrupted(self, history, is_export):
        nonlocal seen
        seen += 1
        if seen == 21:
            raise KeyboardInterrupt
        return whole(self, history, is_export)

    monkeypatch.setattr(import_export.Importer, "build_events", interrupted)
    code, _, err = types("import", path, "--store", store)
    assert code == 130
    assert "Run the same command to resume" in err
    before = len(kept(store))
    assert 10 <= before <= 20
    monkeypatch.setattr(import_export.Importer, "build_events", whole)
    facts = json.loads(types("import", path, "--store", store, "--json")[1])
    assert facts["runs"] == 40 - before  # what was kept is not even read again
    histories = kept(store)
    assert len(histories) == 40
    assert all(len(history.steps) == 2 and len(history.links) == 1 for history in histories)


def test_a_session_log_whose_copy_was_passed_over_adds_nothing_later_either(types, tmp_path):
    from session_logs import ClaudeCode

    first, second = ClaudeCode("one"), ClaudeCode("two")
    copied = [[log.call("toolu_1", "Bash", 1, command="a"), log.result("toolu_1", "ok", 2)] for log in (first, second)]
    own = [second.call("toolu_2", "Bash", 3, command="b"), second.result("toolu_2", "ok", 4)]
    files = [write(tmp_path / "a.jsonl", *copied[0]), write(tmp_path / "b.jsonl", *copied[1], *own)]
    store = tmp_path / "k.db"
    types("import", *files, "--store", store)
    later = [second.call("toolu_3", "Bash", 5, command="c"), second.result("toolu_3", "ok", 6)]
    write(files[1], *copied[1], *own, *later)
    assert json.loads(types("import", *files, "--store", store, "--json")[1])["new"] == 2  # a step, and the run's end
    assert sorted(len(history.steps) for history in kept(store)) == [1, 2]


@pytest.mark.durability
def test_a_process_that_is_killed_in_the_middle_is_finished_by_the_next(tmp_path):
    path = tmp_path / "calls.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(each) + "\n" for each in rows(1500)).encode()))
    store = tmp_path / "k.db"
    command = [sys.executable, "-m", "mulligan", "import", str(path), "--store", str(store)]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 30
    while time.monotonic() < until and process.poll() is None and not _has_runs(store):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=120)
    found = SqliteStore(store)
    health = found.health(DEFAULT_TENANT)
    found.close()
    assert (health.healthy, health.runs, health.steps) == (True, 1500, 3000)


def _has_runs(path: Path) -> bool:
    if not path.exists():
        return False
    import sqlite3

    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            return bool(connection.execute("SELECT count(*) FROM runs").fetchone()[0])
    except sqlite3.Error:
        return False


def test_an_export_is_for_others_values_are_hidden_and_equal_ones_can_still_be_compared(types, store):
    code, out, _ = types("export", "--store", store)
    assert code == 0
    header, history = map(json.loads, out.splitlines())
    assert (header["mulligan"], header["version"], header["level"]) == ("export", 1, "shared")
    first, second = history["steps"]
    assert first["arguments"]["city"].startswith("[str 4 chars #")
    assert first["arguments"] == second["arguments"]
    assert "sunny" not in out
    assert "blue" not in out
    assert "Ada" not in out, "a prompt is part of the conversation"
    assert history["steps"][0]["failure"]["message"] == "weather of Rome timed out"
    assert [link["method"] for link in history["links"]] == ["retry"]
    assert types("export", "--store", store)[1].splitlines()[1] == out.splitlines()[1]


def test_an_export_comes_back_as_it_was_in_another_store(types, store, tmp_path):
    file = tmp_path / "out.jsonl.gz"
    code, out, err = types("export", "--level", "local", "--store", store, "-o", file)
    assert (code, out) == (0, "")
    assert "1 run with 2 steps written to" in err
    assert file.stat().st_mode & 0o077 == 0
    code, out, _ = types("import", file, "--store", tmp_path / "other.db")
    assert code == 0
    # Its steps say what recovers what, so that the other store derives nothing anew.
    assert kept(tmp_path / "other.db") == [attach_links(history) for history in kept(store)]
    assert [link.evidence for link in kept(tmp_path / "other.db")[0].links] == [("same_arguments",)]


@pytest.mark.parametrize("words", [("export", "-o"), ("scan", "LOG", "--html")])
def test_a_pipe_is_written_to_and_a_link_is_followed(types, store, tmp_path, monkeypatch, words):
    monkeypatch.setenv("MULLIGAN_STORE", str(store))
    log = write(tmp_path / "calls.jsonl", *rows(1))
    command = [str(log) if word == "LOG" else word for word in words]
    file, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(file)  # the file does not exist at first
    for _ in range(2):
        assert types(*command, link)[0] == 0
    assert link.is_symlink()
    text = file.read_bytes()
    assert text
    file.chmod(0o640)
    assert types(*command, file)[0] == 0
    assert file.stat().st_mode & 0o777 == 0o640
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    try:
        assert types(*command, pipe)[0] == 0
        assert pipe.is_fifo()
        assert len(reader.communicate(timeout=20)[0]) == len(text)
    finally:
        reader.kill()
        reader.wait()


@pytest.mark.slow
@pytest.mark.parametrize("words", [("import",), ("scan", "--import")])
def test_runs_go_into_a_server_that_asks_for_a_token(types, store, tmp_path, monkeypatch, words):
    servers = pytest.importorskip("servers")
    from mulligan.server.access import AccessRules

    file = str(tmp_path / "runs.jsonl")
    types("export", "--store", store, "-o", file)
    rules = AccessRules(hosts=frozenset({"team.example.com"}), is_local=False)
    with servers.served(tmp_path / "server", rules=rules) as running:
        address = f"http://127.0.0.1:{running.port}"
        code, _, err = types(*words, "--store", address, file)
        assert (code, "MULLIGAN_TOKEN" in err) == (2, True)
        _, secret = running.server.tokens.create("admin", 0)
        running.server.tokens.refresh()
        monkeypatch.setenv("MULLIGAN_TOKEN", secret)
        code, _, err = types(*words, "--store", address, file)
        assert code != 2, err
        assert len(running.store.runs(DEFAULT_TENANT, RunQuery())) > 0


@pytest.mark.slow
def test_whoever_may_send_to_a_server_sends_the_log_of_a_coding_agent(types, tmp_path, monkeypatch):
    servers = pytest.importorskip("servers")
    from mulligan.server.access import AccessRules

    said = {"isSidechain": False, "cwd": "/w", "sessionId": "s-1", "timestamp": "2026-01-05T10:00:00.000Z"}
    used = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "make"}}
    came = {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": "Exit code 2\nmake: *** stopped"}
    file = tmp_path / "log.jsonl"
    with file.open("w") as log:
        for type, content in (("assistant", [used]), ("user", [came])):
            log.write(json.dumps({**said, "type": type, "message": {"role": type, "content": content}}) + "\n")
    with servers.served(tmp_path / "server", rules=AccessRules(is_local=False)) as running:
        monkeypatch.setenv("MULLIGAN_TOKEN", running.holding("ingest").token)
        for _ in range(2):
            code, _, err = types("import", "--store", f"http://127.0.0.1:{running.port}", str(file))
            assert code == 0, err
        (history,) = running.store.runs(DEFAULT_TENANT, RunQuery())
        assert [step.name for step in history.steps] == ["Bash"]


@pytest.mark.slow
def test_what_a_server_has_is_exported_by_whoever_may_read(types, store, tmp_path, monkeypatch):
    servers = pytest.importorskip("servers")
    file = tmp_path / "runs.jsonl"
    types("export", "--store", store, "-o", str(file))
    with servers.served(tmp_path / "server") as running:
        address = f"http://127.0.0.1:{running.port}"
        for role, words in (("admin", ("import", str(file))), ("read", ("export", "-o", str(tmp_path / "back.jsonl")))):
            _, secret = running.server.tokens.create(role, 0)
            running.server.tokens.refresh()
            monkeypatch.setenv("MULLIGAN_TOKEN", secret)
            code, _, err = types(*words, "--store", address)
            assert code == 0, err
    assert len((tmp_path / "back.jsonl").read_text().splitlines()) == len(file.read_text().splitlines())


def test_an_export_that_hides_more_changes_nothing_in_the_store_it_came_from(types, store, tmp_path):
    before = kept(store)
    types("export", "--store", store, "-o", tmp_path / "out.jsonl")
    code, out, _ = types("import", tmp_path / "out.jsonl", "--store", store)
    assert (code, out.split(":")[0]) == (0, "Nothing new")
    assert kept(store) == before


def test_since_leaves_out_what_is_older(types, store):
    assert len(types("export", "--since", "1h", "--store", store)[1].splitlines()) == 1


def test_export_of_named_runs_contains_these_runs_once_each(types, tmp_path):
    path = tmp_path / "kept.db"
    kept = SqliteStore(path)
    for place, id in enumerate(["run_a1", "run_b1", "run_c1"], start=1):
        run = Run(id=id, agent=f"agent-{place}", started_at=place * 1000, ended_at=place * 1000 + 5)
        kept.append(DEFAULT_TENANT, [RunStarted(run), RunEnded(run)], "journal", place * 2)
    kept.close()
    for names, ids in ((["last"], ["run_c1"]), (["agent-1", "run_a", "last"], ["run_a1", "run_c1"])):
        code, out, _ = types("export", *names, "--store", str(path))
        assert code == 0
        assert [json.loads(line)["run"]["id"] for line in out.splitlines()[1:]] == ids
    code, out, err = types("export", "zzz", "--store", str(path))
    assert (code, out) == (2, "")
    assert "No run or agent matches 'zzz'" in err
    assert "--since excludes RUN" in types("export", "last", "--since", "7d", "--store", str(path))[2]


def test_a_half_written_export_is_never_left_behind(types, store, tmp_path):
    code, _, err = types("export", "--store", store, "-o", tmp_path / "no" / "out.jsonl")
    assert code == 2
    assert "Cannot write" in err
    assert list(tmp_path.glob(".*")) == []


def test_what_cannot_be_imported_is_told_with_what_to_do(types, tmp_path):
    odd = tmp_path / "odd.txt"
    odd.write_text("hello")
    code, _, err = types("import", odd, "--store", tmp_path / "k.db")
    assert code == 2
    assert "unknown format, none of aider, calls, claude-code, codex" in err
    assert "--format" in err
    code, _, err = types("import", tmp_path / "absent.jsonl", "--store", tmp_path / "k.db")
    assert (code, "absent.jsonl: No such file or directory" in err) == (2, True)
    newer = write(tmp_path / "newer.jsonl", {"mulligan": "export", "version": 99}).read_text().replace(" ", "")
    (tmp_path / "newer.jsonl").write_text(newer)
    code, _, err = types("import", tmp_path / "newer.jsonl", "--store", tmp_path / "k.db")
    assert (code, "newer mulligan" in err) == (2, True)
    code, _, err = types("import", odd, "--store", "memory:")
    assert (code, "--store PATH" in err) == (2, True)
    assert types("export", "--store", tmp_path / "never.db")[0] == 2


def test_a_file_without_a_run_is_not_said_to_be_there_already(types, tmp_path):
    empty = tmp_path / "empty.json"
    empty.write_text('{"role": "user", "content": [}')
    code, out, err = types("import", empty, "--store", tmp_path / "k.db")
    assert (code, out) == (1, "The file contains no runs.\n")
    assert "1 line could not be read and was skipped" in err


def test_calls_of_a_conversation_that_does_not_say_when_are_in_the_figures(types, tmp_path):
    asked = {"id": "c1", "type": "function", "function": {"name": "book", "arguments": "{}"}}
    said = [
        {"role": "assistant", "content": None, "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "c1", "content": "Error: seats must be a number"},
    ]
    types("import", write(tmp_path / "c.jsonl", *said), "--store", tmp_path / "k.db")
    code, out, _ = types("stats", "--store", tmp_path / "k.db")
    assert (code, "\n1 call: " in out) == (0, True)
    assert types("patterns", "--store", tmp_path / "k.db")[0] == 0


def test_a_store_that_was_imported_into_answers_like_any_other(types, tmp_path):
    types("import", write(tmp_path / "c.jsonl", *rows(2)), "--store", tmp_path / "k.db")
    store = SqliteStore(tmp_path / "k.db")
    assert len(store.runs(DEFAULT_TENANT, RunQuery(agent="shop"))) == 2
    store.close()
    code, out, _ = types("runs", "--store", tmp_path / "k.db")
    assert code == 0
    assert "2 runs: 2 recovered" in out


@pytest.mark.parametrize("agent", ["claude-code", "codex", "gemini"])
def test_what_hooks_recorded_is_not_counted_again_when_the_logs_are_imported(types, tmp_path, agent):
    """The log of a session that its hooks told of, and that of one from before there were any."""
    from session_logs import ClaudeCode, Codex, at

    event = {
        "session_id": "5e55-10", "transcript_path": "/none", "cwd": "/home/ada/shop", "tool_name": "Bash",
        "tool_input": {"command": "make"}, "tool_use_id": "t1",
    }  # fmt: skip
    if agent == "claude-code":
        event |= {"hook_event_name": "PostToolUseFailure", "error": "Exit code 2", "is_interrupt": False}
    elif agent == "codex":
        event |= {"hook_event_name": "PostToolUse", "tool_response": "no", "tool_name": "apply_patch"}
    else:
        answer = {"llmContent": "no", "returnDisplay": "no", "error": {"message": "no such file", "type": "x"}}
        event |= {"hook_event_name": "AfterTool", "tool_name": "read_file", "tool_response": answer}
    handle_event(agent, json.dumps(event, separators=(",", ":")).encode())
    handle_event(agent, json.dumps({**event, "hook_event_name": "SessionEnd"}, separators=(",", ":")).encode())
    store = Path(os.environ["MULLIGAN_HOME"]) / "mulligan.db"

    def log(session):
        path = tmp_path / f"{session}.jsonl"
        if agent == "claude-code":
            of = ClaudeCode(session)
            return write(path, of.call("t1", "Bash", 1, command="make"), of.result("t1", "Exit code 2", 2, True))
        if agent == "codex":
            of = Codex()
            return write(path, of.meta(session), of.call("t1", "shell", 1, command="x"), of.output("t1", "no", 2))
        answer = {"functionResponse": {"id": "t1", "name": "read_file", "response": {"error": "no"}}}
        call = {"id": "t1", "name": "read_file", "args": {}, "status": "error", "timestamp": at(1), "result": [answer]}
        told = {"id": "m1", "timestamp": at(1), "type": "gemini", "content": "", "toolCalls": [call]}
        return write(path, {"sessionId": session, "projectHash": "p", "startTime": at(0)}, told)

    assert json.loads(types("runs", "--json", "--store", store)[1])
    before = json.loads(types("stats", "--json", "--store", store)[1])
    code, out, err = types("import", log("5e55-10"), "--store", store)
    assert (code, out) == (0, "Nothing was imported.\n")
    assert "1 session was not imported: hooks have recorded the same calls" in err
    assert json.loads(types("stats", "--json", "--store", store)[1])["total"] == before["total"]
    code, out, err = types("import", log("5e55-10"), log("0-before-hooks"), "--store", store, "--json")
    told = json.loads(out)
    assert (told["new"], told["hooked"]) == (2, 1)


def test_calls_that_our_proxy_recorded_are_not_counted_again_when_the_log_is_imported(types, tmp_path):
    from session_logs import ClaudeCode

    path = tmp_path / "k.db"
    store = SqliteStore(path)
    about = {"agent": "claude-code", "session": "5e55-10", "metadata": {"door": "mcp", "server": "crm"}}
    proxied = Run(id="run_proxied", started_at=1, ended_at=2, end_reason="finished", **about)
    step = Step(run=proxied.id, seq=1, call=1, name="crm.find", server="crm", started_at=1)
    store.append(DEFAULT_TENANT, [StepEnded(step), RunEnded(proxied)], "journal_1", 1)
    store.close()
    of = ClaudeCode("5e55-10")
    calls = [("t1", "mcp__crm__find"), ("t2", "mcp__hr__find"), ("t3", "Bash")]
    lines = [line for id, name in calls for line in (of.call(id, name, 1, q="x"), of.result(id, "Error: no", 2, True))]
    types("import", write(tmp_path / "log.jsonl", *lines), "--store", path)
    store = SqliteStore(path)
    steps = [(step.server, step.name) for run in store.runs(DEFAULT_TENANT, RunQuery()) for step in run.steps]
    store.close()
    assert sorted(steps, key=str) == [("crm", "crm.find"), ("hr", "find"), (None, "Bash")]
