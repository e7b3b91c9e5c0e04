"""What people change is noted by every store, with who and when, together with the change; nothing takes it away."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mulligan.contract import audit
from mulligan.contract.store import (
    DEFAULT_TENANT,
    AuditEntry,
    AuditNote,
    AuditQuery,
    FixQuery,
    ForgetRequest,
    LessonQuery,
    PatternCommand,
    Retention,
    Revocation,
    Store,
    now,
)
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, StoreError, TookEffect
from mulligan.core.records import Lesson, Run, Step, pattern_id

WRONG = Failure.of(
    Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), "k is 10 at most", fingerprint="f-k"
)
LESSON = Lesson(id="les_0123456789ab", tool="search", mistake="Asking for too much.", correction="Ask for 10.")


@pytest.fixture(autouse=True)
def ann() -> None:
    audit.set_actor(audit.Actor("ann", "command"))


def failed_then_worked(id: str = "run_a") -> list[AnyEvent]:
    run = Run(id=id, agent="a", started_at=1000, session="s")
    return [
        RunStarted(run),
        StepEnded(
            Step(run=id, seq=1, call=1, name="search", arguments={"k": 50, "q": id}, outcome="failure", failure=WRONG)
        ),
        StepEnded(Step(run=id, seq=2, call=2, name="search", arguments={"k": 10, "q": id})),
        RunEnded(Run(id=id, agent="a", started_at=1000, ended_at=1005, end_reason="finished", session="s")),
    ]


def acts_of(store: Store, **query: Any) -> list[AuditEntry]:
    """But for the token by which a store behind a server is asked."""
    return [act for act in store.audit(DEFAULT_TENANT, AuditQuery(**query)) if not act.action.startswith("token.")]


def said(store: Store) -> list[tuple[str, str]]:
    return [(act.action, act.target) for act in reversed(acts_of(store))]


def test_every_decision_is_noted_and_nothing_that_only_happens(store):
    store.append(DEFAULT_TENANT, failed_then_worked(), "journal", 1)
    (fix,) = store.fixes(DEFAULT_TENANT, FixQuery(now=2000))
    pattern = pattern_id("search", "f-k")
    store.put(DEFAULT_TENANT, "note", "n", b"x")
    store.consolidate(DEFAULT_TENANT, 2000)
    assert said(store) == []

    store.decide(DEFAULT_TENANT, fix.id, True, 2000)
    store.update_pattern(DEFAULT_TENANT, PatternCommand(action="mute", pattern=pattern, at=2000))
    store.save_lesson(DEFAULT_TENANT, LESSON)
    store.decide_lesson(DEFAULT_TENANT, LESSON.id, "approve", 2000)
    store.revoke(DEFAULT_TENANT, Revocation(principal="mallory"))
    store.forget(DEFAULT_TENANT, ForgetRequest(run="run_a"))
    store.append(DEFAULT_TENANT, failed_then_worked("run_old"), "journal", 2)
    store.prune(DEFAULT_TENANT, Retention(keep_failures=0), now() + 1)

    assert sorted(said(store)) == sorted([
        ("fix.approve", fix.id), ("pattern.mute", pattern), ("lesson.write", LESSON.id), ("lesson.approve", LESSON.id),
        ("memory.revoke", ""), ("prune", ""), ("forget.run", ""),
    ])  # fmt: skip
    acts = {act.action: act for act in acts_of(store)}
    assert acts["memory.revoke"].detail == "principal mallory"
    assert "1 run" in acts["forget.run"].detail
    assert acts["prune"].detail == "1 run, 2 steps"
    assert all(abs(act.at - now()) < 60_000 for act in acts.values())  # by the store's clock, not by who asks
    assert not any(act.action in acts for act in store.audit("theirs", AuditQuery()))


def test_what_changed_nothing_is_not_noted(store):
    assert not store.decide(DEFAULT_TENANT, "fix_none", True, 1)
    assert store.update_pattern(DEFAULT_TENANT, PatternCommand(action="mute", pattern="pat_none", at=1)) is None
    assert store.decide_lesson(DEFAULT_TENANT, "les_none", "approve", 1) is None
    store.prune(DEFAULT_TENANT, Retention(), now(), dry_run=True)
    store.prune(DEFAULT_TENANT, Retention(), now())
    store.save_lesson(DEFAULT_TENANT, LESSON)
    store.save_lesson(DEFAULT_TENANT, LESSON)
    assert said(store) == [("lesson.write", LESSON.id)]


def test_many_lessons_that_are_written_at_once_are_one_entry(store):
    seeds = [msgspec.structs.replace(LESSON, id=f"les_{number:012x}", source="seed") for number in range(20)]
    assert store.save_lessons(DEFAULT_TENANT, seeds[:10]) == [True] * 10
    assert store.save_lessons(DEFAULT_TENANT, seeds) == [False] * 10 + [True] * 10
    assert store.save_lessons(DEFAULT_TENANT, seeds) == [False] * 20
    assert store.save_lessons(DEFAULT_TENANT, []) == []
    assert [(act.action, act.target, act.detail) for act in acts_of(store)] == [
        ("lesson.write", "seed", "10 lessons")
    ] * 2
    assert len(store.lessons(DEFAULT_TENANT, LessonQuery(limit=100))) == 20


def test_it_says_who(store):
    store.save_lesson(DEFAULT_TENANT, LESSON)
    (act,) = acts_of(store)
    if hasattr(store, "of"):  # behind a server: who holds the token
        assert (act.via, act.token[:4], act.by) == ("api", "tok_", "local")
    else:
        assert (act.via, act.token, act.by) == ("command", "", "ann")


def test_it_is_asked_for_by_who_what_and_when_and_page_by_page(store):
    for number in range(7):
        verdict = "disable" if number % 2 else "approve"
        if number == 0:
            store.save_lesson(DEFAULT_TENANT, LESSON)
        store.decide_lesson(DEFAULT_TENANT, LESSON.id, verdict, number)  # type: ignore[arg-type]
    every = acts_of(store)
    assert len(every) == 8
    assert [(act.at, act.id) for act in every] == sorted(((act.at, act.id) for act in every), reverse=True)
    assert len(acts_of(store, action="lesson.disable")) == 3
    assert len(acts_of(store, action="lesson.")) == 8
    assert acts_of(store, action="lesson") == []
    assert acts_of(store, by="bob") == []
    assert len(acts_of(store, by=every[0].by)) == 8
    assert acts_of(store, since=now() + 60_000) == []
    assert acts_of(store, until=1) == []
    first = acts_of(store, limit=5)
    rest = acts_of(store, limit=5, before=(first[-1].at, first[-1].id))
    assert [*first, *rest] == every


def test_what_is_forgotten_is_not_told_by_the_log_either(store):
    store.append(DEFAULT_TENANT, failed_then_worked(), "journal", 1)
    store.revoke(DEFAULT_TENANT, Revocation(principal="secret-name"))
    store.forget(DEFAULT_TENANT, ForgetRequest(text="secret-name"))
    store.forget(DEFAULT_TENANT, ForgetRequest(session="s"))
    store.forget(DEFAULT_TENANT, ForgetRequest(tool="search"))
    acts = acts_of(store)
    assert len(acts) == 4
    assert not any("secret-name" in str(act) or "search" in str(act) for act in acts)


def test_secrets_in_it_are_hidden(store):
    key = "sk-proj-Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MGFiY2RlZmdo"
    store.revoke(DEFAULT_TENANT, Revocation(principal=f"bot {key}\x1b[31m"))
    (act,) = acts_of(store)
    assert key not in act.detail
    assert "\x1b" not in act.detail


def test_an_entry_comes_with_its_row_or_not_at_all(store):
    act = audit.build_entry("tenant.set", now(), "acme")
    if hasattr(store, "of"):
        with pytest.raises(StoreError, match="can be changed on the server only"):
            store.compare_and_set("", "server", "k", None, b"1", AuditNote("acme", act))
        return
    assert store.compare_and_set("", "server", "k", None, b"1", AuditNote("acme", act))
    assert not store.compare_and_set(
        "", "server", "k", b"other", b"2", AuditNote("acme", audit.build_entry("tenant.set", now(), "acme"))
    )
    assert store.audit("acme", AuditQuery()) == [act]


def test_the_log_outlives_its_tenant(store):
    store.save_lesson("acme", LESSON)
    if hasattr(store, "of"):  # a server's tenants are managed where its store is
        with pytest.raises(StoreError, match="on the server: mulligan tenant remove"):
            store.erase("acme")
        return
    store.erase("acme")
    assert [each.action for each in reversed(store.audit("acme", AuditQuery()))] == ["lesson.write", "tenant.erase"]
    assert store.erase("acme") == 0
