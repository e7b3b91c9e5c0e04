"""Many writers at one server: each sends one run in a POST, waits for the answer and sends the next one.

For `benchmarks/server.py`. `measure_writers` counts answers and their latency. Beside it a hostile batch can be sent,
and health checks are made all the time.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import statistics
import time
from typing import NamedTuple

WRITERS = 50
HOSTILE_FAILURES = 2000
HEALTH_INTERVAL_SECONDS = 0.02
WORDS = "connection table column user file host index token limit missing invalid server cannot value unknown".split()


class Measured(NamedTuple):
    per_second: float
    p99: float
    """Milliseconds."""
    slowest_health_check: float
    """Milliseconds."""


def measure_writers(port: int, seconds: float, hostile_body: bytes | None = None) -> Measured:
    """Write for this long, and until the hostile batch is answered, which is sent when a quarter of it has passed."""
    return asyncio.run(_measure(port, seconds, hostile_body))


async def _measure(port: int, seconds: float, hostile_body: bytes | None) -> Measured:
    latencies: list[float] = []
    health: list[float] = []
    begun = time.perf_counter()
    is_over = asyncio.Event()
    tasks = [asyncio.create_task(_write(port, random.Random(number), latencies, is_over)) for number in range(WRITERS)]
    tasks.append(asyncio.create_task(_check_health(port, health, is_over)))
    if hostile_body is not None:
        await asyncio.sleep(seconds / 4)
        await _post_once(port, hostile_body)
    await asyncio.sleep(max(0.0, begun + seconds - time.perf_counter()))
    is_over.set()
    await asyncio.gather(*tasks)
    took = time.perf_counter() - begun
    p99 = statistics.quantiles(latencies, n=100)[98]
    return Measured(len(latencies) / took, p99 * 1000, max(health) * 1000)


async def _write(port: int, chance: random.Random, latencies: list[float], is_over: asyncio.Event) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while not is_over.is_set():
        now = int(time.time() * 1000)
        given = {"query": "open orders of last week", "limit": 5}
        step = {"name": "search", "arguments": given, "result": {"found": 3}, "duration_seconds": 0.01}
        id = f"run_{chance.getrandbits(40):010x}{time.perf_counter_ns():x}"
        run = {"id": id, "agent": "bench", "started_at": now, "ended_at": now + 10, "steps": [step]}
        body = json.dumps(run).encode()
        started_at = time.perf_counter()
        writer.write(
            _head("POST", "/v1/runs", f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n") + body
        )
        status = await _read_answer(reader)
        if status != 200:
            raise RuntimeError(f"A small write was answered with {status}.")
        latencies.append(time.perf_counter() - started_at)
    writer.close()


async def _check_health(port: int, latencies: list[float], is_over: asyncio.Event) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while not is_over.is_set():
        started_at = time.perf_counter()
        writer.write(_head("GET", "/healthz"))
        await _read_answer(reader)
        latencies.append(time.perf_counter() - started_at)
        await asyncio.sleep(HEALTH_INTERVAL_SECONDS)
    writer.close()


async def _post_once(port: int, body: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    fields = f"Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n"
    writer.write(_head("POST", "/v1/runs", fields) + body)
    status = await _read_answer(reader)
    if status != 200:
        raise RuntimeError(f"The hostile batch was answered with {status}.")
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
