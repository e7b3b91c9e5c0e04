"""A wire to PostgreSQL that is cut at the worst moment: a COMMIT is on its way, or done and not acknowledged."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

Moment = Literal["before", "after"]
"""`before` a COMMIT reaches the server, or `after` it was done: then its answer is what is lost."""
COMMIT = b"COMMIT\x00"
"""In a question as in its answer. What is encrypted is not seen: `sslmode=disable`."""
_PREPARED = re.compile(rb"P.{4}([^\x00]+)\x00COMMIT\x00", re.DOTALL)


class _Talk:
    """What is known of one connection."""

    def __init__(self) -> None:
        self.waits = threading.Event()
        """Set while the answer to a COMMIT is waited for, which is not passed on."""
        self._names: set[bytes] = set()
        """Of statements that were prepared, and are a COMMIT: they are then called by name alone."""

    def commits(self, data: bytes) -> bool:
        self._names |= set(_PREPARED.findall(data))
        data = _PREPARED.sub(b"", data)  # to prepare is not to perform
        return COMMIT in data or any(b"\x00" + name + b"\x00" in data for name in self._names)


class Wire:
    """Stands between a client and a server. Each commit that it is armed for costs the connection."""

    def __init__(self, url: str) -> None:
        self._to = urlsplit(url)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._armed: list[Moment] = []
        self._open: set[socket.socket] = set()
        self.cut: list[Moment] = []
        """What was cut so far."""
        self._was_cut = threading.Condition()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The same database, by way of the wire."""
        port = self._listening.getsockname()[1]
        name, _, _ = self._to.netloc.rpartition("@")
        return urlunsplit(self._to._replace(netloc=f"{name}@127.0.0.1:{port}", query="sslmode=disable"))

    def arm(self, *moments: Moment) -> None:
        with self._lock:
            self._armed += moments

    def wait(self, number: int, timeout: float) -> bool:
        """Until so many were cut in all; whether they were."""
        with self._was_cut:
            return self._was_cut.wait_for(lambda: len(self.cut) >= number, timeout)

    def _next(self) -> Moment | None:
        with self._lock:
            return self._armed.pop(0) if self._armed else None

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((str(self._to.hostname), self._to.port or 5432), timeout=10)
            except OSError:
                client.close()  # it is down, as it would be without us
                continue
            server.settimeout(None)
            for each in (client, server):  # or every question waits for the next
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {client, server}
            talk = _Talk()
            for one, other, is_question in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pump, args=(one, other, is_question, talk), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket, is_question: bool, talk: _Talk) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                if is_question and talk.commits(data) and (moment := self._next()):
                    if moment == "before":
                        self._cut(moment, one, other)
                        return
                    talk.waits.set()
                elif not is_question and talk.waits.is_set():
                    if COMMIT in data:  # it is done, and nobody will hear of it
                        self._cut("after", one, other)
                        return
                    continue
                other.sendall(data)
        self._end(one, other)

    def _cut(self, moment: Moment, *pair: socket.socket) -> None:
        with self._was_cut:
            self.cut.append(moment)
            self._was_cut.notify_all()
        self._end(*pair)

    def _end(self, *pair: socket.socket) -> None:
        for each in pair:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        with self._lock:
            self._open -= set(pair)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._lock:
            left = tuple(self._open)
        self._end(*left)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
