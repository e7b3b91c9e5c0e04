"""A store behind a server: what it does while the server is away, slow, strange, or says no. (What it does
otherwise is in the suite that every store passes.)"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

import mulligan
from mulligan.contract.store import DEFAULT_TENANT, FixQuery, ForgetRequest, RecallQuery
from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, SettingsError, StoreError
from mulligan.core.records import Change, Run, Step
from mulligan.store import remote
from mulligan.store.remote import RecordRejectedError, RemoteStore

EVENTS = [StepEnded(Step(run="r", seq=1, call=1, name="s")), RunEnded(Run(id="r", end_reason="finished"))]
ASKED = RecallQuery(tool="search", fingerprint="f")


@contextlib.contextmanager
def answering(*answers):
    """A server that gives these answers in turn, the last one for ever: (status, headers, body)."""
    heard = []
    left = list(answers)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            heard.append((self.path, self.rfile.read(int(self.headers["Content-Length"])), dict(self.headers)))
            status, headers, body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", heard
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("url", ["http://", "https://user@host", "http://h?x=1", "http://h:99999", "ftp://h"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(SettingsError, match=r"address|port"):
        RemoteStore(url)


def test_a_server_that_is_away_is_told_and_not_asked_again_for_a_while():
    clock = Clock()
    waits = []
    with socket.socket() as taken:  # nobody listens there, and nobody else may
        taken.bind(("127.0.0.1", 0))
        store = RemoteStore(f"http://127.0.0.1:{taken.getsockname()[1]}", monotonic=clock)
        with pytest.raises(StoreError, match="mulligan serve"):
            store.append(DEFAULT_TENANT, EVENTS, "j", 1)

        for _ in range(12):
            waits.append(store.away_until - clock.now)
            clock.now = store.away_until
            with pytest.raises(StoreError):
                store.append(DEFAULT_TENANT, EVENTS, "j", 1)

    assert 0 < waits[0] <= remote.INITIAL_BACKOFF_SECONDS
    assert remote.MAX_BACKOFF_SECONDS / 2 <= waits[-1] <= remote.MAX_BACKOFF_SECONDS


def test_a_server_that_says_when_is_asked_then():
    clock = Clock()
    with answering((429, {"Retry-After": "3"}, b"{}"), (200, {}, b'{"new": 2}')) as (url, heard):
        store = RemoteStore(url, monotonic=clock)
        for later in (0, 2.9):
            clock.now = 100.0 + later
            with pytest.raises(StoreError, match="at the moment"):
                store.append(DEFAULT_TENANT, EVENTS, "j", 1)
        assert len(heard) == 1
        clock.now = 103.1
        assert store.append(DEFAULT_TENANT, EVENTS, "j", 1) == 2
        store.close()


def test_memory_that_does_not_answer_an_agent_in_time_has_nothing_to_say(monkeypatch, tmp_path):
    monkeypatch.setattr(remote, "RECALL_TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = RemoteStore(f"http://127.0.0.1:{silent.getsockname()[1]}", spool=tmp_path)
        begun = time.monotonic()

        assert store.recall(DEFAULT_TENANT, ASKED) == []
        assert store.fixes(DEFAULT_TENANT, FixQuery(tool="search", fingerprint="f")) == []
        assert time.monotonic() - begun < 5
        store.close()


def test_memory_that_keeps_several_calls_waiting_at_once_is_asked_again_soon(monkeypatch, tmp_path):
    monkeypatch.setattr(remote, "RECALL_TIMEOUT_SECONDS", 0.3)
    clock = Clock()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = RemoteStore(f"http://127.0.0.1:{silent.getsockname()[1]}", spool=tmp_path, monotonic=clock)
        with ThreadPoolExecutor(8) as callers:
            assert list(callers.map(store.recall, [DEFAULT_TENANT] * 8, [ASKED] * 8)) == [[]] * 8
        assert 0 < store.away_until - clock.now <= remote.INITIAL_BACKOFF_SECONDS
        store.close()


@pytest.mark.parametrize("body", [b"", b"{", b'{"precedents": 3}', b"<html></html>", b"\xff"])
def test_memory_that_answers_nonsense_has_nothing_to_say_to_an_agent_and_is_no_server_to_a_command(body, tmp_path):
    with answering((200, {}, body)) as (url, _):
        store = RemoteStore(url, spool=tmp_path)
        assert store.recall(DEFAULT_TENANT, ASKED) == []
        store.close()
        store = RemoteStore(url)
        for ask in (
            lambda: store.recall(DEFAULT_TENANT, ASKED),
            lambda: store.fixes(DEFAULT_TENANT, FixQuery()),
            lambda: store.journals(DEFAULT_TENANT),
            lambda: store.put(DEFAULT_TENANT, "notes", "n", b"x"),
            lambda: list(store.export(DEFAULT_TENANT)),
        ):
            with pytest.raises(StoreError, match=r"is not a mulligan server \(200\)"):
                ask()
        store.close()


def test_a_token_that_is_refused_is_told_and_what_is_recorded_waits():
    with answering((401, {}, b'{"error": "unauthorized", "message": "no."}')) as (url, heard):
        store = RemoteStore(url, "mul_x")
        with pytest.raises(StoreError, match="MULLIGAN_TOKEN"):
            store.append(DEFAULT_TENANT, EVENTS, "j", 1)
        assert heard[0][2]["Authorization"] == "Bearer mul_x"
        store.close()


def test_a_token_of_another_role_is_told_without_a_wrong_role_to_take_instead():
    said = b'{"error": "forbidden", "message": "this needs the role read, and yours is ingest."}'
    with answering((403, {}, said)) as (url, _):
        store = RemoteStore(url, "mul_x")
        with pytest.raises(StoreError, match=r"yours is ingest\. Set MULLIGAN_TOKEN to a token with that role, or"):
            store.append(DEFAULT_TENANT, EVENTS, "j", 1)
        store.close()


def test_a_record_that_is_refused_is_the_records_trouble():
    with answering((400, {}, b'{"field": "events[0]", "message": "no."}')) as (url, _):
        store = RemoteStore(url)
        with pytest.raises(RecordRejectedError, match=r"events\[0\]"):
            store.append(DEFAULT_TENANT, EVENTS, "j", 1)
        store.close()


HTML = b"<html><body>Not Found</body></html>"


@pytest.mark.parametrize(
    ("status", "headers", "body", "told"),
    [
        (404, {}, HTML, r"is not a mulligan server \(404\). Check the address"),
        (404, {}, b'{"error": "not_found", "message": "there is nothing here."}', "Check the address"),
        (400, {}, HTML, "Check the address"),
        (405, {}, HTML, "Check the address"),
        (200, {}, HTML, "Check the address"),
        (200, {}, b"{}", "Check the address"),
        (413, {}, HTML, "Allow 5 MB there"),
        (301, {"Location": "https://mulligan.example.com/"}, b"", "redirects to https://mulligan.example.com/ .*STORE"),
        (302, {}, HTML, "MULLIGAN_STORE"),
    ],
)
def test_who_is_no_server_of_ours_says_nothing_about_a_record_and_is_not_asked_again_at_once(
    status, headers, body, told
):
    clock = Clock()
    with answering((status, headers, body)) as (url, heard):
        store = RemoteStore(url, monotonic=clock)
        for _ in range(3):
            with pytest.raises(StoreError, match=told):
                store.append(DEFAULT_TENANT, EVENTS, "j", 1)
        assert len(heard) == 1
        store.close()


def test_a_large_batch_goes_in_pieces_and_its_end_comes_last(monkeypatch):
    monkeypatch.setattr(remote, "MAX_REQUEST_BYTES", 300)
    many = [StepEnded(Step(run="r", seq=seq, call=seq, name="s", arguments={"x": "y" * 80})) for seq in range(1, 8)]
    with answering((200, {}, b'{"new": 1}')) as (url, heard):
        store = RemoteStore(url)
        store.append(DEFAULT_TENANT, many, "j", 77)
        store.close()

    sent = [json.loads(body) for _, body, _ in heard]
    assert len(sent) > 2
    assert sum(len(each["events"]) for each in sent) == 7
    assert (sent[-1]["journal"], sent[-1]["offset"]) == ("j", 77)
    assert all(each["journal"] != "j" for each in sent[:-1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_neither_a_forked_child_nor_the_exit_waits_for_an_answer_that_a_thread_reads():
    # In a process of its own: a test runner has threads that a fork would lose.
    program = """
        import os, socket, sys, threading, time
        from mulligan.contract.store import DEFAULT_TENANT
        from mulligan.store.remote import RemoteStore

        listener = socket.create_server(("127.0.0.1", 0))
        store = RemoteStore(f"http://127.0.0.1:{listener.getsockname()[1]}")
        threading.Thread(target=store.health, args=(DEFAULT_TENANT,), daemon=True).start()
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 10\\r\\n\\r\\n1")
        while not any(frame.f_code.co_name == "readinto" for frame in iterate_frames()):
            time.sleep(0.01)
        child = os.fork()
        if child == 0:
            os._exit(0)
        deadline = time.monotonic() + 10
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(child, 9)
                sys.exit("the child hangs")
            time.sleep(0.01)
    """
    frames = """
        def iterate_frames():
            for frame in sys._current_frames().values():
                while frame is not None:
                    yield frame
                    frame = frame.f_back
    """
    source = textwrap.dedent(frames) + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", "import sys\n" + source], capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_connection_that_the_server_let_go_of_is_made_anew():
    with answering((200, {"Connection": "close"}, b'{"new": 2}')) as (url, heard):
        store = RemoteStore(url)
        assert [store.append(DEFAULT_TENANT, EVENTS, "j", offset) for offset in (1, 2, 3)] == [2, 2, 2]
        assert len(heard) == 3
        store.close()


def test_journals_of_two_folders_are_told_apart(tmp_path):
    one, same, other = (RemoteStore("http://h", spool=tmp_path / name) for name in ("a", "a", "b"))
    assert one.remote_journal("j") == same.remote_journal("j") != other.remote_journal("j")


def test_what_one_agent_learned_another_is_told(tmp_path, monkeypatch):
    servers = pytest.importorskip("servers")
    monkeypatch.setattr(remote, "RECALL_TIMEOUT_SECONDS", 20.0)  # however busy the machine is
    rejected = Failure.of(Kind("tool", "invalid_arguments", Remedy.REPAIR), "k is 10 at most", fingerprint="f")
    failed = {"outcome": "failure", "failure": rejected}
    with servers.served(tmp_path) as running:
        url = f"http://127.0.0.1:{running.port}"
        store = RemoteStore(url, spool=tmp_path / "spool")
        for run in ("r", "s"):
            shared = {"run": run, "name": "search", "key": "tools:search"}
            events = [
                StepEnded(Step(seq=1, call=1, arguments={"k": 50, "q": run}, **failed, **shared)),
                StepEnded(Step(seq=2, call=2, arguments={"k": 10, "q": run}, **shared)),
                RunEnded(Run(id=run, started_at=5, end_reason="finished")),
            ]
            store.append(DEFAULT_TENANT, events, f"j_{run}", 1)
        other = RemoteStore(url)
        (precedent,) = other.recall(DEFAULT_TENANT, ASKED)
        assert [(change.path, change.after) for change in precedent.changes] == [("k", 10)]
        query = FixQuery(tool="search", key="tools:search", fingerprint="f", showable=True, now=5)
        (fix,) = other.fixes(DEFAULT_TENANT, query)
        assert (fix.changes, fix.successes, fix.showable, fix.key) == (
            (Change(path="k", operation="substitute", after=10),),
            2,
            True,
            "tools:search",
        )
        assert other.fixes(DEFAULT_TENANT, msgspec.structs.replace(query, key="other:search")) == []
        other.close()
        store.close()


def test_what_is_on_a_shelf_keeps_no_agent_waiting_for_a_server_that_hangs(monkeypatch, tmp_path):
    monkeypatch.setattr(remote, "KEY_VALUE_TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        clock = Clock()
        store = RemoteStore(f"http://127.0.0.1:{silent.getsockname()[1]}", spool=tmp_path, monotonic=clock)
        begun = time.monotonic()
        for ask in (
            lambda: store.get(DEFAULT_TENANT, "session", "s"),
            lambda: store.put(DEFAULT_TENANT, "session", "s", b""),
            lambda: store.compare_and_set(DEFAULT_TENANT, "session", "s", None, b""),
        ):
            with pytest.raises(StoreError, match="timed out"):
                ask()
        assert time.monotonic() - begun < 5
        store.close()


def test_a_failed_call_waits_for_no_server_that_hangs_and_says_no_more_than_that(monkeypatch, tmp_path, caplog):
    servers = pytest.importorskip("servers")
    monkeypatch.setattr(remote, "KEY_VALUE_TIMEOUT_SECONDS", 0.1)
    # nor would whoever waited as long as for anything else be done in time
    monkeypatch.setattr(remote, "SEND_TIMEOUT_SECONDS", 120.0)
    hangs, let_go = threading.Event(), threading.Event()
    answered = []
    with servers.served(tmp_path) as running:
        asked = running.server.store.get

        def get(*args):
            if hangs.is_set():
                let_go.wait(20)
                answered.append(args)
            return asked(*args)

        monkeypatch.setattr(running.server.store, "get", get)
        m = mulligan.Mulligan(store=f"http://127.0.0.1:{running.port}", home=str(tmp_path / "home"))

        @m.tool(effects="none")
        def half(number: int) -> float:
            raise ValueError("there is no half of it")

        m.tool(effects="none")(len)([])
        assert m.flush(20)
        hangs.set()
        with pytest.raises(ValueError, match="no half"):
            half(4)
        assert answered == []  # it still hangs
        let_go.set()
        assert "Traceback" not in caplog.text
        assert "a question of recovery failed" not in caplog.text
        m.close()


def test_the_library_records_to_a_server_and_asks_it(tmp_path):
    servers = pytest.importorskip("servers")
    with servers.served(tmp_path) as running:
        m = mulligan.Mulligan(store=f"http://127.0.0.1:{running.port}", home=str(tmp_path / "home"), agent="far")

        @m.tool(effects="none")
        def half(number: int) -> float:
            if not isinstance(number, int):
                raise mulligan.AgentError(f"number must be an integer, got {number!r}.")
            return number / 2

        assert half(4) == 2.0
        assert half("6") == 3.0  # repaired by the annotation
        assert m.flush(20)
        m.close()
        runs = running.person().get("/v1/runs").json["runs"]
        assert {run["agent"] for run in runs} == {"far"}
        assert sorted(run["status"] for run in runs) == ["recovered", "success"]


def test_a_project_cannot_name_a_server(tmp_path):
    from mulligan import settings

    (tmp_path / "mulligan.toml").write_text('store = "https://elsewhere.example.com"\n')
    with pytest.raises(SettingsError, match="a project file cannot send records to a server"):
        settings.load_settings(environment={}, folder=tmp_path, user_file=tmp_path / "none.toml")
    (tmp_path / "mulligan.toml").write_text('token = "x"\n')
    with pytest.raises(SettingsError, match="MULLIGAN_TOKEN"):
        settings.load_settings(environment={}, folder=tmp_path, user_file=tmp_path / "none.toml")


def test_what_cannot_be_forgotten_is_refused_before_the_server_is_asked():
    store = RemoteStore("http://127.0.0.1:9")

    with pytest.raises(StoreError, match="at least 4 characters"):
        store.forget(DEFAULT_TENANT, ForgetRequest(text="zzz"))
