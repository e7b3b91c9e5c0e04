"""The scenarios over real sockets, in real time, with the real libraries: tenacity, stamina and OpenAI's, if installed.

A server on loopback refuses, resets, limits or fails requests. Each program runs in threads, as batch jobs do.
"""

from __future__ import annotations

import http.server
import importlib.util
import json
import logging
import random
import socket
import socketserver
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import stamina
import tenacity

import mulligan

logging.getLogger("stamina").setLevel(logging.ERROR)
Answer = Callable[[float, str], tuple[int, dict[str, str]] | None]
"""Returns the status and headers of a response, by the seconds since the start and the key or path. None is a reset."""
Make = Callable[[mulligan.Mulligan], Callable[[str], str]]
"""Builds a function that gets a URL."""
ERRORS = (OSError, mulligan.AgentError)


class Handler(http.server.BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._respond()

    def _respond(self) -> None:
        answer = self.server.find_answer(self.headers.get("Authorization", self.path))
        if answer is None:
            linger = struct.pack("ii", 1, 0)  # close with a reset
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            self.connection.close()
            return
        status, headers = answer
        body = json.dumps(COMPLETION if status == 200 else {"error": {"message": "try again"}}).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body)), "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: Any) -> None: ...


COMPLETION = {
    "id": "c1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip


class Provider(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """The server of one scenario."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.started_at: float | None = None
        """When the first request came: clients may take seconds to import."""
        self._answer, self._lock = answer, threading.Lock()

    def find_answer(self, path: str) -> tuple[int, dict[str, str]] | None:
        with self._lock:
            now = time.monotonic()
            self.started_at = now if self.started_at is None else self.started_at
            return self._answer(now - self.started_at, path)

    def handle_error(self, request: Any, client_address: Any) -> None: ...

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        return str(response.status)


def get_with_mulligan(instance: mulligan.Mulligan) -> Callable[[str], str]:
    return instance.tool(name="get", effects="none", target=lambda url: url)(get)


def use_tenacity(instance: mulligan.Mulligan) -> Callable[[str], str]:
    stop, wait = tenacity.stop_after_attempt(3), tenacity.wait_random_exponential(0.5, max=30)
    # One object for each call: threads that share one may clear each other's statistics.
    return lambda url: tenacity.Retrying(stop=stop, wait=wait, reraise=True)(get, url)


def use_stamina(instance: mulligan.Mulligan) -> Callable[[str], str]:
    return stamina.retry(on=OSError)(get)


def use_client(instance: mulligan.Mulligan) -> Callable[[str], str]:
    return _complete(lambda client: client)


def use_wrapped_client(instance: mulligan.Mulligan) -> Callable[[str], str]:
    return _complete(instance.wrap_client)


def _complete(prepare: Callable[[Any], Any]) -> Callable[[str], str]:
    import openai  # only where it is installed

    clients: dict[str, Any] = {}

    def complete(url: str) -> str:
        base, _, key = url.rpartition("/")
        if key not in clients:
            clients[key] = prepare(openai.OpenAI(api_key=key, base_url=f"{base}/v1"))
        try:
            clients[key].chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        except openai.OpenAIError as error:
            raise OSError(str(error)) from None
        return "200"

    return complete


LIBRARIES = {"tenacity": use_tenacity, "stamina": use_stamina, "mulligan": get_with_mulligan}
CLIENTS = {"OpenAI client": use_client, "mulligan, wrapped client": use_wrapped_client}
GROUPS: dict[str, dict[str, Make]] = {"libraries": LIBRARIES, "clients": CLIENTS}
"""Each plays in a process of its own, the last contender against the others."""


def every_fourth_limited() -> Answer:
    count = 0

    def answer(seconds: float, path: str) -> tuple[int, dict[str, str]]:
        nonlocal count
        count += 1
        return (429, {}) if count % 5 == 1 else (200, {})

    return answer


def outage(end: float, status: int | None = None, start: float = 0.0, headers: dict[str, str] | None = None) -> Answer:
    def answer(seconds: float, path: str) -> tuple[int, dict[str, str]] | None:
        if start <= seconds < end:
            return None if status is None else (status, headers or {})
        return 200, {}

    return answer


def flaky(rate: float, failure: tuple[int, dict[str, str]] | None = (503, {})) -> Answer:
    rng = random.Random(7)
    return lambda seconds, path: failure if rng.random() < rate else (200, {})


def limit(per_second: float, headers: dict[str, str] | None = None) -> Answer:
    permits, at = per_second, 0.0

    def answer(seconds: float, path: str) -> tuple[int, dict[str, str]]:
        nonlocal permits, at
        permits, at = min(per_second, permits + per_second * (seconds - at)), seconds
        if permits < 1:
            return 429, headers or {}
        permits -= 1
        return 200, {}

    return answer


def dead_key() -> Answer:
    """Return the answers of a server that resets every connection with one key, and one in ten with others."""
    answer_others = flaky(0.1, None)
    return lambda seconds, path: None if path.endswith(DEAD_KEY) else answer_others(seconds, path)


DEAD_KEY = "dead"
SOCKET_SCENARIOS: tuple[tuple[str, Callable[[], Answer], int, int], ...] = (
    ("every 5th request 429", every_fourth_limited, 60, 1),
    ("10 at once, reset 0.3 s", lambda: outage(0.3), 10, 10),
    ("50 at once, reset 0.3 s", lambda: outage(0.3), 50, 50),
    ("10 at once, reset 3 s", lambda: outage(3.0), 10, 10),
    ("20 at once, 503 for 5 s", lambda: outage(5.0, 503), 20, 20),
    ("20 at once, 503 stating 1 s", lambda: outage(3.0, 503, headers={"Retry-After": "1"}), 20, 20),
    ("restart 2 s among 200 calls", lambda: outage(2.2, start=0.2), 200, 5),
    ("limit 20/s, 60 at once", lambda: limit(20), 60, 60),
    ("limit 20/s stating 1 s", lambda: limit(20, {"Retry-After": "1"}), 60, 60),
    ("20 at once, reset 8 s", lambda: outage(8.0), 20, 20),
    ("5 at once, 503 for 12 s", lambda: outage(12.0, 503), 5, 5),
    ("limit 10/s, 40 at once", lambda: limit(10), 40, 40),
    ("one key dead", dead_key, 30, 10),
    ("10 % 503 stating 1 s", lambda: flaky(0.1, (503, {"Retry-After": "1"})), 60, 10),
    ("25 % resets", lambda: flaky(0.25, None), 100, 10),
    ("25 % errors", lambda: flaky(0.25), 100, 10),
    ("50 % errors ", lambda: flaky(0.5), 60, 10),
)
"""Name, server, calls, threads."""
SAMPLE_TOLERANCE = 4.0
"""Points by which 60 calls may differ by chance where half of all requests fail."""


@contextmanager
def serve(answer: Answer) -> Iterator[Provider]:
    with Provider(answer) as provider:
        threading.Thread(target=provider.serve_forever, daemon=True).start()
        yield provider
        provider.shutdown()


def measure(
    make: Callable[[mulligan.Mulligan], Callable[[str], str]],
    answer: Answer,
    calls: int,
    threads: int,
    *,
    has_dead_key: bool = False,
) -> float:
    """Return the percentage of calls that succeeded. Every fifth call has the dead key and does not count."""
    instance = mulligan.Mulligan(store="memory:", record="off")
    with serve(answer) as provider, ThreadPoolExecutor(threads) as pool:
        function = make(instance)

        def call(number: int) -> bool | None:
            key = DEAD_KEY if has_dead_key and number % 5 == 0 else "key"
            try:
                function(f"{provider.url}/{key}")
            except ERRORS:
                return False if key != DEAD_KEY else None
            return True

        results = [result for result in pool.map(call, range(calls)) if result is not None]
    instance.close()
    return 100 * sum(results) / len(results)


def play_group(name: str, only: str) -> list[tuple[str, dict[str, float]]]:
    """Return the success of the contenders of a group by scenario."""
    group, rows = GROUPS[name], []
    for scenario, answer, calls, threads in SOCKET_SCENARIOS:
        if only not in scenario:
            continue
        with ThreadPoolExecutor(len(group)) as pool:  # they mostly wait
            runs = {
                contender: pool.submit(measure, make, answer(), calls, threads, has_dead_key=answer is dead_key)
                for contender, make in group.items()
            }
        rows.append((scenario, {contender: run.result() for contender, run in runs.items()}))
    return rows


def compare(only: str) -> list[str]:
    """Print a table of the socket scenarios for each group. Return the goals that mulligan misses."""
    names = list(GROUPS)
    if importlib.util.find_spec("openai") is None:
        print("\nOpenAI's client is not installed, so its scenarios are left out (make eval-overload installs it).")
        names.remove("clients")
    misses = []
    with ProcessPoolExecutor(len(names)) as pool:
        groups = zip(names, pool.map(play_group, names, [only] * len(names)), strict=True)
        for group, rows in groups:
            *replaced_names, own_name = GROUPS[group]
            print(f"\n{'over sockets':30}" + "".join(f"{name:>26}" for name in GROUPS[group]))
            for scenario, success in rows:
                print(f"{scenario:30}" + "".join(f"{percent:26.1f}" for percent in success.values()), flush=True)
                best = max(success[replaced] for replaced in replaced_names)
                if success[own_name] < best - (SAMPLE_TOLERANCE if scenario.startswith("50 %") else 0.0):
                    misses.append(
                        f"sockets, {scenario}: {own_name} succeeds in {success[own_name]:.1f} %, {best:.1f} %"
                    )
    return misses
