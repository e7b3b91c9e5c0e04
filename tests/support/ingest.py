"""Those who send to a store while it goes wrong, and what must be true of it in the end.

Whoever sends over HTTP sends again until it is acknowledged, as any client would; an agent only makes its calls.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mulligan.contract import counters
from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.store.urls import open_store

PATIENCE = 60.0
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
STEPS = 3
"""Of each run: one that fails, one that overcomes it, and another."""


class Process:
    """`mulligan serve` on a store, as people start it."""

    def __init__(self, url: str, folder: Path, arguments: Sequence[str] = (), **environment: str) -> None:
        self.folder = folder
        self._log = (folder / "serve.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mulligan", "serve", "--port", "0", "--no-auth", "--store", url, *arguments],
            stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, "MULLIGAN_HOME": str(folder / "home"), **environment},
        )  # fmt: skip
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", said)
        assert found is not None, said + self.errors()
        self.port = int(found[1])

    def errors(self) -> str:
        self._log.flush()
        return (self.folder / "serve.log").read_text(errors="replace")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()


@contextlib.contextmanager
def serving(url: str, arguments: Sequence[str] = (), **environment: str) -> Iterator[Process]:
    with tempfile.TemporaryDirectory(prefix="mulligan-serve-") as folder:
        made = Process(url, Path(folder), arguments, **environment)
        try:
            yield made
        finally:
            made.close()


class Senders:
    """Several who send runs at once, each the same one again until it is acknowledged."""

    def __init__(self, port: int, number: int = 3, size: int = 4, text: int = 100) -> None:
        """`size` is how many runs they send at a time, `text` how long what a call answered is."""
        self.port, self.size, self.text = port, size, text
        self._name = secrets.token_hex(3)
        self.acknowledged: set[str] = set()
        self.refused: dict[str, int] = {}
        """How often it was answered otherwise, or not at all."""
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._send, args=(who,), daemon=True) for who in range(number)]

    def __enter__(self) -> Senders:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join(PATIENCE)
            assert not each.is_alive(), "somebody still waits for an acknowledgement"

    def until(self, number: int) -> None:
        """Waits until so many more are acknowledged."""
        wanted, deadline = len(self.acknowledged) + number, time.monotonic() + PATIENCE
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < deadline, f"{len(self.acknowledged)} of {wanted}; {self.refused}"
            time.sleep(0.01)

    def until_refused(self) -> None:
        before, deadline = sum(self.refused.values()), time.monotonic() + PATIENCE
        while sum(self.refused.values()) == before:
            assert time.monotonic() < deadline, "nobody was refused"
            time.sleep(0.01)

    def _send(self, who: int) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            sent = [run(f"run_{self._name}_{who}_{number}_{place}", self.text) for place in range(self.size)]
            body = json.dumps(sent).encode()
            deadline = time.monotonic() + PATIENCE
            while (why := self._post(body)) and time.monotonic() < deadline:
                with self._lock:
                    self.refused[why] = self.refused.get(why, 0) + 1
                time.sleep(0.05)
            if why:
                return
            with self._lock:
                self.acknowledged |= {each["id"] for each in sent}

    def _post(self, body: bytes) -> str:
        """Nothing where it was acknowledged; else why not."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("POST", "/v1/runs", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = answer.read()
            if answer.status == 200:
                return ""
            assert answer.status in (429, 503), f"{answer.status}: {said.decode()[:500]}"
            return str(answer.status)
        except (OSError, http.client.HTTPException) as error:  # the server was killed before or in its answer
            return type(error).__name__
        finally:
            connection.close()


class Survived(NamedTuple):
    """What many writers saw while their server was killed and its database was restarted."""

    senders: Senders
    kills: int
    restarts: int
    seconds: float


def write_through_faults(
    url: str, restart_database: Callable[[], None] | None, writers: int = 50, seconds: float = 0.0
) -> Survived:
    """Let many write, one run in a POST, and kill their server with SIGKILL and restart its database in turns.

    Both happen once, and again until so many seconds have passed.
    """
    kills = restarts = 0
    began = time.monotonic()
    with contextlib.ExitStack() as opened:
        process = opened.enter_context(serving(url))
        with Senders(process.port, number=writers, size=1) as senders:
            while not kills or time.monotonic() - began < seconds:
                senders.until(2 * writers)
                process.process.kill()
                senders.until_refused()
                process = opened.enter_context(serving(url))
                senders.port = process.port
                kills += 1
                senders.until(2 * writers)
                if restart_database is not None:
                    restart_database()
                    restarts += 1
                    senders.until(2 * writers)
        return Survived(senders, kills, restarts, time.monotonic() - began)


def run(id: str, text: int) -> dict[str, Any]:
    # Words that nobody takes for a secret, and that no database makes shorter.
    at, said = 1_794_700_000_000, " ".join("".join(random.choices(_LETTERS, k=5)) for _ in range(text // 6))
    steps = [
        {"name": "fetch", "duration_seconds": 3, "started_at": at, "failure": {"message": "Read timed out after 3 s"}},
        {"name": "fetch", "call": 1, "duration_seconds": 0.5, "started_at": at + 4000, "result": said},
        {"name": "write", "duration_seconds": 0.1, "started_at": at + 5000, "arguments": {"path": id}},
    ]
    return {"id": id, "agent": "nightly", "started_at": at, "ended_at": at + 6000, "steps": steps}


AGENT = """
    import mulligan, os, sys, threading
    mulligan.configure(store=sys.argv[1])
    @mulligan.tool(effects="none")
    def work(n: int) -> int:
        return n
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), over.set()), daemon=True).start()
    made = 0
    with mulligan.run("worker"):
        while not over.wait(0.002):
            work(made)
            made += 1
            if made % 10 == 0:
                print(made, flush=True)
    if not mulligan.flush(100):
        sys.exit(f"not all of {made} calls are in the store")
    print(made, flush=True)
"""


class Agent:
    """A process of its own that makes calls one after the other, with the store as its library's."""

    def __init__(self, url: str, folder: Path) -> None:
        import textwrap

        self.errors = folder / "agent.log"
        self._log = self.errors.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(AGENT), url], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log, text=True, env={**os.environ, "MULLIGAN_HOME": str(folder / "home")},
        )  # fmt: skip

    def calls(self, number: int) -> int:
        """Waits until so many calls were made in all."""
        assert self.process.stdout is not None
        made = 0
        while made < number:
            line = self.process.stdout.readline()
            assert line, self.errors.read_text(errors="replace")
            made = int(line)
        return made

    def end(self) -> int:
        """Lets it end; how many calls it has made."""
        said, _ = self.process.communicate("over\n", timeout=2 * PATIENCE)
        self._log.close()
        assert self.process.returncode == 0, self.errors.read_text(errors="replace")
        return int(said.split()[-1])


class Kept:
    """What a store holds in the end."""

    def __init__(self, url: str, tenant: str = DEFAULT_TENANT) -> None:
        store = open_store(url)
        try:
            histories = list(store.export(tenant))
            self.runs = {each.run.id for each in histories}
            self.steps = sum(len(each.steps) for each in histories)
            self.is_whole = all(len(each.steps) == STEPS for each in histories)
            query = StatsQuery(now=int(time.time() * 1000), by="tool")
            self.stats, self.counted = store.stats(tenant, query), counters.stats(histories, query)
        finally:
            store.close()

    def check(self) -> None:
        """Nothing is counted that is not there, nor twice: what was added batch by batch is what is there."""
        assert self.stats == self.counted
