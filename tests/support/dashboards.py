"""A dashboard on loopback with a made-up week in it, or with nothing, for tests and pictures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

pytest.importorskip("jinja2", reason="needs the extra: pip install 'mulligan[server]'")

import taught
from agents_week import fill, histories
from servers import Running, served

from mulligan.contract.store import DAY, DEFAULT_TENANT, FixQuery, LessonQuery, PatternQuery, RunQuery, SessionQuery
from mulligan.core.records import History
from mulligan.dashboard.pages import build_routes

NOW = 1_790_000_000_000 // DAY * DAY + 15 * 3_600_000
"""By this clock the week ends: a Monday afternoon in September 2026."""


class Shown(NamedTuple):
    """A dashboard that listens, and where its pages are."""

    running: Running
    pages: dict[str, str]

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.running.port}{path}"

    def entry(self) -> str:
        """The one-time address, for one browser."""
        return self.url(f"/enter/{self.running.server.browser_sessions.ticket}")


@contextlib.contextmanager
def week(folder: Path, now: int = NOW, **more: Any) -> Iterator[Shown]:
    """140 runs of three agents, by a clock that stands still."""
    with served(folder, groups=(build_routes,), clock=lambda: now, **more) as running:
        fill(running.store, earlier(now), journal="earlier")
        week_ago = now - 7 * DAY  # so that there is something to say of before and since
        running.store.consolidate(DEFAULT_TENANT, week_ago)
        for lesson in running.store.lessons(DEFAULT_TENANT, LessonQuery(source="learned", now=week_ago)):
            running.store.decide_lesson(DEFAULT_TENANT, lesson.id, "approve", week_ago)
        fill(running.store, histories(now))
        running.store.consolidate(DEFAULT_TENANT, now)
        running.store.save_lesson(DEFAULT_TENANT, taught.seed())
        running.store.save_lesson(DEFAULT_TENANT, taught.written(tool="find_orders"))
        yield Shown(running, pages(running, now))


@contextlib.contextmanager
def empty(folder: Path, **more: Any) -> Iterator[Shown]:
    with served(folder, groups=(build_routes,), **more) as running:
        yield Shown(running, {"overview": "/"})


def earlier(now: int) -> list[History]:
    """Some of the week before, so that there is something to compare with."""
    replace = msgspec.structs.replace
    return [
        replace(
            history,
            run=replace(history.run, id=f"{history.run.id}b"),
            steps=tuple(replace(step, run=f"{step.run}b") for step in history.steps),
            links=(),
            compactions=(),
        )
        for history in histories(now - 7 * DAY, seed=23)[:90]
    ]


def pages(running: Running, now: int) -> dict[str, str]:
    """Every page there is, by name; of lists also one."""
    store = running.store
    run = max(
        store.runs(DEFAULT_TENANT, RunQuery(status="recovered", tool="find_orders", limit=20)),
        key=lambda h: len(h.links),
    )
    lost = store.runs(DEFAULT_TENANT, RunQuery(status="partial", limit=1))[0]
    pattern = store.patterns(DEFAULT_TENANT, PatternQuery(tool="find_orders"))[0]
    fix = store.fixes(DEFAULT_TENANT, FixQuery(now=now, limit=1))[0]
    lesson = store.lessons(DEFAULT_TENANT, LessonQuery(source="learned", now=now, limit=1))[0]
    session = store.sessions(DEFAULT_TENANT, SessionQuery(limit=1))[0]
    return {
        "overview": "/",
        "overview-24h": "/?range=24h",
        "overview-1h": "/?range=1h",
        "overview-all": "/?range=all",
        "overview-30d": "/?range=30d&agent=gardener",
        "overview-tool": "/?tool=find_orders",
        "patterns": "/patterns",
        "pattern": f"/patterns/{pattern.id}",
        "runs": "/runs",
        "runs-grouped": "/runs?by=version&order=cost",
        "runs-columns": "/runs?columns=agent&columns=cost&columns=duration",
        "run": f"/runs/{run.run.id}",
        "run-compared": f"/runs/{run.run.id}?with={lost.run.id}",
        "run-partial": f"/runs/{lost.run.id}",
        "tools": "/tools",
        "tool": "/tools/find_orders",
        "tool-timeouts": "/tools/fetch_forecast",
        "agents": "/agents",
        "agent": "/agents/gardener",
        "models": "/models",
        "model": "/models/planner-large",
        "sessions": "/sessions",
        "session": f"/sessions/{session.id}",
        "learned": "/learned",
        "lesson": f"/lessons/{lesson.id}",
        "lesson-seed": f"/lessons/{taught.SEED}",
        "fix": f"/fixes/{fix.id}",
        "impact": "/impact?range=all",
        "compare": "/compare?by=version",
        "compare-times": "/compare?by=time",
        "live": "/live",
        "health": "/health",
        "audit": "/audit",
        "alerts": "/alerts",
        "settings": "/settings",
        "search": "/search?q=limit",
        "search, narrowed": "/search?q=tool:find_orders&agent=receptionist",
        "search without a hit": "/search?q=nowhere%3Dx",
        "refused": "/?range=1y",
    }
