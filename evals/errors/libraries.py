"""Exceptions of real libraries, raised by using them wrongly. The label says what was provoked.

    python -m pip install --group errors     install the libraries
    python evals/errors/libraries.py         raise every exception, check that both ways to classify it agree,
                                             and write libraries.jsonl

A kind with "|" has two labels: the program that fails to parse a text does not know who wrote it.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import logging
import os
import re
import socketserver
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]

from measure import is_opened  # noqa: E402

from mulligan.classify.classifier import classify  # noqa: E402

TABLE = Path(__file__).with_name("libraries.txt")
CORPUS = Path(__file__).with_name("libraries.jsonl")
TOOL = "lookup"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers with the status in the path, with text, late or not at all."""

    def do_GET(self) -> None:
        if "/drop" in self.path:
            self.connection.close()
            return
        if "/slow" in self.path:
            time.sleep(3)
        found = re.search(r"/status/(\d{3})", self.path)
        body = b'{"ok": false, "error": "channel_not_found"}' if "/slack" in self.path else b"<html>hello</html>"
        self.send_response(int(found[1]) if found else 200)
        self.send_header("Content-Type", "application/json" if "/slack" in self.path else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the name that http.server calls

    def log_message(self, *_: object) -> None:
        pass

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()


# Steps that a line of the table needs


def run(work: Any) -> Any:
    return asyncio.run(work)


async def fetch_aiohttp(url: str) -> Any:
    import aiohttp

    limit = aiohttp.ClientTimeout(total=0.3)
    async with aiohttp.ClientSession(timeout=limit) as session, session.get(url, raise_for_status=True) as answer:
        return await answer.json()


def locked_sqlite() -> None:
    import sqlite3

    path = f"{os.environ['EVAL_FOLDER']}/lock.db"
    first, second = (sqlite3.connect(path, timeout=0.1, isolation_level=None) for _ in range(2))
    first.execute("begin exclusive")
    second.execute("begin exclusive")


def insert_twice(sa: Any) -> None:
    with sa.create_engine("sqlite://").connect() as connection:
        connection.execute(sa.text("create table t(a integer primary key)"))
        for _ in range(2):
            connection.execute(sa.text("insert into t values (1)"))


def peewee_get(peewee: Any) -> None:
    database = peewee.SqliteDatabase(":memory:")
    meta = type("Meta", (), {"database": database})
    user = type("User", (peewee.Model,), {"name": peewee.CharField(), "Meta": meta})
    database.create_tables([user])
    user.get(user.name == "x")


def mongo_twice(mongomock: Any) -> None:
    table = mongomock.MongoClient().d.c
    for _ in range(2):
        table.insert_one({"_id": 1})


def insert_and_find(mongomock: Any) -> None:
    table = mongomock.MongoClient().d.c
    table.insert_one({"a": 1})
    list(table.find({"a": {"$nope": 1}}))


def wrong_redis_type(fakeredis: Any) -> None:
    server = fakeredis.FakeRedis()
    server.lpush("a", 1)
    server.get("a")


def qdrant_wrong_size(qdrant_client: Any) -> None:
    client = qdrant_client.QdrantClient(":memory:")
    size = qdrant_client.models.VectorParams(size=4, distance=qdrant_client.models.Distance.DOT)
    client.create_collection("c", vectors_config=size)
    client.upsert("c", [qdrant_client.models.PointStruct(id=1, vector=[0.1] * 4)])
    client.query_points("c", query=[0.1, 0.2])


def aws(boto3: Any, url: str) -> Any:
    config = __import__("botocore.config").config.Config(retries={"max_attempts": 1})
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    return boto3.client("s3", region_name="us-east-1", endpoint_url=url, config=config, **keys)


def resolver(dns: Any) -> Any:
    made = dns.resolver.Resolver(configure=False)
    made.nameservers, made.lifetime = ["10.255.255.1"], 0.3
    return made


def lock_twice(filelock: Any) -> None:
    path = f"{os.environ['EVAL_FOLDER']}/x.lock"
    with filelock.FileLock(path):
        filelock.FileLock(path, timeout=0.1).acquire()


def refuse() -> None:
    raise ConnectionRefusedError(111, "Connection refused")


def raise_first(errors: list[Exception]) -> None:
    raise errors[0]


def read_table(text: str) -> Iterator[tuple[str, str, bool, str, str]]:
    """Yield library, imports, whether it is a late line, kind and code of each line."""
    library, imports, is_late = "", "", False
    for line in text.splitlines():
        if not line or line.startswith("# "):
            continue
        if line.startswith("=="):
            is_late = line.startswith("===")
            library, _, imports = line.lstrip("= ").partition(": ")
        else:
            kind, _, code = line.partition(" ; ")
            yield library, imports, is_late, kind.strip(), code.strip()


def raise_error(imports: str, code: str, names: dict[str, Any]) -> Exception | None:
    scope = {**globals(), **names}
    exec(imports, scope)
    try:
        eval(code, scope)
    except Exception as error:  # noqa: BLE001 - this is what we want
        return error
    return None


def describe(error: Exception, names: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, str]]:
    """Return the row of an exception, which is what a log of it would hold, and its kind live and by that row."""
    text = str(error).replace(names["URL"], "http://127.0.0.1:8000").replace(names["FOLDER"], "/data")
    text = re.sub(r"/(?:root|home|work|opt)/[\w./-]*/", "/opt/", text)
    live = classify(error, source="tool", tool=TOOL)
    facts = {"exception": f"{type(error).__module__}.{type(error).__qualname__}", "status": live.status}
    logged = classify(source="tool", tool=TOOL, text=str(error), **facts)
    return {**facts, "text": text[:4000]}, (str(live.kind), str(logged.kind))


def main() -> int:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    rows, absent, quiet, differing = [], set(), [], []
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EVAL_FOLDER"] = folder
        os.environ |= {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/absent"}
        Path(folder, "text.txt").write_text("hello, this is no database\n" * 50)
        __import__("sqlite3").connect(f"{folder}/ro.db").execute("create table x(a)")
        names = {"URL": f"http://127.0.0.1:{server.server_address[1]}", "FOLDER": folder}
        for library, imports, is_late, kind, code in read_table(TABLE.read_text(encoding="utf-8")):
            try:
                error = raise_error(imports, code, names)
            except ImportError:
                absent.add(library)
                continue
            if error is None:
                quiet.append(f"{library}: {code}")
                continue
            row, (live, logged) = describe(error, names)
            name = f"{library}: {code}"
            rows.append({"name": name, "library": library, "kind": kind, "tool": TOOL, "late": is_late, **row})
            if live != logged:
                differing.append(f"{name}: live {live}, logged {logged}")
    server.shutdown()
    CORPUS.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows)} exceptions of {len({row['library'] for row in rows})} libraries written to {CORPUS.name}")
    for title, names_ in (("not installed", sorted(absent)), ("did not raise", quiet)):
        if names_:
            print(f"{title}: {'; '.join(names_)}", file=sys.stderr)
    print(f"live and logged errors differ in {len(differing)} of {len(rows)}")
    for line in differing:
        if is_opened(line.partition(": live ")[0]):
            print(f"  {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
