"""Texts are erased from every field whose values mulligan does not define, and from the journals of processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mulligan.contract.store import DEFAULT_TENANT, ForgetRequest
from mulligan.core.events import RunStarted, StepEnded
from mulligan.core.failure import Remedy
from mulligan.core.records import Change, MessagePart, RecordedMessage, Recovery, Run, Step
from mulligan.journal import Journal, decode_events, event_frame, read_frames
from mulligan.store.erasure import ERASED_MARK, erase_text, scrub_journals
from mulligan.store.sqlite import SqliteStore


def test_text_is_erased_from_the_free_source_of_a_recovery() -> None:
    recovery = Recovery(remedy=Remedy.REPAIR, source="memory of 4711-0815")
    step = Step(run="run_1", seq=1, call=1, name="pay", started_at=0, recovery=recovery)
    erased = erase_text(step, "4711-0815")
    assert erased.recovery is not None
    assert erased.recovery.source == f"memory of {ERASED_MARK}"


def test_values_that_mulligan_defines_stay() -> None:
    change = Change(path="k", operation="substitute", before="call me", after="call", source="call")
    assert erase_text(change, "call") == Change(
        path="k", operation="substitute", before=f"{ERASED_MARK} me", after=ERASED_MARK, source="call"
    )


SECRET = 'ze"bra-4711'


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "a.db.journals")
    for event in (
        RunStarted(Run(id="run_a", session="s", context=SECRET)),
        StepEnded(Step(run="run_a", seq=1, call=1, name="fetch", arguments={"q": SECRET})),
        RunStarted(Run(id="run_b")),
        StepEnded(Step(run="run_b", seq=1, call=1, name="search", arguments={"q": "other"})),
    ):
        journal.write(event_frame(event))
    return journal


def test_what_a_forgotten_tool_returned_is_scrubbed_from_messages_in_journals(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.db.journals")
    told = MessagePart(type="result", name="fetch", text="the address of Ada Lovelace")
    step = Step(run="run_a", seq=1, call=1, type="model", name="ask", messages=((1, 2),))
    said = RecordedMessage(role="user", parts=(MessagePart(text="Where?"),), number=1)
    journal.write(event_frame(StepEnded(step, (said, RecordedMessage(role="tool", parts=(told,), number=2)))))
    short = RecordedMessage(role="tool", parts=(MessagePart(type="result", name="f", text="1"),), number=1)
    journal.write(event_frame(StepEnded(step, (short,))))

    assert scrub_journals(journal.path.parent, ForgetRequest(tool="fetch"), ()) == 1
    assert scrub_journals(journal.path.parent, ForgetRequest(tool="f"), ()) == 1

    assert b"Lovelace" not in journal.path.read_bytes()
    (_, kept), *others = decode_events(read_frames(journal.path))
    assert kept == StepEnded(
        step, (said, RecordedMessage(role="tool", parts=(MessagePart(type="result", text=ERASED_MARK),), number=2))
    )
    assert not any(isinstance(event, StepEnded) and event.messages == (short,) for _, event in others)


def left(journal: Journal) -> str:
    return repr([event for _, event in decode_events(read_frames(journal.path))])


@pytest.mark.parametrize(
    ("what", "runs", "count"),
    [
        (ForgetRequest(text=SECRET), (), 2),
        (ForgetRequest(run="run_a"), ("run_a",), 2),
        (ForgetRequest(session="s"), ("run_a",), 2),
        (ForgetRequest(tool="fetch"), (), 1),
        (ForgetRequest(run="run_x"), ("run_x",), 0),
    ],
)
def test_records_are_overwritten_in_place(tmp_path, journal, what, runs, count):
    ends = [frame.offset for frame in read_frames(journal.path)]
    assert scrub_journals(journal.path.parent, what, runs) == count
    assert [frame.offset for frame in read_frames(journal.path)] == ends
    assert "'other'" in left(journal)
    assert ("4711" in left(journal)) == (count < 2)
    assert ("fetch" in left(journal)) == (what.text is not None or count == 0)


def test_its_owner_goes_on_writing(journal):
    scrub_journals(journal.path.parent, ForgetRequest(text=SECRET), ())
    journal.write(event_frame(RunStarted(Run(id="run_later"))))
    assert "run_later" in left(journal)


def test_a_folder_that_is_not_there_holds_nothing(tmp_path):
    assert scrub_journals(tmp_path / "none", ForgetRequest(text=SECRET), ()) == 0


def test_a_store_that_forgets_looks_into_its_journals(tmp_path, journal):
    store = SqliteStore(tmp_path / "a.db")
    store.append(
        DEFAULT_TENANT, [event for _, event in decode_events(read_frames(journal.path))], journal.name, journal.offset
    )
    assert store.forget(DEFAULT_TENANT, ForgetRequest(session="s")).runs == 1
    assert b"4711" not in journal.path.read_bytes()
    assert "'other'" in left(journal)
    store.close()
