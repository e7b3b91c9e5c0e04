"""The user's side: programs in processes of their own, a home of their own, and the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


class User:
    """Somebody with an empty home, who writes programs and types commands."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self.folder = folder
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "MULLIGAN_HOME": str(self.home / "mulligan"),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }

    def runs_program(self, source: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The program is a file, as the user's is."""
        program = self.folder / "agent.py"
        program.write_text(textwrap.dedent(source))
        return self._process([sys.executable, str(program)], environment)

    def types(self, *words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """`mulligan ...`, in a process of its own."""
        command = [sys.executable, "-c", "from mulligan.cli import main; main()", *words]
        return self._process(command, environment, stdin)

    def sees(self, *words: str) -> Any:
        """What the command says with --json."""
        said = self.types(*words, "--json")
        assert said.returncode == 0, said.stderr
        return json.loads(said.stdout)

    def _process(
        self, command: list[str], environment: dict[str, str], stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment | environment,
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


class Service:
    """A real HTTP service that answers as it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: Callable[[str, BaseHTTPRequestHandler], tuple[int, dict[str, str], bytes]] = lambda path, _: (
            200,
            {},
            b"{}",
        )
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.asked.append(self.path)
                status, headers, body = service.answers(self.path, self)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815 - the name is http.server's

            def log_message(self, format: str, *args: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def heard(self, number: int) -> list[str]:
        """What it was asked, once it was asked so often: whoever asks may give up before it has looked."""
        until = time.monotonic() + 60
        while len(self.asked) < number and time.monotonic() < until:
            time.sleep(0.01)
        return self.asked


@pytest.fixture
def service() -> Iterator[Service]:
    served = Service()
    yield served
    served.server.shutdown()
    served.server.server_close()
