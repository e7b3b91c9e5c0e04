"""Many writers at one server: each sends one run in a POST, waits for the answer and sends the next one.

For `server.py` and `scale.py`. `measure_writers` counts answers and their latency. Beside it a hostile batch can be
sent, and health checks are made all the time.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

WRITERS = 50
HOSTILE_FAILURES = 2000
HEALTH_INTERVAL_SECONDS = 0.02
WORDS = "connection table column user file host index token limit missing invalid server cannot value unknown".split()


class Write(NamedTuple):
    """A request of a writer."""

    path: str
    body: bytes
    token: str = ""
    tenant: str = ""
    calls_by_run: Mapping[str, int] = MappingProxyType({})
    """What is stored when it is answered."""


class Measured(NamedTuple):
    per_second: float
    p99: float
    """Milliseconds."""
    slowest_health_check: float
    """Milliseconds."""
    acknowledged: list[Write]


def build_small_write(writer: int) -> Write:
    """Build the request for one run of one call."""
    now = int(time.time() * 1000)
    given = {"query": "open orders of last week", "limit": 5}
    step = {"name": "search", "arguments": given, "result": {"found": 3}, "duration_seconds": 0.01}
    id = f"run_{writer}_{time.time_ns():x}"
    run = {"id": id, "agent": "bench", "started_at": now, "ended_at": now + 10, "steps": [step]}
    return Write("/v1/runs", json.dumps(run).encode(), calls_by_run={id: 1})


def measure_writers(
    port: int, seconds: float, hostile_body: bytes | None = None, writers: int = WRITERS,
    build_write: Callable[[int], Write] = build_small_write,
) -> Measured:  # fmt: skip
    """Write for this long, and until the hostile batch is answered, which is sent when a quarter of it has passed."""
    return asyncio.run(_measure(port, seconds, hostile_body, [partial(build_write, n) for n in range(writers)]))


def send_again(port: int, writes: Sequence[Write]) -> int:
    """Send requests over new connections. Return how many they were."""

    async def send() -> None:
        for write in writes:
            await _post_once(port, write)

    asyncio.run(send())
    return len(writes)


async def _measure(
    port: int, seconds: float, hostile_body: bytes | None, writers: Sequence[Callable[[], Write]]
) -> Measured:
    latencies: list[float] = []
    acknowledged: list[Write] = []
    health: list[float] = []
    begun = time.perf_counter()
    is_over = asyncio.Event()
    tasks = [asyncio.create_task(_write(port, build, latencies, acknowledged, is_over)) for build in writers]
    tasks.append(asyncio.create_task(_check_health(port, health, is_over)))
    if hostile_body is not None:
        await asyncio.sleep(seconds / 4)
        await _post_once(port, Write("/v1/runs", hostile_body), "Content-Encoding: gzip\r\n")
    await asyncio.sleep(max(0.0, begun + seconds - time.perf_counter()))
    is_over.set()
    await asyncio.gather(*tasks)
    took = time.perf_counter() - begun
    p99 = statistics.quantiles(latencies, n=100)[98]
    return Measured(len(latencies) / took, p99 * 1000, max(health) * 1000, acknowledged)


async def _write(
    port: int, build_write: Callable[[], Write], latencies: list[float], acknowledged: list[Write],
    is_over: asyncio.Event,
) -> None:  # fmt: skip
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while not is_over.is_set():
        write = build_write()
        started_at = time.perf_counter()
        await _send(reader, writer, write)
        latencies.append(time.perf_counter() - started_at)
        acknowledged.append(write)
    writer.close()


async def _send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, write: Write, fields: str = "") -> None:
    fields += f"Content-Type: application/json\r\nContent-Length: {len(write.body)}\r\n"
    if write.token:
        fields += f"Authorization: Bearer {write.token}\r\n"
    writer.write(_head("POST", write.path, fields) + write.body)
    status = await _read_answer(reader)
    if status != 200:
        raise RuntimeError(f"A write to {write.path} was answered with {status}.")


async def _check_health(port: int, latencies: list[float], is_over: asyncio.Event) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while not is_over.is_set():
        started_at = time.perf_counter()
        writer.write(_head("GET", "/healthz"))
        await _read_answer(reader)
        latencies.append(time.perf_counter() - started_at)
        await asyncio.sleep(HEALTH_INTERVAL_SECONDS)
    writer.close()


async def _post_once(port: int, write: Write, fields: str = "") -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await _send(reader, writer, write, fields)
    writer.close()


def _head(method: str, path: str, fields: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n".encode()


async def _read_answer(reader: asyncio.StreamReader) -> int:
    """Read a whole answer. Return its status."""
    lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
    length = next((int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")), None)
    if length is not None:
        await reader.readexactly(length)
    else:
        while (size := int(await reader.readline(), 16)) or await reader.readline() is None:
            await reader.readexactly(size + 2)
    return int(lines[0].split()[1])


def hostile_body(chance: random.Random) -> bytes:
    """One run with as many failures as a body may have, no two alike, compressed."""

    def text() -> str:
        words = (
            chance.choice(WORDS) + (str(chance.randrange(1000)) if chance.random() < 0.3 else "") for _ in range(40)
        )
        return f"{' '.join(words)} {chance.getrandbits(64):x}"

    now = int(time.time() * 1000)
    steps = [
        {"name": f"tool_{number % 50}", "arguments": {"q": text()}, "failure": {"message": text()}}
        for number in range(HOSTILE_FAILURES)
    ]
    run = {"id": f"run_{chance.getrandbits(80):020x}", "started_at": now, "ended_at": now + 10, "steps": steps}
    return gzip.compress(json.dumps(run).encode())
