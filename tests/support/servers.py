"""A real server on loopback, in this process, and a client that says what it sends."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("starlette", reason="needs the extra: pip install 'mulligan[server]'")
pytest.importorskip("uvicorn", reason="needs the extra: pip install 'mulligan[server]'")

from mulligan.classify.classifier import classify
from mulligan.contract.store import Store
from mulligan.core.listening import bind_socket
from mulligan.redaction import Redactor
from mulligan.server import http_server
from mulligan.server.access import AccessRules
from mulligan.server.app import RouteGroup, Server, build_app
from mulligan.server.payloads import PayloadConverter
from mulligan.server.routes import ROUTE_GROUPS
from mulligan.store.sqlite import SqliteStore

GRACE = 8
"""Seconds that requests under way are given when it is to stop."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Speaks HTTP to one server; as somebody, if there is a token or a cookie."""

    def __init__(self, port: int, token: str | None = None, cookie: str | None = None) -> None:
        self.port, self.token, self.cookie = port, token, cookie

    def __call__(
        self, method: str, path: str, sent: Any = None, *, body: bytes | None = None, **headers: str
    ) -> Answer:
        given = {"Host": f"127.0.0.1:{self.port}"}
        if sent is not None or body is not None:
            given["Content-Type"] = "application/json"
        if self.token is not None:
            given["Authorization"] = f"Bearer {self.token}"
        if self.cookie is not None:
            given["Cookie"] = self.cookie
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            data = body if body is not None else json.dumps(sent).encode() if sent is not None else None
            connection.request(method, path, data, given)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self("GET", path, **headers)

    def post(self, path: str, sent: Any = None, **more: Any) -> Answer:
        return self("POST", path, sent, **more)


class Running(NamedTuple):
    """A server that listens, and two who ask it: anybody, and a person at its keyboard."""

    server: Server
    store: Store
    port: int

    def anybody(self) -> Client:
        return Client(self.port)

    def person(self) -> Client:
        came = Client(self.port).get(f"/enter/{self.server.browser_sessions.ticket}")
        return Client(self.port, cookie=came.headers["set-cookie"].partition(";")[0])

    def holding(self, role: Any, **facts: Any) -> Client:
        _, secret = self.server.tokens.create(role, 0, **facts)
        self.server.tokens.refresh()
        return Client(self.port, token=secret)


@contextlib.contextmanager
def served(
    folder: Path, rules: AccessRules | None = None, level: Any = "local", groups: Sequence[RouteGroup] = (),
    store: Store | None = None, trusted_proxies: Sequence[str] = (), **more: Any,
) -> Iterator[Running]:  # fmt: skip
    """With the routes of the API, and further ones."""
    store = store or SqliteStore(folder / "mulligan.db")
    intake = PayloadConverter(
        classify,
        lambda key, tenant: Redactor(level=level, unredacted_arguments=tenant.unredacted_arguments, key=key),
        store,
    )
    alert_targets = more.pop("alert_targets", {})
    server = Server(store, intake, rules=rules, **more)
    server.alert_targets = alert_targets
    sock = bind_socket("127.0.0.1", 0, "--port")
    ready = threading.Event()
    listening = http_server.build_server(
        build_app(server, (*ROUTE_GROUPS, *groups)), ready.set, grace=GRACE, on_stopping=server.stop,
        trusted_proxies=trusted_proxies,
    )  # fmt: skip
    thread = threading.Thread(target=lambda: listening.run(sockets=[sock]), daemon=True)
    thread.start()
    try:
        assert ready.wait(20)
        yield Running(server, store, sock.getsockname()[1])
    finally:
        listening.should_exit = True
        thread.join(10)
        sock.close()
