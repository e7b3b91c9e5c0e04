"""Spans as OpenTelemetry writes them, as protobuf and as JSON; and runs of agents that are made of them."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

SECOND = 10**9
BEGUN = 1_794_700_000 * SECOND


class Made(NamedTuple):
    trace: str
    id: str
    parent: str
    name: str
    start: int
    end: int
    facts: dict[str, Any]
    error: str | None = None


def number(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(tag: int, value: bytes) -> bytes:
    return number(tag << 3 | 2) + number(len(value)) + value


def attribute(key: str, value: Any) -> bytes:
    if isinstance(value, bool):
        held = b"\x10" + number(value)
    elif isinstance(value, int):
        held = b"\x18" + number(value % 2**64)
    elif isinstance(value, float):
        held = b"\x21" + struct.pack("<d", value)
    else:
        held = field(1, str(value).encode())
    return field(1, key.encode()) + field(2, held)


def as_protobuf(spans: list[Made], service: str = "look-alike", scope: str = "") -> bytes:
    written = b"".join(field(2, one(span)) for span in spans)
    resource = field(1, attribute("service.name", service))
    library = field(1, field(1, scope.encode()) + field(2, b"1.0"))
    return field(1, field(1, resource) + field(2, library + written) + field(3, b"https://schema"))


def one(span: Made) -> bytes:
    data = field(1, bytes.fromhex(span.trace)) + field(2, bytes.fromhex(span.id)) + field(3, b"state=1")
    data += field(4, bytes.fromhex(span.parent)) if span.parent else b""
    data += field(5, span.name.encode()) + b"\x30\x03"
    data += b"\x39" + struct.pack("<Q", span.start) + b"\x41" + struct.pack("<Q", span.end)
    data += b"".join(field(9, attribute(key, value)) for key, value in span.facts.items())
    data += field(9, attribute("thread.name", "MainThread")) + b"\x50\x00"
    if span.error is not None:
        about = field(3, attribute("exception.message", span.error)) + field(
            3, attribute("exception.stacktrace", "...")
        )
        data += field(11, b"\x09" + struct.pack("<Q", span.end) + field(2, b"exception") + about)
        data += field(15, field(2, span.error.encode()) + b"\x18\x02")
    else:
        data += field(15, b"\x18\x01")
    return data + b"\x85\x01\x01\x00\x00\x00"


def as_json(spans: list[Made], service: str = "look-alike", scope: str = "") -> dict[str, Any]:
    def attributes(facts: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": str(value)}}
            for key, value in facts.items()
        ]

    written = [
        {
            "traceId": span.trace, "spanId": span.id, "parentSpanId": span.parent, "name": span.name,
            "startTimeUnixNano": str(span.start), "endTimeUnixNano": str(span.end),
            "attributes": attributes(span.facts),
            "status": {"code": 2, "message": span.error} if span.error is not None else {"code": 1},
        }
        for span in spans
    ]  # fmt: skip
    resource = {"attributes": attributes({"service.name": service})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": scope}, "spans": written}]}]}


class World:
    """Makes runs with known endings: what a tool says when it fails is written here."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = BEGUN

    def id(self, length: int) -> str:
        return f"{self.random.getrandbits(4 * length) | 1:0{length}x}"

    def run(self, status: str) -> Iterator[Made]:
        """One that comes to this status: attempts follow each other under one call's id."""
        trace, root = self.id(32), self.id(16)
        begun = self.clock
        failing = {"success": [], "recovered": [True], "partial": [False], "failure": [False]}[status]
        for place in range(self.random.randint(1, 3)):
            yield self._span(
                trace, root, "chat small-1", {"gen_ai.operation.name": "chat", "gen_ai.request.model": "small-1"}
            )
            yield from self._call(trace, root, f"tool_{place}", f"c-{trace[:6]}-{place}", attempts=1, works=True)
        for works in failing:
            yield from self._call(
                trace, root, "fetch", f"c-{trace[:6]}-f", attempts=self.random.randint(2, 3), works=works
            )
        facts = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "scout", "input.value": "look around"}
        error = "the plan cannot go on" if status == "failure" else None
        yield Made(trace, root, "", "invoke_agent scout", begun, self.clock, facts, error)

    def _call(self, trace: str, parent: str, tool: str, call: str, attempts: int, works: bool) -> Iterator[Made]:
        for attempt in range(1, attempts + 1):
            facts = {
                "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool, "gen_ai.tool.call.id": call,
                "gen_ai.tool.call.arguments": '{"page": 3}', "retry.attempt": attempt,
            }  # fmt: skip
            is_good = works and attempt == attempts
            yield self._span(
                trace, parent, f"execute_tool {tool}", facts, None if is_good else "Read timed out after 3 s"
            )

    def _span(self, trace: str, parent: str, name: str, facts: dict[str, Any], error: str | None = None) -> Made:
        start, self.clock = self.clock, self.clock + self.random.randint(1, 3000) * 1_000_000
        return Made(trace, self.id(16), parent, name, start, self.clock, facts, error)
