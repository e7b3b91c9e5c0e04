"""Live page: every attempt as it ends, sent to the browser as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.records import encode
from mulligan.dashboard import formatting
from mulligan.dashboard.page_query import PageQuery
from mulligan.report.resources import STEP_SPEC
from mulligan.report.tail_reader import START_LOOKBACK_MS, TailReader

POLL_INTERVAL_SECONDS = 1.0
"""Minimum time between two polls of the store."""
POLL_DELAY_FACTOR = 5
"""Delay after a poll, as a multiple of its duration, so that a live page cannot keep a busy store busy."""
MAX_POLLED_RUNS = 50
"""Newest runs read per poll."""
MAX_INITIAL_EVENTS = 30
"""Limit of recent events sent at the start."""
MAX_POLLS = 600
"""Limit of polls per connection. The browser then reconnects, so forgotten tabs hold no connection."""


def build_tail_reader(tenant: str, page_query: PageQuery) -> TailReader:
    return TailReader(page_query.query(STEP_SPEC), page_query.now - START_LOOKBACK_MS, MAX_POLLED_RUNS, tenant)


async def stream_events(
    poll: Callable[[], Any],
    should_stop: Callable[[], bool],
    interval: float = POLL_INTERVAL_SECONDS,
    max_polls: int = MAX_POLLS,
) -> AsyncIterator[str]:
    """Yield server-sent events until the browser disconnects, the server stops or the poll limit is reached."""
    yield "retry: 2000\n\n"
    is_first = True
    for _ in range(max_polls):
        if should_stop():
            return
        poll_started = time.monotonic()
        fresh = await poll()
        poll_seconds = time.monotonic() - poll_started
        for event, agent in fresh[-MAX_INITIAL_EVENTS:] if is_first else fresh:
            yield f"data: {encode(to_live_event(event, agent)).decode()}\n\n"
        if is_first:
            yield "event: ready\ndata: {}\n\n"
            is_first = False
        await asyncio.sleep(max(interval, POLL_DELAY_FACTOR * poll_seconds))


def to_live_event(event: StepEnded | RunEnded, agent: str) -> dict[str, Any]:
    """Convert an event into one row of the live page. The script inserts the values as text, not as HTML."""
    if isinstance(event, RunEnded):
        run = event.run
        return {
            "key": f"{run.id}/ended",
            "at": _time(run.ended_at or run.started_at),
            "mark": "■",
            "look": "lost" if run.end_reason != "finished" else "quietly",
            "agent": _plain_text(agent, 40),
            "name": "run ended",
            "text": str(run.end_reason),
            "took": _plain_text(formatting.seconds(((run.ended_at or run.started_at) - run.started_at) / 1000), 20),
            "href": formatting.detail_path("runs", run.id),
        }
    step = event.step
    failure = step.failure
    return {
        "key": f"{step.run}/{step.seq}",
        "at": _time(step.started_at + int(step.duration_seconds * 1000)),
        "mark": "✕" if step.has_failed else "✓" if step.outcome == "success" else "\u2013",
        "look": "lost" if step.has_failed else "won" if step.attempt > 1 else "ok",
        "agent": _plain_text(agent, 40),
        "name": _plain_text(step.name or step.type, 60),
        "text": _plain_text(f"{failure.kind}: {failure.message}", 160) if failure is not None else step.outcome,
        "took": _plain_text(formatting.seconds(step.duration_seconds), 20),
        "attempt": step.attempt,
        "href": formatting.detail_path("runs", step.run),
    }


def _time(millis: int) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(millis / 1000))


def _plain_text(text: Any, limit: int) -> str:
    return formatting.line(text, limit).unescape()
