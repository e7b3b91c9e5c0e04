"""A web server on loopback that receives alerts, and answers as it is told: at once, late, or with an error."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any


class Receiver:
    """What arrived, and what to answer next."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        """Accepted bodies."""
        self.requests = 0
        self.status = 200
        self.hangs = threading.Event()
        """While set, requests get no answer."""
        self.url = ""

    def wait_for(self, count: int, seconds: float = 20) -> list[dict[str, Any]]:
        """Return the bodies when there are so many. Fail if there are not in time."""
        until = time.monotonic() + seconds
        while len(self.bodies) < count:
            assert time.monotonic() < until, f"{len(self.bodies)} of {count} alerts, {self.requests} requests"
            time.sleep(0.02)
        return self.bodies


@contextlib.contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver()
    stopping = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.requests += 1
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if receiver.hangs.is_set():
                stopping.wait(60)
                return
            if receiver.status == 200:
                receiver.bodies.append(body)
            with contextlib.suppress(OSError):  # the sender has gone meanwhile
                self.send_response(receiver.status)
                self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

    with Server(("127.0.0.1", port), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}/hook"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            stopping.set()
            server.shutdown()
            thread.join(5)
