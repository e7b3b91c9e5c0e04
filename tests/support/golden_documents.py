"""Golden documents: what programs read of mulligan, stored as JSON beside the tests.

`pytest --update-golden` rewrites them. Read the diff before you commit it: each line is a break for somebody's script,
or a rename that was meant.
"""

from __future__ import annotations

import difflib
import json
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

import mulligan
from mulligan.contract.store import DAY, DEFAULT_TENANT, SCHEMA_KIND, update_schema
from mulligan.core.events import AnyEvent, ContextCompacted, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Change, Compaction, Link, Recovery, RecoveryStop, Run, Step, encode
from mulligan.learn.tracker import Tracker
from mulligan.store.sqlite import SqliteStore

FOLDER = Path(__file__).parent.parent / "golden"
NOW = 20_000 * DAY + 12 * 3_600_000
"""The clock of all golden documents, in UTC milliseconds."""
MASKED_FIELDS = frozenset({"bytes", "cpu", "engine", "python", "size", "sqlite"})
"""Numbers and texts that differ between machines."""
MASKS = (
    (re.compile(r"\b(act|client|fix|les|mul|tok)_(?!decisions\b)[0-9a-zA-Z_]{4,}"), r"\1_<id>"),
    (re.compile(re.escape(mulligan.__version__)), "<version>"),
)
"""Ids that are random, or hashes of encoded records."""


def freeze_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the wall clock stand still at `NOW`."""
    monkeypatch.setattr(time, "time", lambda: NOW / 1000)
    monkeypatch.setattr(time, "time_ns", lambda: NOW * 1_000_000)


def mask(value: Any, folders: Mapping[str, str] = MappingProxyType({}), field: str = "") -> Any:
    """Replace what differs between machines and processes."""
    if isinstance(value, dict):
        return {mask(key, folders): mask(member, folders, key) for key, member in value.items()}
    if isinstance(value, list):
        members = [mask(member, folders, field) for member in value]
        is_by_size = all(isinstance(member, dict) and {"name", "bytes"} <= set(member) for member in members)
        return sorted(members, key=lambda member: str(member["name"])) if is_by_size else members
    if field in MASKED_FIELDS and value is not None:
        return f"<{field}>"
    if not isinstance(value, str):
        return value
    for folder, label in folders.items():
        value = value.replace(folder, label)
    for pattern, replacement in MASKS:
        value = pattern.sub(replacement, value)
    return value


def compare(name: str, value: Any, should_update: bool) -> None:
    """Compare a document with its golden file, or rewrite that."""
    path = FOLDER / f"{name}.json"
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    if should_update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    expected = path.read_text() if path.exists() else ""
    if text != expected:
        lines = difflib.unified_diff(
            expected.splitlines(), text.splitlines(), f"tests/golden/{name}.json", "now", lineterm=""
        )
        pytest.fail("\n".join([*lines, "If this was meant: pytest --update-golden " + "tests/test_golden.py"]), False)


# A small store


REJECTED = Failure.of(
    Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO),
    "days must be 10 or less, got 50",
    fingerprint="1:days",
    evidence=("text",),
)
TIMEOUT = Failure.of(
    Kind("tool", "timeout", Remedy.RETRY, TookEffect.UNKNOWN),
    "timed out after 3 s",
    fingerprint="1:timeout",
    retry_after=1.5,
)


def repaired_run(number: int) -> list[AnyEvent]:
    """Return the events of a run in which mulligan repaired a call."""
    started = NOW - (9 - number) * DAY
    run = Run(
        id=f"run_repaired{number}", agent=f"agent-{number % 2}", version="1.0", environment="production",
        session="session-1", started_at=started,
    )  # fmt: skip
    city, days = ("Rome", "Bern", "Oslo", "Lima", "Cairo", "Paris")[number], 20 + 7 * number
    clamp = Change(path="days", operation="clamp", before=days, after=10, source="error")
    failed = Step(
        run=run.id, seq=1, call=1, name="forecast", key="shop:forecast", arguments={"city": city, "days": days},
        outcome="failure", started_at=started + 10, duration_seconds=0.2, failure=REJECTED, effects="none",
        links_decided=True,
    )  # fmt: skip
    link = Link(run=run.id, failed_call=1, recovering_call=1, method="repair", changes=(clamp,), evidence=("attempt",))
    recovery = Recovery(remedy=Remedy.REPAIR, changes=(clamp,), source="error", confidence=0.9)
    repaired = Step(
        run=run.id, seq=2, call=1, attempt=2, name="forecast", key="shop:forecast",
        arguments={"city": city, "days": 10}, result=f"sunny {number}", started_at=started + 300, duration_seconds=0.1,
        recovery=recovery, links=(link,),
    )  # fmt: skip
    model = Step(
        run=run.id, seq=3, call=3, type="model", name="small-1", started_at=started + 500, duration_seconds=1.5,
        tokens={"input": 100, "output": 20},
    )  # fmt: skip
    ended = msgspec.structs.replace(run, ended_at=started + 3000, end_reason="finished")
    return [RunStarted(run), StepEnded(failed), StepEnded(repaired), StepEnded(model), RunEnded(ended)]


def unrecovered_run() -> list[AnyEvent]:
    """Return the events of a run whose last call failed twice, with a compaction in between."""
    started = NOW - DAY // 2
    run = Run(id="run_unrecovered", agent="agent-1", session="session-1", started_at=started, context="ship the order")
    steps = [
        Step(
            run=run.id, seq=1, call=1, name="ship", server="shop", arguments={"order": 7}, outcome="failure",
            started_at=started + 10, duration_seconds=3.0, failure=TIMEOUT, effects="idempotent", links_decided=True,
        ),
        Step(
            run=run.id, seq=2, call=1, attempt=2, name="ship", server="shop", arguments={"order": 7}, outcome="failure",
            started_at=started + 5000, duration_seconds=3.0, failure=TIMEOUT, effects="idempotent", links_decided=True,
            recovery=Recovery(remedy=Remedy.RETRY, backoff_seconds=1.5),
            stop=RecoveryStop(reason="the attempts are used up"),
        ),
    ]  # fmt: skip
    compaction = Compaction(
        run=run.id, session="session-1", at=started + 6000, reason="too long", steps=2, chars_before=900, chars_after=90
    )
    ended = msgspec.structs.replace(run, ended_at=started + 9000, end_reason="raised")
    return [RunStarted(run), *map(StepEnded, steps), ContextCompacted(compaction), RunEnded(ended)]


def track_session(batches: Iterable[Iterable[AnyEvent]]) -> Tracker:
    """Return what a session remembers of these runs."""
    tracker = Tracker()
    for events in batches:
        for event in events:
            if isinstance(event, RunStarted):
                tracker.begin(event.run.id)
            elif isinstance(event, StepEnded):
                tracker.observe_step(event.step)
    return tracker


def fill_store(path: Path) -> None:
    """Write a store with repaired and unrecovered runs, a promoted fix and its lesson."""
    store = SqliteStore(path)
    try:
        store.put(
            DEFAULT_TENANT,
            SCHEMA_KIND,
            "forecast",
            update_schema(None, "digest-1", NOW - 20 * DAY) or b"",
        )
        batches = [*map(repaired_run, range(6)), unrecovered_run()]
        store.put(DEFAULT_TENANT, "session", "session-1", encode(track_session(batches)))
        for number, batch in enumerate(batches, start=1):
            store.append(DEFAULT_TENANT, batch, "golden", number, "local")
        store.consolidate(DEFAULT_TENANT, NOW)
    finally:
        store.close()
