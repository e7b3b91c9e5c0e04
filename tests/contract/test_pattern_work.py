"""Patterns as work, in every store: owner, state, link and comments, and what reopens a resolved pattern."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from stores import Writer

from mulligan.contract.audit import Actor, AuditQuery, set_actor
from mulligan.contract.store import (
    DAY,
    DEFAULT_TENANT,
    ForgetRequest,
    PatternCommand,
    PatternQuery,
    Store,
    now,
)
from mulligan.core.events import RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, StoreError
from mulligan.core.records import Pattern, Run, Step, pattern_id

SLOW = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "too slow", fingerprint="f-slow")
ID = pattern_id("search", "f-slow")
_numbers = itertools.count()


def fail(write: Writer, at: int, version: str | None = None, times: int = 1) -> None:
    id = f"run_{next(_numbers)}"
    steps = [Step(run=id, seq=n, call=n, name="search", outcome="failure", failure=SLOW, started_at=at)
             for n in range(1, times + 1)]  # fmt: skip
    write(RunStarted(Run(id=id, started_at=at, version=version)), *map(StepEnded, steps))


def decide(store: Store, action: Any, **fields: Any) -> Pattern:
    pattern = store.update_pattern(DEFAULT_TENANT, PatternCommand(action=action, pattern=ID, **fields))
    assert pattern is not None
    return pattern


def find(store: Store, **query: Any) -> list[Pattern]:
    return store.patterns(DEFAULT_TENANT, PatternQuery(**query))


@pytest.mark.parametrize(
    ("resolved_in", "before", "older", "newer"),
    [("1.10.0", "1.9", "1.9.5", "1.11"), ("b41f", "a3c9", "a3c9", "0e77"), ("2.0", "2.0-rc1", "2.0-rc2", "2.0")],
)
def test_a_resolved_pattern_reopens_in_a_version_that_is_not_older(store, write, resolved_in, before, older, newer):
    fail(write, 1000, before)
    assert decide(store, "resolve", at=2000, text=resolved_in).status == "resolved"
    fail(write, 3000, older)
    assert store.pattern(DEFAULT_TENANT, ID).status == "resolved"
    assert [pattern.id for pattern in find(store, state="resolved")] == [ID]

    fail(write, 4000, newer)
    (regressed,) = find(store, state="regressed")

    assert (regressed.state, regressed.reopened, regressed.regressed_version) == ("active", 1, newer)
    assert (regressed.regressed_at, regressed.resolved_version) == (4000, resolved_in)
    assert decide(store, "resolve", at=5000, text=newer).reopened == 1


def test_an_occurrence_without_a_version_reopens_a_pattern(store, write):
    fail(write, 1000, "1.0")
    decide(store, "resolve", at=2000, text="1.1")
    fail(write, 3000)

    assert store.pattern(DEFAULT_TENANT, ID).status == "regressed"
    assert decide(store, "acknowledge", at=4000).status == "acknowledged"


def test_a_pattern_is_muted_until_a_time_or_while_it_is_rare(store, write):
    fail(write, 1000, times=3)
    assert decide(store, "mute", at=2000, until=now() + DAY).muted_until is not None
    assert find(store) == []
    assert decide(store, "mute", at=2000, until=3000).status == "new"

    assert decide(store, "mute", at=2000, max_per_day=2).state == "muted"
    fail(write, 3000, times=2)
    fail(write, DAY + 5000, times=2)
    assert store.pattern(DEFAULT_TENANT, ID).state == "muted"
    fail(write, DAY + 6000)
    assert store.pattern(DEFAULT_TENANT, ID).state == "active"


def test_a_pattern_has_an_owner_an_issue_and_a_history(store, write):
    fail(write, 1000)
    set_actor(Actor("ann"))
    decide(store, "assign", at=2000, text="me")
    decide(store, "link", at=3000, text="https://issues.example.com/42?a=b")
    pattern = decide(store, "comment", at=4000, text="Known: <b>see</b> password=hunter2secret9")

    ann = pattern.owner
    assert ann in ("ann", "local")  # a server knows the caller by the name of the token
    assert (pattern.owner, pattern.link) == (ann, "https://issues.example.com/42?a=b")
    assert [(event.action, event.by, event.at) for event in pattern.history] == [
        ("comment", ann, 4000), ("link", ann, 3000), ("assign", ann, 2000),
    ]  # fmt: skip
    assert pattern.history[0].text.startswith("Known: ")
    assert "hunter2secret9" not in pattern.history[0].text
    assert [found.id for found in find(store, owner="me")] == [ID]
    assert find(store, owner="bob") == []
    assert store.patterns("other", PatternQuery(owner=ann)) == []
    [entry] = [entry for entry in store.audit(DEFAULT_TENANT, AuditQuery()) if entry.action == "pattern.assign"]
    assert entry.detail == f"to {ann}"
    assert (decide(store, "assign").owner, decide(store, "link").link) == ("", "")


@pytest.mark.parametrize(
    "link",
    ["javascript:alert(1)", "ftp://host/x", "https://user:pw@host/1", "https://", "https://h/\n1", 'https://h/"x',
     "https://h/<!channel>", "https://h/" + "a" * 500, "//host/x", "https://[host"],
)  # fmt: skip
def test_a_link_that_is_no_plain_web_address_is_refused(store, write, link):
    fail(write, 1000)
    with pytest.raises(StoreError, match="Invalid link"):
        decide(store, "link", text=link)
    for action, fields in (("mute", {"text": "x"}), ("comment", {}), ("resolve", {"max_per_day": 1}),
                           ("assign", {"text": "a" * 81}), ("assign", {"text": "ann@example.com"})):  # fmt: skip
        with pytest.raises(StoreError):
            decide(store, action, **fields)
    assert store.pattern(DEFAULT_TENANT, ID).history == ()


def test_a_forgotten_text_is_gone_from_owner_link_and_comments(store, write):
    fail(write, 1000)
    decide(store, "assign", text="zebra-team")
    decide(store, "link", text="https://issues.example.com/zebra")
    decide(store, "comment", text="Ask the zebra team.")
    store.forget(DEFAULT_TENANT, ForgetRequest(text="zebra"))

    pattern = store.pattern(DEFAULT_TENANT, ID)
    assert (pattern.owner, pattern.link) == ("[forgotten]-team", "")
    assert [event.text for event in pattern.history] == [
        "Ask the [forgotten] team.", "https://issues.example.com/[forgotten]", "[forgotten]-team",
    ]  # fmt: skip
    store.forget(DEFAULT_TENANT, ForgetRequest(tool="search"))
    fail(write, 5000)
    assert store.pattern(DEFAULT_TENANT, ID).history == ()
