"""Live page: every attempt as it ends, sent to the browser as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from mulligan.events import RunEnded, StepEnded
from mulligan.records import encode
from mulligan.report.watch import BEGUN, Watch
from mulligan.serve.dashboard import shown
from mulligan.serve.dashboard.asked import Asked

EVERY = 1.0
"""Minimum time between two polls of the store."""
SHARE = 5
"""Delay after a poll, as a multiple of its duration, so that a live page cannot keep a busy store busy."""
RUNS = 50
"""Newest runs read per poll."""
FIRST = 30
"""Limit of recent events sent at the start."""
LONGEST = 600
"""Limit of polls per connection. The browser then reconnects, so forgotten tabs hold no connection."""


def watch(tenant: str, asked: Asked) -> Watch:
    kind = asked.filters.get("kind")
    query = asked.runs(kind=None, tool=None, status=None, since=asked.now - BEGUN, until=None, limit=RUNS)
    return Watch(
        query,
        tool=asked.filters.get("tool"),
        kind=f"{kind}/" if kind and "/" not in kind else kind,
        failures=asked.rest.get("failures") == "1",
        tenant=tenant,
    )


async def events(
    look: Callable[[], Any], is_over: Callable[[], bool], every: float = EVERY, longest: int = LONGEST
) -> AsyncIterator[str]:
    """Yield server-sent events until the browser disconnects, the server stops or the poll limit is reached."""
    yield "retry: 2000\n\n"
    is_first = True
    for _ in range(longest):
        if is_over():
            return
        began = time.monotonic()
        fresh = await look()
        took = time.monotonic() - began
        for event, agent in fresh[-FIRST:] if is_first else fresh:
            yield f"data: {encode(told(event, agent)).decode()}\n\n"
        if is_first:
            yield "event: ready\ndata: {}\n\n"
            is_first = False
        await asyncio.sleep(max(every, SHARE * took))


def told(event: StepEnded | RunEnded, agent: str) -> dict[str, Any]:
    """Convert an event into one row of the live page. The script inserts the values as text, not as HTML."""
    if isinstance(event, RunEnded):
        run = event.run
        return {
            "key": f"{run.id}/ended",
            "at": _time(run.ended or run.started),
            "mark": "■",
            "look": "lost" if run.end != "finished" else "quietly",
            "agent": _plain(agent, 40),
            "name": "run ended",
            "said": str(run.end),
            "took": _plain(shown.seconds(((run.ended or run.started) - run.started) / 1000), 20),
            "href": shown.place("runs", run.id),
        }
    step = event.step
    failure = step.failure
    return {
        "key": f"{step.run}/{step.seq}",
        "at": _time(step.started + int(step.seconds * 1000)),
        "mark": "✕" if step.has_failed else "✓" if step.outcome == "success" else "\u2013",
        "look": "lost" if step.has_failed else "won" if step.attempt > 1 else "ok",
        "agent": _plain(agent, 40),
        "name": _plain(step.name or step.type, 60),
        "said": _plain(f"{failure.kind}: {failure.message}", 160) if failure is not None else step.outcome,
        "took": _plain(shown.seconds(step.seconds), 20),
        "attempt": step.attempt,
        "href": shown.place("runs", step.run),
    }


def _time(millis: int) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(millis / 1000))


def _plain(text: Any, limit: int) -> str:
    return shown.line(text, limit).unescape()
