"""Where cases are run: a folder and a home of their own, a server that answers as it is told, a PostgreSQL."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("PY") or str(ROOT / ".venv" / "bin" / "python")
os.environ.setdefault("PY", PYTHON)
os.environ.setdefault("TSC", "tsc")

HELPERS = r"""
cat > $HOME/.gitconfig <<X
[user]
name = A
email = a@example.com
[init]
defaultBranch = main
X
repo() { git init -q; echo one > a.txt; git add a.txt; git commit -qm one; }
change() { echo "$PWD $RANDOM" > a.txt; git commit -qam change; }
remote() {
    git init -q --bare remote.git; git clone -q remote.git first
    (cd first; repo; git push -q origin HEAD:main)
}
clone() { git clone -q remote.git $1; }
"""


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="seeds-") as name:
        yield Path(name)


def neutral(text: str, folder: Path) -> str:
    """Without what belongs to this machine."""
    return text.replace(str(folder), "/work/project")


def environment(home: Path) -> dict[str, str]:
    """Of one's own, but for where toolchains are."""
    kept = {name: os.environ[name] for name in ("CARGO_HOME", "RUSTUP_HOME", "PYENV_ROOT") if name in os.environ}
    for name, usual in (("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")):
        kept.setdefault(name, str(Path.home() / usual))
    return kept | {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "PY": PYTHON,
        "TSC": os.environ["TSC"],
        "GOPROXY": "off",
        "GOCACHE": str(Path(tempfile.gettempdir()) / "seeds-go"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "NO_COLOR": "1",
    }


def shell(script: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", timeout=300, check=False,
    )  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    status = 200

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b"<!DOCTYPE html><html></html>"
        self.send_response(self.status)
        if self.status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer  # noqa: N815 - as the standard library calls them

    def log_message(self, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args: Any) -> None:
        pass  # a client that hung up, as it should


class Services:
    """What some cases talk to; started when the first of them comes, ended with the last."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._postgres: dict[str, str] | None = None

    def __enter__(self) -> Services:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def answering(self, status: int | None, secure: bool) -> Iterator[int]:
        """A server on loopback that answers everything with this status, and a web page."""
        if status is None and not secure:
            yield 0
            return
        server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"status": status or 200}))
        if secure:
            with tempfile.TemporaryDirectory() as place:
                key, certificate = f"{place}/key", f"{place}/certificate"
                words = f"openssl req -x509 -nodes -days 1 -subj /CN=127.0.0.1 -keyout {key} -out {certificate}"
                subprocess.run(words.split(), capture_output=True, check=True)
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(certificate, key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            server.server_close()

    def postgres(self) -> dict[str, str] | None:
        """How psql reaches a server of our own; None where PostgreSQL is not installed."""
        if self._postgres is None:
            found = shutil.which("initdb") or next(iter(sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))), None)
            if found is None or shutil.which("psql") is None:
                return None
            self._postgres = self._stack.enter_context(_postgres(Path(found).parent))
        return self._postgres


@contextlib.contextmanager
def _postgres(programs: Path) -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="seeds-pg-") as place:
        user = None
        if os.geteuid() == 0:  # which PostgreSQL refuses to run as
            user = pwd.getpwnam("nobody").pw_uid
            os.chown(place, user, -1)
        data = f"{place}/data"

        def run(*words: str) -> None:
            subprocess.run(words, check=True, capture_output=True, user=user, cwd=place, env={"LC_ALL": "C.UTF-8"})

        run(str(programs / "initdb"), "-D", data, "-U", "agent", "-A", "trust", "-N")
        options = f"-k {place} -c listen_addresses="
        run(str(programs / "pg_ctl"), "-D", data, "-o", options, "-w", "-l", f"{place}/log", "start")
        try:
            yield {"PGHOST": place, "PGUSER": "agent", "PGDATABASE": "postgres"}
        finally:
            run(str(programs / "pg_ctl"), "-D", data, "-m", "immediate", "stop")
