"""Two tenants on one server: one with a canary in every record, name and decision, and one who looks for them."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from servers import Client, Running

from mulligan.contract.store import FixQuery, LessonQuery, PatternCommand, PatternQuery, RunQuery
from mulligan.core.records import Lesson
from mulligan.report.alert_targets import Alert
from mulligan.report.alerts import AlertSettings
from mulligan.server.tenant_alerts import load_history
from mulligan.server.tenants import Tenant

OURS, THEIRS = "acme", "globex"
CANARY = "zanzibar"
NUMBER = 471142
"""The canary of what is no text: the value that was right."""

LESSON = "les_0123456789ab"


class Ids(NamedTuple):
    """What the first tenant's records are called, by what they are."""

    run: str
    pattern: str
    fix: str
    lesson: str
    tool: str = f"{CANARY}_tool"
    agent: str = f"{CANARY}-agent"
    session: str = f"{CANARY}-session"
    note: str = f"{CANARY}-note"

    def never(self) -> Ids:
        """Ids of the same form that nobody ever had."""
        return Ids(*(text.replace(CANARY, CANARY[::-1]) if CANARY in text else text[:4] + text[:3:-1] for text in self))


def run(id: str, tool: str, agent: str, said: str, now: int, **more: Any) -> dict[str, Any]:
    """k was refused, and another k worked."""
    steps = [
        {"name": tool, "started_at": now, "duration_seconds": 0.1, "arguments": {"k": 9, "q": said},
         "failure": {"message": f"k is too small: {said}", "type": "tool", "code": "invalid_arguments"}},
        {"name": tool, "started_at": now + 200, "duration_seconds": 0.1, "arguments": {"k": NUMBER, "q": said},
         "result": said},
        {"name": tool, "type": "model", "started_at": now + 400, "duration_seconds": 0.1, "metadata": {"model": said}},
    ]  # fmt: skip
    return {
        "id": id,
        "agent": agent,
        "started_at": now,
        "ended_at": now + 900,
        "end_reason": "finished",
        "steps": steps,
        **more,
    }


def ours(running: Running) -> Ids:
    """Everything that a tenant can have, with the canary in all of it."""
    store, now = running.store, int(time.time() * 1000)
    ids = Ids("", "", "", "")
    for number in range(9):
        who = running.holding("ingest", tenant=OURS, name=f"{CANARY}-{number}", principal=f"{CANARY}-{number % 3}")
        said = f"{CANARY} said so"
        about = {"session": ids.session, "context": said, "version": CANARY, "environment": CANARY,
                 "metadata": {"note": said}}  # fmt: skip
        sent = [
            run(f"run_{CANARY}_{number}", ids.tool, ids.agent, said, now - 60_000 + number, **about),
            run(f"run_{CANARY}_search_{number}", "search", ids.agent, "the same for all", now - 50_000 + number),
        ]
        assert who.post("/v1/runs", sent).status == 200
    store.put(OURS, "session", ids.note, CANARY.encode())
    store.put(OURS, "note", ids.note, CANARY.encode())
    store.consolidate(OURS, now)
    pattern = store.patterns(OURS, PatternQuery(tool=ids.tool))[0]
    store.update_pattern(OURS, PatternCommand(action="mute", pattern=pattern.id, at=now))
    store.update_pattern(OURS, PatternCommand(action="unmute", pattern=pattern.id, at=now))
    for action, text in (("assign", CANARY), ("comment", CANARY), ("link", f"https://tracker.example.com/{CANARY}")):
        store.update_pattern(OURS, PatternCommand(action=action, pattern=pattern.id, at=now, text=text))
    server = running.server
    server.tenants.create(Tenant(OURS, alerts=AlertSettings(targets=(f"pagerduty:{CANARY * 4}",))))
    server.tenants.refresh()
    server.alerts.add(OURS, [Alert("person_needed", f"{CANARY} failed", now, CANARY, run=f"run_{CANARY}_0")])
    fix = store.fixes(OURS, FixQuery(tool=ids.tool, now=now))[0]
    assert store.decide(OURS, fix.id, True, now)
    store.save_lesson(
        OURS, Lesson(id=LESSON, tool=ids.tool, mistake=f"{CANARY} mistake", correction=f"{CANARY} correction")
    )
    store.decide_lesson(OURS, LESSON, "approve", now)
    store.consolidate(OURS, now)  # or the server does so later, while it is asked
    assert store.lessons(OURS, LessonQuery(now=now))
    return ids._replace(run=f"run_{CANARY}_0", pattern=pattern.id, fix=fix.id, lesson=LESSON)


def theirs(running: Running) -> Client:
    """The other tenant, with records of a tool that both have, and a token that may do everything."""
    admin = running.holding("admin", tenant=THEIRS, name="somebody")
    now = int(time.time() * 1000) - 40_000
    sent = run("run_theirs", "search", "their-agent", "the same for all", now)
    sent["steps"] = sent["steps"][:1]
    assert admin.post("/v1/runs", sent).status == 200
    return admin


def everything(running: Running) -> dict[str, Any]:
    """What the first tenant has, to be held against what it has later."""
    store, now = running.store, 1_900_000_000_000
    return {
        "runs": list(store.export(OURS)),
        "patterns": store.patterns(OURS, PatternQuery(limit=100)),
        "fixes": store.fixes(OURS, FixQuery(now=now, limit=100)),
        "lessons": store.lessons(OURS, LessonQuery(now=now)),
        "sessions": store.runs(OURS, RunQuery(session=f"{CANARY}-session", limit=100)),
        "shelf": {kind: {key: store.get(OURS, kind, key) for key in store.keys(OURS, kind)}
                  for kind in ("session", "note", "key")},
        "alerts": load_history(store, OURS),
        "alert rules": running.server.tenants.find(OURS),
        "journals": sorted(store.journals(OURS)),
        "health": store.health(OURS),
    }  # fmt: skip
