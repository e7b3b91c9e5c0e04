"""The least that a server of this sort does: it takes a batch, keeps a row an item, and answers once that is committed.

    python benchmarks/server_floor.py FILE

For `benchmarks/server.py`, which measures it beside the server in the same run: what both take longer for is the
machine's doing. It says where it listens, in one line. Nothing is checked, redacted, classified or counted here.
"""

from __future__ import annotations

import socket
import sqlite3
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import uvicorn

Row = tuple[bytes, int, bytes]


class Event(msgspec.Struct):
    event: str
    step: dict[str, Any] | None = None
    run: dict[str, Any] | None = None


class Batch(msgspec.Struct):
    client: str
    journal: str
    offset: int
    events: list[Event]


_batch = msgspec.json.Decoder(Batch).decode
_encode = msgspec.json.Encoder().encode
_moment = struct.Struct("<Q").unpack_from


def records(body: bytes) -> list[Row]:
    """The rows of a batch of the library's."""
    rows = []
    for event in _batch(body).events:
        about: dict[str, Any] = event.step or event.run or {}
        rows.append((str(about.get("run", about.get("id"))).encode(), int(about.get("seq", 0)), _encode(about)))
    return rows


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The number of each field of a message of protobuf, and where its value begins and ends."""
    while at < end:
        tag, at = number(data, at)
        kind = tag & 7
        if kind == 2:
            size, at = number(data, at)
            yield tag >> 3, at, at + size
            at += size
        elif kind == 0:
            value, at = number(data, at)
            yield tag >> 3, value, -1
        else:
            yield tag >> 3, at, at + (8 if kind == 1 else 4)
            at += 8 if kind == 1 else 4


def number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def spans(body: bytes) -> list[Row]:
    """The rows of an export of OpenTelemetry's."""
    rows = []
    for _, start, end in fields(body, 0, len(body)):
        for group, first, last in fields(body, start, end):
            for inner, begun, ended in fields(body, first, last) if group == 2 else ():
                if inner == 2:
                    rows.append(span(body, begun, ended))
    return rows


def span(data: bytes, at: int, end: int) -> Row:
    id = b""
    facts: dict[str, Any] = {}
    for name, start, stop in fields(data, at, end):
        if name == 1 or name == 2:
            id += data[start:stop]
        elif name == 5:
            facts["name"] = data[start:stop].decode()
        elif name == 7 or name == 8:
            facts[str(name)] = _moment(data, start)[0]
        elif name == 9:
            (_, key, until), *held = fields(data, start, stop)
            for sort, value, last in fields(data, held[0][1], held[0][2]):
                facts[data[key:until].decode()] = data[value:last].decode() if sort == 1 else value
    return id, 0, _encode(facts)


def runs(body: bytes) -> list[Row]:
    """The rows of one run or a list of runs, with their steps."""
    sent = msgspec.json.decode(body)
    rows: list[Row] = []
    for about in sent if isinstance(sent, list) else [sent]:
        id, steps = about["id"].encode(), about.pop("steps", [])
        rows.append((id, 0, _encode(about)))
        rows += [(id, step["seq"], _encode(step)) for step in steps]
    return rows


READERS = {"/v1/batch": records, "/v1/traces": spans, "/v1/runs": runs}


class Floor:
    def __init__(self, path: str) -> None:
        self._store = sqlite3.connect(path, isolation_level=None)
        self._store.execute("PRAGMA journal_mode=WAL")
        self._store.execute("PRAGMA synchronous=NORMAL")
        self._store.execute("CREATE TABLE items (id BLOB, seq INTEGER, body BLOB, PRIMARY KEY (id, seq))")

    async def __call__(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if body:
            rows = READERS[scope["path"]](body)
            self._store.execute("BEGIN IMMEDIATE")
            self._store.executemany("INSERT OR IGNORE INTO items VALUES (?, ?, ?)", rows)
            self._store.execute("COMMIT")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


def main() -> None:
    # With its protocol named, else asyncio leaves Nagle's algorithm on, and each answer waits 40 ms for an ACK.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.bind(("127.0.0.1", 0))
    sock.listen(512)
    print(f"http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
    config = uvicorn.Config(Floor(sys.argv[1]), http="httptools", lifespan="off", log_config=None, access_log=False)
    uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    main()
