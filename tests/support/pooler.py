"""A real PgBouncer between clients and PostgreSQL: many share few sessions, each for a transaction or for as long as it
likes.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from ports import free_port

PATIENCE = 30.0


def program() -> str | None:
    """Where it is, if it is installed: Debian puts it where only the administrator looks."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class Pooler:
    """One in front of the server of this URL, gone in the end. `url` is the same database, by way of it."""

    def __init__(self, to: str, mode: str = "transaction", size: int = 4, **settings: str) -> None:
        there = program()
        assert there is not None
        split = urlsplit(to)
        self._folder = Path(tempfile.mkdtemp(prefix="mulligan-pooler-"))
        port = free_port()
        name, password = unquote(split.username or ""), unquote(split.password or "")
        (self._folder / "users").write_text(f'"{name}" "{password}"\n')
        options = {
            "listen_addr": "127.0.0.1", "listen_port": str(port), "unix_socket_dir": "", "auth_type": "plain",
            "auth_file": str(self._folder / "users"), "pool_mode": mode, "default_pool_size": str(size),
            "logfile": str(self._folder / "log"), **settings,
        }  # fmt: skip
        config = self._folder / "pgbouncer.ini"
        lines = [f"{key} = {value}" for key, value in options.items()]
        config.write_text(
            "\n".join(["[databases]", f"* = host={split.hostname} port={split.port}", "[pgbouncer]", *lines, ""])
        )
        user: dict[str, object] = {}
        if os.getuid() == 0:  # it refuses to be root
            nobody = pwd.getpwnam("nobody")
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            for each in (self._folder, *self._folder.iterdir()):
                os.chown(each, nobody.pw_uid, nobody.pw_gid)
        self._process = subprocess.Popen(
            [there, "-q", str(config)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            **user,
        )  # type: ignore[call-overload]  # fmt: skip
        self._port = port
        self.url = self.of(to)
        self._wait(port)

    def of(self, url: str) -> str:
        """A database of the same server, by way of it."""
        split = urlsplit(url)
        return urlunsplit(split._replace(netloc=f"{split.netloc.rpartition('@')[0]}@127.0.0.1:{self._port}"))

    def _wait(self, port: int) -> None:
        import socket

        until = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                assert self._process.poll() is None, self.log()
                assert time.monotonic() < until, self.log()
                time.sleep(0.02)

    def log(self) -> str:
        return (self._folder / "log").read_text() if (self._folder / "log").exists() else ""

    def __enter__(self) -> Pooler:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)
        shutil.rmtree(self._folder, ignore_errors=True)
