"""The frame of the command: help, misspelt words, exit codes, completion, one JSON fact for every printed one."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import mulligan
from mulligan import __version__
from mulligan.cli import COMMANDS, SECTIONS, options
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.records import Run, Step
from mulligan.record.journal_import import add_dropped
from mulligan.store.sqlite import SqliteStore


@pytest.fixture
def store(tmp_path):
    """A store with three runs, two of which begin alike."""
    path = tmp_path / "kept.db"
    kept = SqliteStore(path)
    for place, id in enumerate(["run_aaaa1", "run_aaaa2", "run_bbbb1"], start=1):
        run = Run(
            id=id, agent=f"agent-{place}", started_at=place * 1000, ended_at=place * 1000 + 500, end_reason="finished"
        )
        step = Step(run=id, seq=1, call=1, name="weather", started_at=place * 1000, duration_seconds=0.1)
        kept.append(DEFAULT_TENANT, [RunStarted(run), StepEnded(step), RunEnded(run)], "journal", place * 3)
    kept.close()
    return str(path)


def test_help_names_every_command(types):
    code, out, _ = types("--help")
    assert code == 0
    for name in COMMANDS:
        assert f"  {name} " in out
    for title in SECTIONS:
        assert f"\n{title}:\n" in out


def test_the_help_has_a_line_a_command_in_a_terminal_of_80_columns(types, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = types("--help")
    told = [each for each in out.splitlines() if each.startswith("  ")]
    for name, (_, _, line) in COMMANDS.items():
        assert f"  {name:<11}  {line}" in told


@pytest.mark.parametrize("name", ["fixes", "lessons", "patterns", "sessions", "tenant", "token", "install"])
def test_the_help_of_a_group_tells_each_of_its_commands_in_a_whole_sentence(types, name):
    _, out, _ = types(name, "--help")
    assert "\nCommands:\n" in out
    assert "..." not in out.partition("\nCommands:\n")[2].partition("Examples:")[0]


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["lesons"], "Unknown command 'lesons'. Did you mean lessons? (see `mulligan --help`)"),
        (["lessons", "aprove"], "Unknown command 'aprove'. Did you mean approve? (see `mulligan lessons --help`)"),
        (
            ["lessons", "list"],
            "Unknown command 'list'. To list them: mulligan lessons (see `mulligan lessons --help`)",
        ),
        (["token", "zz"], "Unknown command 'zz'. Available: create, list, revoke. (see `mulligan token --help`)"),
    ],
)
def test_a_misspelt_command_is_told_with_the_one_that_was_meant(types, typed, told):
    assert types(*typed) == (2, "", f"error: {told}\n")


def test_of_a_long_error_both_ends_are_told(types, store):
    code, _, err = types("lessons", "show", "x" * 100_000, "--store", store)
    assert code == 2
    assert err.startswith("error: No lesson matches 'xxx")
    assert err.endswith("List lessons: mulligan lessons\n")
    assert len(err) < 2100


def test_nothing_typed_shows_the_help_and_is_not_a_success(types):
    code, out, _ = types()
    assert code == 2
    assert "Get started:" in out


def test_version(types):
    assert types("--version") == (0, f"mulligan {__version__}\n", "")


def test_a_misspelt_option_is_told_with_where_to_look(types):
    code, out, err = types("runs", "--agnet", "x")
    assert (code, out) == (2, "")
    assert err.startswith("error: No such option")
    assert "mulligan runs --help" in err


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["runs", "--limit", "abc"], "'abc' is not a valid integer. ("),
        (["runs", "--status", "failed"], "'partial', 'failure'. Did you mean 'failure'? ("),
    ],
)
def test_an_invalid_value_of_an_option_is_told_in_plain_words(types, typed, told):
    code, _, err = types(*typed)
    assert (code, told in err) == (2, True)


def test_runs_are_listed_the_newest_first(types, store):
    code, out, _ = types("runs", "--store", store)
    assert code == 0
    assert out.startswith("3 runs: 3 success.")
    assert out.index("run_bbbb1") < out.index("run_aaaa2") < out.index("run_aaaa1")


def test_runs_are_sorted_and_filtered_by_their_cost(types, store):
    with contextlib.closing(SqliteStore(Path(store))) as database:
        for id, dollars in (("run_cheap", 1), ("run_dear", 3), ("run_free", 0)):
            run = Run(id=id, started_at=5)
            step = Step(
                run=id,
                seq=1,
                call=1,
                name="ask",
                type="model",
                arguments={"model": "m-1"},
                tokens={"input": 9},
                cost_nanos=dollars * 10**9,
            )
            database.append(DEFAULT_TENANT, [RunStarted(run), StepEnded(step)], id, 2)
    lines = types("runs", "--store", store, "--order", "cost", "--min-cost", "0.5")[1].splitlines()
    assert [line.split()[0] for line in lines if "run_" in line] == ["run_dear", "run_cheap"]
    assert "$3.00" in lines[-2]
    csv = types("runs", "--store", store, "--csv", "--min-tokens", "9", "--order", "cost")[1].splitlines()
    assert csv[0].endswith("cost_usd,duration_seconds,tool_failures,models")
    assert csv[1].endswith("3.0,,0,m-1")
    assert "Use a number such as 5 or 0.25" in types("runs", "--min-cost", "much")[2]


def test_summary_of_a_limited_list_of_runs_names_the_total(types, store):
    total = len(json.loads(types("runs", "--json", "--store", str(store))[1]))
    headline = types("runs", "--limit", "1", "--store", str(store))[1].splitlines()[0]
    assert headline.startswith("1 run: ")
    assert headline.endswith(f" Listed: the latest 1 of {total}.")
    assert "Listed" not in types("runs", "--store", str(store))[1]


def test_json_holds_the_same_facts(types, store):
    _, out, _ = types("runs", "--store", store, "--agent", "agent-2", "--json")
    (run,) = json.loads(out)
    assert (run["id"], run["status"], run["agent"]) == ("run_aaaa2", "success", "agent-2")
    assert run["calls"][0]["outcome"] == "first attempt"


def test_a_run_is_found_by_any_unambiguous_beginning_of_its_id(types, store):
    for wanted in ("run_bbbb1", "run_b", "bbbb", "last", "latest", "agent-3"):
        code, out, _ = types("show", wanted, "--store", store)
        assert code == 0
        assert out.startswith("run_bbbb1 success")


def test_show_without_a_run_shows_the_newest(types, store):
    assert types("show", "--store", store)[1].startswith("run_bbbb1 success")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agent-33", "No run or agent matches 'agent-33'. Did you mean the agent 'agent-3'?"),
        ("run_bbba", "Did you mean run_bbbb1 ("),
        ("zzz", "The newest: run_bbbb1 ("),
    ],
)
def test_text_that_matches_no_run_is_answered_with_the_nearest_ones(types, store, text, message):
    code, out, err = types("show", text, "--store", store)
    assert (code, out) == (2, "")
    assert message in err


def test_newest_run_of_an_agent_is_shown_even_if_ids_start_with_its_name(types, tmp_path):
    path = tmp_path / "kept.db"
    kept = SqliteStore(path)
    for place, id in enumerate(["job-1", "job-2", "other"], start=1):
        run = Run(id=id, agent="job", started_at=place * 1000, ended_at=place * 1000 + 500, end_reason="finished")
        kept.append(DEFAULT_TENANT, [RunStarted(run), RunEnded(run)], "journal", place * 2)
    kept.close()
    assert types("show", "job", "--store", str(path))[1].startswith("other success")


def test_an_ambiguous_beginning_names_the_runs_it_could_be(types, store):
    code, _, err = types("show", "run_aaaa", "--store", store)
    assert code == 2
    assert "2 runs start with run_aaaa" in err
    assert "run_aaaa1" in err
    assert "agent-2" in err


def test_json_of_a_run_cannot_control_the_terminal(types, tmp_path):
    name, path = "agent\x9b31m\u202e\u200b", str(tmp_path / "failures.db")
    ours = mulligan.Mulligan(store=path)
    with ours.run(name):
        ours.tool(lambda: name, name="echo")()
    ours.close()

    out = types("show", "last", "--json", "--store", path)[1]
    assert out.strip().isprintable()
    assert json.loads(out)["run"]["agent"] == name


def test_settings_show_what_is_in_force_and_where_it_comes_from(types, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    project = tmp_path / "mulligan.toml"
    project.write_text('mode = "suggest"\nattempts = 4\n')
    monkeypatch.setenv("MULLIGAN_ATTEMPTS", "2")
    _, out, _ = types("settings", "--json")
    facts = json.loads(out)
    assert (facts["attempts"], facts["mode"], facts["record"]) == (2, "suggest", "full")
    origins = facts["origins"]
    assert (origins["attempts"], origins["mode"], origins["record"]) == ("environment", str(project), "default")
    _, out, _ = types("settings")
    rows = {line.split()[0]: line.split()[-1] for line in out.splitlines() if line.startswith("  ")}
    assert (rows["attempts"], rows["mode"], rows["record"]) == ("MULLIGAN_ATTEMPTS", str(project), "default")


@pytest.mark.parametrize(
    ("store", "told"),
    [
        ("http://10.0.0.7:8787", "http://10.0.0.7:8787"),
        ("postgresql://ada:sesame@10.0.0.7/mulligan?sslmode=require", "postgresql://ada@10.0.0.7/mulligan"),
        ("/tmp/\x1b[2Jm.db", "/tmp/\ufffd[2Jm.db"),
    ],
)
def test_settings_show_ones_own_store_and_not_its_password(types, monkeypatch, store, told):
    monkeypatch.setenv("MULLIGAN_STORE", store)
    _, out, _ = types("settings")
    assert f"Store: {told}\n" in out
    _, told_as_json, _ = types("settings", "--json")
    assert "\x1b" not in out + told_as_json
    assert "sesame" not in out + told_as_json


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_ask_the_command_itself(types, shell):
    code, out, _ = types("completion", shell)
    assert code == 0
    assert "_MULLIGAN_COMPLETE" in out


@pytest.mark.slow
def test_completion_knows_the_commands(monkeypatch):
    done = subprocess.run(
        [sys.executable, "-c", "from mulligan.cli import main; main()"],
        env={
            "_MULLIGAN_COMPLETE": "bash_complete",
            "COMP_WORDS": "mulligan ru",
            "COMP_CWORD": "1",
            "PYTHONPATH": ":".join(sys.path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "plain,runs\n"


@pytest.mark.slow
def test_a_reader_who_has_seen_enough_is_not_an_error(store):
    done = subprocess.run(
        f"'{sys.executable}' -c 'from mulligan.cli import main; main()' show last --store '{store}' | head -n 1",
        shell=True,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("run_bbbb1")
    assert done.stderr == ""


@pytest.mark.slow
def test_nor_is_one_who_leaves_in_the_middle():
    command = [sys.executable, "-m", "mulligan", "seed", "--list", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.slow
def test_asking_for_help_imports_no_store_and_no_table():
    done = subprocess.run(
        [
            sys.executable,
            "-X",
            "importtime",
            "-c",
            "from mulligan.cli import cli; cli.main(['--help'], standalone_mode=False)",
        ],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Get started:" in done.stdout
    for heavy in ("sqlite3", "jsonschema_rs", "asyncio", "mulligan.classify"):
        assert f"| {heavy}" not in done.stderr.replace("  ", " "), heavy


def test_the_doctor_says_where_things_are_and_that_all_is_well(types, store):
    code, out, _ = types("doctor", "--store", store, "--json")
    facts = json.loads(out)
    assert code == 0
    assert (facts["healthy"], facts["runs"], facts["steps"], facts["orphaned_records"], facts["problems"]) == (
        True,
        3,
        3,
        0,
        [],
    )
    assert facts["store"] == store


def test_the_doctor_says_how_a_run_gets_a_task_description(types, store):
    lines = " ".join(types("doctor", "--store", store)[1].split())
    assert '0 % of recent runs have a task description; add one: mulligan.run("agent", context=' in lines


def test_the_doctor_says_which_schema_a_store_has_and_which_table_how_large(types, store):
    told = json.loads(types("doctor", "--store", store, "--json")[1])
    assert told["schema"] == told["newest"] > 0
    assert told["engine"].startswith("SQLite 3.")
    assert told["bytes"] >= sum(each["bytes"] for each in told["tables"]) > 0
    rows = {each["name"]: each["rows"] for each in told["tables"]}
    assert (rows["runs"], rows["steps"]) == (told["runs"], told["steps"])
    sizes = [each["bytes"] for each in told["tables"]]
    assert sizes == sorted(sizes, reverse=True)
    assert "schema    " in types("doctor", "--store", store)[1]


def test_the_doctor_counts_what_is_in_the_log_of_a_store_that_others_write_to(types, tmp_path):
    kept = SqliteStore(tmp_path / "busy.db")
    run = Run(id="run_a", started_at=1, ended_at=2, end_reason="finished")
    kept.append(DEFAULT_TENANT, [RunStarted(run), RunEnded(run)], "journal", 2)
    told = json.loads(types("doctor", "--store", str(tmp_path / "busy.db"), "--json")[1])
    kept.close()
    assert told["bytes"] >= sum(each["bytes"] for each in told["tables"])


def test_the_doctor_of_a_store_that_was_never_used_finds_nothing_ill_and_makes_no_file(types, tmp_path):
    code, out, _ = types("doctor", "--store", str(tmp_path / "never.db"))
    assert code == 0
    assert out.startswith("Healthy.")
    assert not (tmp_path / "never.db").exists()


@pytest.mark.parametrize("place", ["file/mulligan.db", "file/deeper/mulligan.db"])
def test_the_doctor_names_a_folder_in_which_no_store_can_be_created(types, tmp_path, place):
    (tmp_path / "file").touch()
    code, out, _ = types("doctor", "--store", str(tmp_path / place))
    assert code == 1
    assert out.startswith("The store cannot be used: No file can be created in ")
    assert "name another one with MULLIGAN_HOME or --store" in " ".join(out.split())


def test_the_doctor_names_a_damaged_store(types, tmp_path):
    (tmp_path / "bad.db").write_bytes(b"nothing of the sort" * 100)
    code, out, _ = types("doctor", "--store", str(tmp_path / "bad.db"))
    assert code == 1
    assert out.startswith("The store cannot be used")
    assert out.count("is not a mulligan store") == 1, "once is enough"


@pytest.mark.durability
def test_what_a_killed_process_left_is_counted_by_the_doctor_and_brought_in_by_the_next_question(types, tmp_path):
    path = tmp_path / "kept.db"
    program = "import mulligan, os; mulligan.configure(store=PATH); mulligan.tool(abs)(-1); os._exit(0)"
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-c", program.replace("PATH", repr(str(path)))],
            env={"PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)},
            check=True,
        )
    code, out, _ = types("doctor", "--store", str(path), "--json")
    assert (code, json.loads(out)["orphaned_records"] > 0) == (1, True)
    _, out, _ = types("runs", "--store", str(path), "--json")
    assert [run["status"] for run in json.loads(out)] == ["success", "success"]
    assert types("doctor", "--store", str(path))[0] == 0


def test_dropped_records_stay_counted(types, store):
    kept = SqliteStore(Path(store))
    add_dropped(kept, DEFAULT_TENANT, 3)
    add_dropped(kept, DEFAULT_TENANT, 4)
    kept.close()
    code, out, _ = types("doctor", "--store", store)
    assert code == 1
    assert out.startswith("7 records could not be stored")


def test_an_error_about_an_option_names_the_command_it_is_of(types):
    code, _, err = types("stats", "--compare", "1")
    assert code == 2
    assert "(see `mulligan stats --help`)" in err


def test_a_sentence_is_broken_between_words_where_the_terminal_is_narrow(types, monkeypatch, tmp_path):
    monkeypatch.setattr(options, "terminal_width", lambda: 40)
    SqliteStore(tmp_path / "empty.db").close()
    code, out, _ = types("stats", "--by", "tool", "--store", str(tmp_path / "empty.db"))
    assert code == 0
    assert max(map(len, out.splitlines())) <= 40
    assert " ".join(out.split()).startswith("No runs or calls since ")


def test_a_run_that_somebody_else_named_is_found_by_its_own_id(types, tmp_path):
    path = tmp_path / "sent.db"
    kept = SqliteStore(path)
    for place, id in enumerate(["job-17", "4bf92f3577b34da6a3ce929d0e0e4736", "run_job-2"], start=1):
        run = Run(id=id, agent="nightly", started_at=place * 1000, ended_at=place * 1000 + 500, end_reason="finished")
        kept.append(DEFAULT_TENANT, [RunStarted(run), RunEnded(run)], "journal", place * 2)
    kept.close()
    wanted = {"job-17": "job-17", "job": "job-17", "4bf9": "4bf92f3577b34da6a3ce929d0e0e4736", "job-2": "run_job-2"}
    for typed, found in wanted.items():
        code, out, err = types("show", typed, "--store", str(path))
        assert (code, err) == (0, "")
        assert out.startswith(f"{found} success")
    assert types("show", "nothing", "--store", str(path))[0] == 2


READING_COMMANDS = [
    ("runs",), ("show", "last"), ("stats",), ("patterns",), ("sessions",), ("fixes",), ("lessons",), ("prompt",),
    ("replay",), ("export", "--json"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("words", [*READING_COMMANDS, ("doctor",)], ids=" ".join)
def test_a_token_with_the_role_read_is_enough_to_read(types, store, tmp_path, monkeypatch, words):
    servers = pytest.importorskip("servers")
    from mulligan.server.access import AccessRules

    with servers.served(tmp_path, AccessRules(is_local=False), store=SqliteStore(Path(store))) as running:
        monkeypatch.setenv("MULLIGAN_STORE", f"http://127.0.0.1:{running.port}")
        monkeypatch.setenv("MULLIGAN_TOKEN", str(running.holding("read").token))
        code, out, err = types(*words)
    assert "denied" not in err
    if words == ("doctor",):
        assert code == 1
        assert "No records can be sent" in out
        assert re.search(r"^ *send +no$", out, re.MULTILINE)
        assert re.search(r"^ *query +yes$", out, re.MULTILINE)
    else:
        assert code == 0, err


@pytest.mark.slow
@pytest.mark.parametrize("words", READING_COMMANDS, ids=" ".join)
@pytest.mark.parametrize("body", [None, b"", b"<html><body>It works!</body></html>"])
def test_a_server_that_is_away_or_no_server_of_ours_is_an_error(types, words, body):
    with contextlib.ExitStack() as stack:
        if body is None:  # nobody listens there, and nobody else may
            taken = stack.enter_context(socket.socket())
            taken.bind(("127.0.0.1", 0))
            port, told = taken.getsockname()[1], "Is `mulligan serve` running there?"
        else:
            port, told = stack.enter_context(other_web_server(body)), "is not a mulligan server (200)"
        code, out, err = types(*words, "--store", f"http://127.0.0.1:{port}")
    assert code == 2, out
    assert told in err
    assert len(err.splitlines()) == 1


@contextlib.contextmanager
def other_web_server(body: bytes) -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join(5)
