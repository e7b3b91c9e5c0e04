"""Builds the test data of this folder, with the code of a release and its tests/support.

In a checkout of the release (0.1.0 is commit 2c1426d8) with its environment:

    .venv/bin/python ../current/tests/release_0_1_0/build.py ../current/tests/release_0_1_0

The store holds the runs of `mulligan demo`, the programs below, the stores that the tests of the release fill, and
decisions of people. Then processes are killed: their records are in journals only. The answers are those of the
release, after it has recovered the journals. Run it for a new release, never again for an old one.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path.cwd() / "tests" / "support"), str(Path(__file__).parents[1] / "support")]

PROGRAM = """
import sys
import mulligan

STORE, STEP = sys.argv[1:]
QUICK = mulligan.Policy(initial_backoff=0.001, max_backoff=0.002)
mulligan.configure(store=STORE, environment="staging", prices={"small-1": {"input": 1.0, "output": 2.0}})
requests = []


@mulligan.model(record="full", policy=QUICK)
def ask(messages, model="small-1"):
    requests.append(model)
    if len(requests) == 2:
        raise ConnectionResetError("connection reset by peer")
    return {"role": "assistant", "content": "It arrives on Friday.",
            "usage": {"prompt_tokens": 900, "completion_tokens": 60}}


@mulligan.tool(effects="none", policy=QUICK)
def search(query: str, top_k: int = 5) -> list:
    if top_k > 10:
        raise mulligan.AgentError(f"top_k must be 10 or less, got {top_k}.")
    return [query]


@mulligan.tool(effects="once")
def pay(invoice: str, amount: float) -> str:
    raise TimeoutError("no answer from the bank")


@mulligan.tool(effects="none")
def find_order(order: int) -> dict:
    raise KeyError(f"no order {order}")


@mulligan.tool
def plan_trip(city: str) -> list:
    return search(f"hotels in {city}", top_k=3) + search(f"trains to {city}", top_k=4)


def attempt(function, *arguments, **named):
    try:
        return function(*arguments, **named)
    except Exception:
        return None


def record(number):
    with mulligan.session(f"chat-{number % 3}") as session:
        with mulligan.run("travel", session=session, version=f"1.{number % 2}", metadata={"ticket": number}):
            messages = [{"role": "user", "content": f"Where is order {number}?"}]
            messages.append(ask(messages))
            attempt(find_order, number)
            search("refunds", top_k=5)
            plan_trip(("Oslo", "Bern", "Lima")[number % 3])
            session.mark_compacted()
            session.reminder()
            ask([*messages, {"role": "user", "content": "Thanks."}], model="unpriced-1")
            attempt(search, query="vouchers", top_k=20 + number)
            search(query="vouchers", top_k=9)
    with mulligan.run("bookkeeper"):
        attempt(pay, f"INV-{number}", 12.5)
    with mulligan.run("planner") as run, run.step("plan", "outline"):
        attempt(find_order, number)


if STEP == "store":
    for number in range(6):
        record(number)
elif STEP == "half stored":
    record(6)
    mulligan.flush(30)
    record(7)
else:
    record(8)
    record(9)
if STEP != "store":
    print("recorded", flush=True)
    sys.stdin.read()
"""
JOURNAL_SUFFIX = ".journals"


def read_clock() -> int:
    return int(time.time() * 1000)


def run_command(*words: str, home: Path, folder: Path | None = None) -> Any:
    command = [sys.executable, "-m", "mulligan", *words, "--json"]
    environment = {**os.environ, "HOME": str(home), "MULLIGAN_HOME": str(home / "mulligan"), "LOGNAME": "ann"}
    output = subprocess.run(command, env=environment, cwd=folder or home, stdout=subprocess.PIPE, check=True).stdout
    return json.loads(output)


def start_program(home: Path, store: Path, step: str) -> subprocess.Popen[str]:
    (home / "agent.py").write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, "agent.py", str(store), step], cwd=home, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "HOME": str(home)},
    )  # fmt: skip


def kill_program(home: Path, store: Path, step: str, is_locked: bool) -> None:
    """Kill a program that has recorded runs, before they are in the store."""
    with contextlib.closing(sqlite3.connect(store, isolation_level=None)) as connection:
        if is_locked:
            connection.execute("BEGIN IMMEDIATE")
        program = start_program(home, store, step)
        assert program.stdout is not None
        assert program.stdout.readline() == "recorded\n"
        program.send_signal(signal.SIGKILL)
        program.wait()


def fill_store(home: Path) -> Path:
    import agents_week
    import golden_documents
    import two_tenants
    from servers import served

    from mulligan.store.base import DEFAULT_TENANT, FixQuery, PatternQuery, Revocation
    from mulligan.store.sqlite import SqliteStore

    now = read_clock()
    # In the checkout, so that the paths of its stack traces are relative.
    demo = run_command("demo", "--fast", "--no-serve", home=home, folder=Path.cwd())
    path = Path(shutil.move(demo["store"], home / "store.db"))
    shutil.rmtree(home / "mulligan")
    golden_documents.fill_store(path)
    program = start_program(home, path, "store")
    program.communicate()
    assert program.returncode == 0
    store = SqliteStore(path)
    agents_week.fill(store, agents_week.histories(now)[:25])
    with served(home, store=store) as running:
        two_tenants.ours(running)
        two_tenants.theirs(running)
    store = SqliteStore(path)  # the server has closed it
    unfinished = golden_documents.repaired_run(0)[:3]
    store.append("globex", unfinished, "unfinished", 3)
    store.append("globex", golden_documents.repaired_run(1)[2:3], "without-run", 1)
    store.revoke("globex", Revocation(tool="ship", since=now))
    store.put(DEFAULT_TENANT, "note", "greeting", b"hello \xff")
    store.consolidate(DEFAULT_TENANT, now)
    patterns = [pattern.id for pattern in store.patterns(DEFAULT_TENANT, PatternQuery(limit=5))]
    (shipping,) = store.patterns(DEFAULT_TENANT, PatternQuery(tool="ship"))
    fixes = [fix.id for fix in store.fixes(DEFAULT_TENANT, FixQuery(now=now, limit=3))]
    store.close()
    for words in (
        f"patterns mute {patterns[0]}", f"patterns resolve {patterns[1]}", f"patterns note {patterns[2]} checked",
        f"patterns merge {patterns[4]} {patterns[3]}", f"patterns resolve {shipping.id}",
        f"fixes approve {fixes[0]}", f"fixes revoke {fixes[1]}", "seed",
        "tenant create initech --note trial", "tenant set initech --keep-failures 30",
        "token create --role read --name reader",
    ):  # fmt: skip
        run_command(*words.split(), "--store", str(path), home=home)
    return path


def find_private_words(home: Path, data: bytes) -> set[str]:
    """Return paths and names of this machine that stand in the data."""
    words = {str(home), str(Path.cwd()), str(Path.home()), tempfile.gettempdir(), socket.gethostname(), "/root"}
    return {word for word in words if re.search(rb"(?<!\w)" + re.escape(word.encode()) + rb"(?!\w)", data)}


def build_dump(path: Path) -> str:
    """Copy the store to a PostgreSQL, and return its dump as statements that any client can send."""
    import postgres
    import psycopg

    with postgres.Server() as server:
        url = postgres.make_database(server.url, "release")
        copy = shutil.copy(path, path.with_name("without-journals.db"))  # `mulligan copy` would recover them
        subprocess.run([sys.executable, "-m", "mulligan", "copy", str(copy), url], check=True)
        with psycopg.connect(postgres.named(server.url, "release")) as connection:
            connection.execute("DELETE FROM meta WHERE key = 'copy'")  # it names the file
        program = postgres.binaries() / "bin" / "pg_dump"
        options = ("--inserts", "--rows-per-insert=50", "--no-owner", "--no-privileges", "--no-comments")
        command = [str(program), *options, postgres.named(server.url, "release")]
        text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return re.sub(r"^(--.*|\\\w+restrict.*|\\restrict.*|\\unrestrict.*)?\n", "", text, flags=re.MULTILINE)


def collect_answers(path: Path, home: Path) -> dict[str, Any]:
    """Let the release recover the journals and answer."""
    import pytest
    import release_answers
    from servers import served

    from mulligan.store.sqlite import SqliteStore

    now = read_clock()
    copy = home / "copy.db"
    shutil.copy(path, copy)
    shutil.copytree(path.with_name(path.name + JOURNAL_SUFFIX), copy.with_name(copy.name + JOURNAL_SUFFIX))
    with pytest.MonkeyPatch.context() as patch:
        release_answers.freeze_time(patch, now)
        commands = release_answers.ask_commands(str(copy))
        store = SqliteStore(copy)
        tenants = {name: release_answers.ask_store(store, name, now) for name in ("local", "acme", "globex")}
        with served(home, store=store, clock=lambda: now) as running:
            person = running.person()
            routes = release_answers.ask_server(lambda route: person.get(route).json)
            openapi = running.anybody().get("/openapi.json").json
    interface = {**release_answers.describe_interface(), "routes": release_answers.list_routes(openapi)}
    return {"now": now, "commands": commands, "tenants": tenants, "routes": routes, "interface": interface}


def collect_settings(toml: Path, home: Path) -> Any:
    """Let the release read its settings file, as that of a user."""
    config = home / ".config" / "mulligan"
    config.mkdir(parents=True)
    shutil.copy(toml, config)
    return run_command("settings", home=home)


def build(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        path = fill_store(home)
        kill_program(home, path, "half stored", is_locked=False)
        kill_program(home, path, "unstored", is_locked=True)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        answers = collect_answers(path, home)
        interface = answers.pop("interface")
        answers["settings"] = collect_settings(Path(__file__).with_name("mulligan.toml"), home)
        journals = path.with_name(path.name + JOURNAL_SUFFIX)
        with tarfile.open(folder / "journals.tar.xz", "w:xz") as archive:
            for journal in sorted(journals.iterdir()):
                archive.add(journal, journal.name, filter=_remove_owner)
        files = {
            "store.db": path.read_bytes(),
            "store.sql": build_dump(path).encode(),
            "answers.json": json.dumps(answers, ensure_ascii=False).replace(str(home), "<home>").encode(),
        }
        for name, data in files.items():
            assert not find_private_words(home, data), (name, find_private_words(home, data))
            (folder / f"{name}.xz").write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
        assert not find_private_words(home, b"".join(journal.read_bytes() for journal in journals.iterdir()))
        (folder / "interface.json").write_text(json.dumps(interface, indent=1) + "\n")


def _remove_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    build(Path(sys.argv[1]))
