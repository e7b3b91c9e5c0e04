"""What a dead process left in its journal comes into the store: once, whole, and whatever interrupts it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from stores import success_record

from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, StoreError
from mulligan.core.fast_path import SuccessRecord, redact_records
from mulligan.core.record_redaction import RecordRedactor
from mulligan.core.records import History, Run, Step
from mulligan.journal import (
    EVENT_FRAME,
    SUCCESS_FRAME,
    Journal,
    decode_events,
    encode_frame,
    event_frame,
    read_frames,
    success_frame,
)
from mulligan.record import journal_import
from mulligan.record.journal_import import count_dropped, forget_removed_journals, recover_journals
from mulligan.redaction import Redactor
from mulligan.store.sqlite import MemoryStore, SqliteStore


def success(run: str, seq: int = 1, alone: bool = True, **arguments: Any) -> SuccessRecord:
    about = Run(id=run, agent="clerk", environment="test", session="s_1", parent="run_p", started_at=1000)
    return success_record(run, seq, arguments, about if alone else None)


def in_short(each: SuccessRecord) -> bytes:
    each.template.prepare(RecordRedactor(Redactor()))
    return success_frame(each)


def left(folder: Path, *written: bytes) -> Path:
    """The journal of a process that has died."""
    journal = Journal(folder)
    for frame in written:
        journal.write(frame)
    journal.close(remove=False)
    return journal.path


def histories(store: MemoryStore | SqliteStore) -> dict[str, History]:
    return {each.run.id: each for each in store.runs(DEFAULT_TENANT, RunQuery(limit=100_000))}


def test_a_success_in_short_comes_back_as_the_events_it_stood_for(tmp_path):
    path = left(tmp_path, in_short(success("run_a", query="secret")))
    ((first, step), (second, run)) = decode_events(read_frames(path))
    assert first == second  # one frame: both or none
    assert step == StepEnded(
        Step(
            run="run_a",
            seq=1,
            call=1,
            name="search",
            arguments={"query": {"$str": 6}},
            started_at=1000,
            duration_seconds=0.25,
        )
    )
    assert run == RunEnded(
        Run(
            id="run_a",
            agent="clerk",
            environment="test",
            session="s_1",
            parent="run_p",
            started_at=1000,
            ended_at=1250,
            end_reason="finished",
        )
    )


def test_a_number_too_large_for_the_format_costs_itself_alone(tmp_path):
    each = success("run_a", huge=10**30, small=7)
    path = left(tmp_path, in_short(each))
    (_, step), _ = decode_events(read_frames(path))
    assert step.step.arguments == {"huge": {"$type": "int"}, "small": 7}


def test_an_event_comes_back_as_it_was(tmp_path):
    failed = StepEnded(
        Step(run="run_a", seq=1, call=1, outcome="failure", failure=Failure.of(Kind("tool", "timeout"), "late"))
    )
    path = left(tmp_path, event_frame(failed))
    assert [event for _, event in decode_events(read_frames(path))] == [failed]


def test_what_was_left_is_adopted_and_its_journal_removed(tmp_path):
    store = MemoryStore()
    path = left(
        tmp_path,
        in_short(success("run_a", query="x")),
        event_frame(RunStarted(Run(id="run_b", started_at=5))),
        in_short(success("run_b", alone=False)),
        event_frame(RunEnded(Run(id="run_b", started_at=5, ended_at=9, end_reason="raised"))),
    )
    assert recover_journals(store, DEFAULT_TENANT, tmp_path) == 5
    found = histories(store)
    assert {id: (each.run.end_reason, len(each.steps)) for id, each in found.items()} == {
        "run_a": ("finished", 1),
        "run_b": ("raised", 1),
    }
    assert not path.exists()


def test_a_run_that_was_begun_and_not_ended_is_abandoned_when_it_was_last_heard_of(tmp_path):
    store = MemoryStore()
    left(tmp_path, event_frame(RunStarted(Run(id="run_a", started_at=900))), in_short(success("run_a", alone=False)))
    left(tmp_path, event_frame(RunStarted(Run(id="run_b", started_at=700))))
    recover_journals(store, DEFAULT_TENANT, tmp_path)
    ends = {id: (each.run.end_reason, each.run.ended_at) for id, each in histories(store).items()}
    assert ends == {"run_a": ("abandoned", 1250), "run_b": ("abandoned", 700)}


def test_a_run_is_abandoned_too_where_all_of_it_was_kept_before_its_process_died(tmp_path):
    store = MemoryStore()
    started = RunStarted(Run(id="run_a", started_at=900))
    path = left(tmp_path, event_frame(started))
    store.append(DEFAULT_TENANT, [started], path.stem, path.stat().st_size)
    assert recover_journals(store, DEFAULT_TENANT, tmp_path) == 0
    assert histories(store)["run_a"].run.end_reason == "abandoned"


def test_a_run_that_another_process_has_ended_stays_as_it_was_ended(tmp_path):
    store = MemoryStore()
    started = Run(id="run_a", started_at=900)
    store.append(
        DEFAULT_TENANT, [RunEnded(Run(id="run_a", started_at=900, ended_at=950, end_reason="finished"))], "elsewhere", 1
    )
    left(tmp_path, event_frame(RunStarted(started)))
    recover_journals(store, DEFAULT_TENANT, tmp_path)
    assert histories(store)["run_a"].run.end_reason == "finished"


def test_a_journal_that_comes_again_changes_nothing(tmp_path):
    store = MemoryStore()
    path = left(
        tmp_path, event_frame(RunStarted(Run(id="run_a"))), *(in_short(success("run_a", n, False)) for n in range(1, 9))
    )
    content = path.read_bytes()
    assert recover_journals(store, DEFAULT_TENANT, tmp_path) == 9
    before = histories(store)
    path.write_bytes(content)  # its adopter was killed before it could remove it
    assert recover_journals(store, DEFAULT_TENANT, tmp_path) == 0
    assert histories(store) == before


def test_what_was_kept_with_its_values_is_not_replaced_by_what_the_journal_knows(tmp_path):
    store = MemoryStore()
    path = left(tmp_path, in_short(success("run_a", query="x")), in_short(success("run_b", query="y")))
    first, _ = read_frames(path)
    whole = redact_records([success("run_a", query="x")], RecordRedactor(Redactor()))
    store.append(DEFAULT_TENANT, whole, path.stem, first.offset)
    assert recover_journals(store, DEFAULT_TENANT, tmp_path) == 2
    found = histories(store)
    assert found["run_a"].steps[0].arguments == {"query": "x"}
    assert found["run_b"].steps[0].arguments == {"query": {"$str": 1}}


class Dying(SqliteStore):
    """Dies at its k-th append: before it, or when it is kept and nobody has heard so."""

    def __init__(self, path: Path, dies_at: int, is_kept: bool) -> None:
        super().__init__(path)
        self.left = dies_at
        self.is_kept = is_kept

    def append(self, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int) -> int:
        self.left -= 1
        if self.left == 0 and not self.is_kept:
            raise StoreError("killed")
        kept = super().append(tenant, batch, journal, offset)
        if self.left == 0:
            raise StoreError("killed")
        return kept


@pytest.mark.parametrize("is_kept", [False, True])
def test_wherever_adoption_is_cut_off_the_next_one_loses_nothing_and_doubles_nothing(tmp_path, monkeypatch, is_kept):
    monkeypatch.setattr(journal_import, "BATCH_RECORDS", 3)

    def two_dead_processes(folder: Path) -> None:
        left(folder, *(in_short(success(f"run_{n}", query="x")) for n in range(10)))
        left(
            folder,
            event_frame(RunStarted(Run(id="run_open", started_at=900))),
            *(in_short(success("run_open", n, False)) for n in range(1, 8)),
        )

    expected: dict[str, History] | None = None
    for k in range(1, 100):
        folder = tmp_path / str(k)
        two_dead_processes(folder / "journals")
        store = Dying(folder / "a.db", k, is_kept)
        try:
            recover_journals(store, DEFAULT_TENANT, folder / "journals")
            was_cut_off = False
        except StoreError:
            was_cut_off = True
        store.left = -1
        recover_journals(store, DEFAULT_TENANT, folder / "journals")
        found = histories(store)
        store.close()
        assert len(found) == 11
        assert [step.seq for step in found["run_open"].steps] == list(range(1, 8))
        assert found["run_open"].run.end_reason == "abandoned"
        expected = expected or found
        assert found == expected
        assert list((folder / "journals").iterdir()) == []
        if not was_cut_off:
            assert k > 6
            break


def test_a_journal_of_a_newer_mulligan_is_left_for_it_and_the_others_are_adopted(tmp_path, caplog):
    newer = tmp_path / "1-j_a.journal"
    newer.write_bytes(b"\xf5m2 whatever")
    left(tmp_path, in_short(success("run_a")))
    store = MemoryStore()
    with caplog.at_level(logging.WARNING, logger="mulligan"):
        recover_journals(store, DEFAULT_TENANT, tmp_path)
    assert list(histories(store)) == ["run_a"]
    assert list(tmp_path.iterdir()) == [newer]
    assert "newer mulligan" in caplog.text


def test_a_journal_that_cannot_be_read_is_left_and_the_others_are_adopted(tmp_path, monkeypatch, caplog):
    first, _ = sorted([left(tmp_path, in_short(success("run_a"))), left(tmp_path, in_short(success("run_b")))])
    really = journal_import.OrphanedJournal.frames

    def broken(orphan: Any, start: int = 0) -> Any:
        if orphan.path == first:
            raise OSError(5, "Input/output error")
        return really(orphan, start)

    monkeypatch.setattr(journal_import.OrphanedJournal, "frames", broken)
    store = MemoryStore()
    assert recover_journals(store, DEFAULT_TENANT, tmp_path) == 2
    assert list(tmp_path.iterdir()) == [first]
    assert "Input/output error" in caplog.text


def test_a_frame_nobody_can_read_is_passed_over_and_told(tmp_path, caplog):
    store = MemoryStore()
    left(
        tmp_path,
        encode_frame(1, b"{not json"),
        encode_frame(2, b"\xc1"),
        encode_frame(9, b""),
        in_short(success("run_a")),
    )
    assert recover_journals(store, DEFAULT_TENANT, tmp_path) == 2
    assert list(histories(store)) == ["run_a"]
    assert caplog.text.count("Skipped") == 3


def test_the_journal_of_a_living_process_is_not_touched(tmp_path):
    journal = Journal(tmp_path)
    journal.write(in_short(success("run_a")))
    store = MemoryStore()
    assert recover_journals(store, DEFAULT_TENANT, tmp_path) == 0
    assert journal.path.exists()
    journal.close(remove=True)


def test_where_no_journal_was_ever_made_there_is_nothing_to_adopt(tmp_path):
    assert recover_journals(MemoryStore(), DEFAULT_TENANT, tmp_path / "nowhere") == 0
    assert not (tmp_path / "nowhere").exists()


def test_a_journal_that_is_gone_is_forgotten_and_one_that_is_there_or_was_imported_is_not(tmp_path):
    store = SqliteStore(tmp_path / "a.db")
    folder = tmp_path / "a.db.journals"
    living = Journal(folder)
    living.write(in_short(success("run_a")))
    for number, name in enumerate(
        (living.name, "77-j_aaaaaaaaaaaaaaaa", "journal_bbbbbbbbbbbbbbbb", "import of a file")
    ):
        whole = redact_records([success(f"run_{number}")], RecordRedactor(Redactor()))
        store.append(DEFAULT_TENANT, whole, name, 5)
    forget_removed_journals(store, DEFAULT_TENANT, folder)
    assert sorted(store.journals(DEFAULT_TENANT)) == sorted([living.name, "import of a file"])
    living.close(remove=True)
    forget_removed_journals(store, DEFAULT_TENANT, folder)
    assert store.journals(DEFAULT_TENANT) == ["import of a file"]
    store.close()


def test_a_name_of_a_class_of_its_own_is_told_like_any_other(tmp_path):
    class Name(str):
        __slots__ = ()

    path = left(tmp_path, in_short(success("run_a", **{Name("query"): "secret"})))
    (_, step), _ = decode_events(read_frames(path))
    assert step.step.arguments == {"query": {"$str": 6}}


@pytest.mark.durability
def test_who_may_only_write_to_a_server_adopts_as_well(tmp_path):
    from servers import served  # skips, with the reason, where the extra is not installed

    from mulligan.store.remote import RemoteStore

    folder = tmp_path / "journals"
    path = left(folder, event_frame(RunStarted(Run(id="run_a", started_at=1))))
    with served(tmp_path) as serving:
        serving.store.append(
            DEFAULT_TENANT, [RunEnded(Run(id="run_b", started_at=1, ended_at=2, end_reason="finished"))], "j", 1
        )
        other = left(folder, event_frame(RunStarted(Run(id="run_b", started_at=1))))
        _, secret = serving.server.tokens.create("ingest", 0)
        serving.server.tokens.refresh()
        recover_journals(RemoteStore(f"http://127.0.0.1:{serving.port}", secret, folder), DEFAULT_TENANT, folder)
        assert {id: each.run.end_reason for id, each in histories(serving.store).items()} == {
            "run_a": "abandoned",
            "run_b": "finished",
        }
    assert not path.exists()
    assert not other.exists()


def test_a_journal_that_the_store_does_not_take_holds_up_no_other(tmp_path):
    class Picky(MemoryStore):
        def append(self, tenant, batch, journal, offset, principal=""):
            if any(isinstance(each, StepEnded) and each.step.name == "bad" for each in batch):
                raise ValueError("this is refused")
            return super().append(tenant, batch, journal, offset, principal)

    paths = [
        left(tmp_path, event_frame(StepEnded(Step(run=f"run_{name}", seq=1, call=1, name=name))))
        for name in ("good", "bad", "fine")
    ]
    with pytest.raises(ValueError, match="this is refused"):
        recover_journals(Picky(), DEFAULT_TENANT, tmp_path)
    assert [path.exists() for path in paths] == [False, True, False]


def told(
    prefix: Any = ("tool", "search", ["query"]),
    run: Any = "run_b",
    seq: Any = 1,
    parent: Any = None,
    started: Any = 1.0,
    seconds: Any = 0.25,
    about: Any = ("clerk", None, None, None),
    values: Any = ([6],),
) -> bytes:
    """A frame whose checksum is right, whatever is in it."""
    return encode_frame(
        SUCCESS_FRAME, msgspec.msgpack.encode((prefix, run, seq, parent, started, seconds, about, values))
    )


def deep(payload: bytes, place: bytes, opening: bytes, closing: bytes = b"") -> bytes:
    assert payload.count(place) == 1
    return payload.replace(place, opening * 5000 + place + closing * 5000)


STEP = '{"event":"step.ended","step":{"run":"run_b","seq":1,"call":1,"name":"search","started_at":%s,"arguments":%s}}'
RUN = '{"event":"%s","run":{"id":"run_b","started_at":%s}}'
LARGE = "9" * 25
HOSTILE = {
    "a sort of step there is none of": told(prefix=("nonsense", "search", ["query"])),
    "a type that is a number": told(prefix=(5, "search", ["query"])),
    "a name that is a number": told(prefix=("tool", 5, ["query"])),
    "a name that is missing": told(prefix=("tool", None, ["query"])),
    "a server that is a number": told(prefix=("tool", "search", ["query"], 7)),
    "names that are numbers": told(prefix=("tool", "search", [5])),
    "a prefix that is a text": told(prefix="tool"),
    "a moment that never comes": told(started=float("inf")),
    "a moment that never comes, in a run": told(started=float("inf"), about=None),
    "a moment that is no number": told(started=float("nan"), about=None),
    "a moment that no column holds": told(started=1e300, about=None),
    "a time without end": told(seconds=float("inf")),
    "a place that no column holds": told(seq=2**64 - 1),
    "a length that is missing": told(values=([],)),
    "values that are missing": told(values=()),
    "a run about which too little is said": told(about=("clerk",)),
    "an agent that is a number": told(about=(1, None, None, None)),
    "values within values": encode_frame(SUCCESS_FRAME, deep(msgspec.msgpack.encode(
        (("tool", "search", ["query"]), "run_b", 1, None, 1.0, 0.25, None, (77,))), b"\x4d", b"\x91")),
    "arguments within arguments": encode_frame(EVENT_FRAME, (STEP % ("1", "[" * 5000 + "]" * 5000)).encode()),
    "an attempt at a moment that no column holds": encode_frame(EVENT_FRAME, (STEP % (LARGE, "{}")).encode()),
    "a run that begins when no column says": encode_frame(EVENT_FRAME, (RUN % ("run.started", LARGE)).encode()),
    "a run that ends when no column says": encode_frame(EVENT_FRAME, (RUN % ("run.ended", LARGE)).encode()),
}  # fmt: skip


@pytest.mark.parametrize("frame", HOSTILE.values(), ids=HOSTILE)
def test_a_sound_frame_with_anything_in_it_is_passed_over_and_holds_up_nothing(tmp_path, caplog, frame):
    folder = tmp_path / "journals"
    left(folder, in_short(success("run_a")), frame, in_short(success("run_c")))
    store = SqliteStore(tmp_path / "mulligan.db")
    recover_journals(store, DEFAULT_TENANT, folder)
    assert set(histories(store)) == {"run_a", "run_c"}
    assert "Skipped" in caplog.text
    assert list(folder.iterdir()) == []


def test_what_can_never_be_kept_of_what_was_adopted_is_counted(tmp_path):
    folder = tmp_path / "journals"
    left(folder, in_short(success("run_a")), HOSTILE["an attempt at a moment that no column holds"])
    store = SqliteStore(tmp_path / "mulligan.db")
    recover_journals(store, DEFAULT_TENANT, folder)
    assert count_dropped(store, DEFAULT_TENANT) == 1


@pytest.mark.parametrize("end_reason", [None, "finished"])
def test_a_run_of_several_journals_ends_once_and_with_its_last_call(tmp_path, end_reason):
    """A process begins another journal when one is large, and may be killed before the first is stored."""
    run = Run(id="run_a", started_at=5)
    steps = [StepEnded(Step(run="run_a", seq=seq, call=seq, name="search", started_at=1000 * seq)) for seq in (1, 2)]
    ends = [RunEnded(msgspec.structs.replace(run, ended_at=3000, end_reason=end_reason))] if end_reason else []
    left(tmp_path, event_frame(RunStarted(run)), event_frame(steps[0]))
    left(tmp_path, event_frame(RunStarted(run)), event_frame(steps[1]), *map(event_frame, ends))
    store = MemoryStore()
    recover_journals(store, DEFAULT_TENANT, tmp_path)
    history = histories(store)["run_a"]
    assert [step.seq for step in history.steps] == [1, 2]
    assert (history.run.end_reason, history.run.ended_at) == (("finished", 3000) if end_reason else ("abandoned", 2000))
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_another_process_ends_meanwhile_stays_as_it_was_ended(tmp_path):
    """Two processes recover two journals of one process. The second stores the end while the first sees none."""
    run = Run(id="run_a", started_at=900)

    class Shared(MemoryStore):
        def ended_runs(self, tenant: str, ids: Sequence[str]) -> set[str]:
            ended = super().ended_runs(tenant, ids)
            end = RunEnded(msgspec.structs.replace(run, ended_at=950, end_reason="finished"))
            self.append(tenant, [end], "elsewhere", 1)
            return ended

    store = Shared()
    left(tmp_path, event_frame(RunStarted(run)))
    recover_journals(store, DEFAULT_TENANT, tmp_path)
    assert histories(store)["run_a"].run.end_reason == "finished"


def test_an_open_run_of_one_process_does_not_hold_back_the_journals_of_others(tmp_path):
    """Otherwise processes that end during recovery would read the same journals again and again."""

    class Away(MemoryStore):
        def append(self, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int, principal: str = "") -> int:
            if journal == paths[2].stem:
                raise StoreError("away")
            return super().append(tenant, batch, journal, offset, principal)

    started = event_frame(RunStarted(Run(id="run_a", started_at=900)))
    frames = (started, in_short(success("run_b")), in_short(success("run_c")))
    paths = [
        path.rename(path.with_name(f"{process}-{path.name.partition('-')[2]}"))
        for process, path in enumerate((left(tmp_path, frame) for frame in frames), start=1)
    ]
    store = Away()
    with pytest.raises(StoreError):
        recover_journals(store, DEFAULT_TENANT, tmp_path)
    assert histories(store)["run_a"].run.end_reason == "abandoned"
    assert list(tmp_path.iterdir()) == [paths[2]]
