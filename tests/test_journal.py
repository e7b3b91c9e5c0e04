"""Frames in a file: whatever becomes of the process, or of some of the bytes, the rest is read."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from windows_files import WINDOWS_FILES

from mulligan import journal as journals
from mulligan.journal import FRAME_MARK, Journal, NewerJournalError, encode_frame, find_orphaned, read_frames

LINES = [b"first", b"second", b"", b"the fourth, with a \x00 in it", b"last"]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "journals")
    yield made
    made.abandon()


@pytest.fixture
def no_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that cannot promise room, as some cannot."""

    def refused(*args: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(journals.os, "posix_fallocate", refused, raising=False)


def full(*args: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read(path: Path, start: int = 0) -> list[bytes]:
    return [frame.payload for frame in read_frames(path, start)]


def written(journal: Journal, payloads: list[bytes]) -> list[int]:
    return [journal.write(encode_frame(1, each)) for each in payloads]


def test_what_was_written_is_read_in_order_with_its_sort_and_where_it_ends(journal):
    ends = [journal.write(encode_frame(sort, each)) for sort, each in enumerate(LINES)]
    found = list(read_frames(journal.path))
    assert [frame.payload for frame in found] == LINES
    assert [frame.type for frame in found] == [0, 1, 2, 3, 4]
    assert [frame.offset for frame in found] == ends
    assert read(journal.path, ends[1]) == LINES[2:]
    assert read(journal.path, ends[-1]) == []


def test_a_journal_without_a_frame_is_read_as_empty(journal, tmp_path):
    assert read(journal.path) == []
    (tmp_path / "empty").touch()
    assert read(tmp_path / "empty") == []


def test_it_grows_beyond_the_room_it_began_with(journal, monkeypatch):
    large = [bytes([65 + n]) * 400_000 for n in range(6)]
    written(journal, large)
    assert journal.path.stat().st_size > journals.PREALLOCATED_BYTES
    assert read(journal.path) == large
    assert journal.path.read_bytes().count(FRAME_MARK) == 6


def test_it_is_readable_by_its_owner_alone(journal):
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(journal.path.parent.stat().st_mode) == 0o700


# Damage


def damaged(content: bytes) -> list[bytes]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return read(Path(file.name))


WHOLE = [encode_frame(1, each) for each in LINES]


def test_a_torn_tail_costs_the_last_frame_alone():
    for cut in range(1, len(WHOLE[-1]) + 1):
        assert damaged(b"".join(WHOLE)[:-cut]) == LINES[:-1]


def test_zeros_after_the_end_are_nothing():
    assert damaged(b"".join(WHOLE) + bytes(5000)) == LINES


def test_garbage_between_frames_costs_nothing():
    assert damaged(b"garbage" + (FRAME_MARK + b"\x01\xff\xff\xff\xff").join(WHOLE)) == LINES


def test_any_flipped_bit_costs_its_own_frame_alone():
    for number, frame in enumerate(WHOLE):
        for place in range(len(frame)):
            for bit in range(8):
                flipped = bytearray(frame)
                flipped[place] ^= 1 << bit
                found = damaged(b"".join([*WHOLE[:number], bytes(flipped), *WHOLE[number + 1 :]]))
                assert found == LINES[:number] + LINES[number + 1 :]


@given(
    st.lists(st.binary(max_size=60), min_size=1, max_size=8),
    st.data(),
    st.binary(max_size=40).filter(lambda junk: FRAME_MARK[:1] not in junk),
)
def test_bytes_inserted_anywhere_never_raise_and_cost_at_most_the_frame_they_are_in(payloads, data, junk):
    whole = [encode_frame(2, each) for each in payloads]
    number = data.draw(st.integers(0, len(whole) - 1))
    place = data.draw(st.integers(1, len(whole[number])))
    torn = whole[number][:place] + junk + whole[number][place:]
    others = payloads[:number] + payloads[number + 1 :]
    try:
        found = damaged(b"".join([*whole[:number], torn, *whole[number + 1 :]]))
    except NewerJournalError:
        assert not others  # then the version is all there is to go by
    else:
        assert found in (payloads, others)


@given(st.binary(max_size=300))
def test_a_file_of_anything_is_read_without_an_error(content):
    try:
        damaged(content)
    except NewerJournalError:
        assert content.startswith(FRAME_MARK[:2])


def test_a_journal_of_a_newer_version_is_not_read(tmp_path):
    path = tmp_path / "a.journal"
    path.write_bytes(b"\xf5m2 whatever comes after that")
    with pytest.raises(NewerJournalError, match="newer mulligan"):
        read(path)


# Where the disk says no


def test_without_a_promise_of_room_frames_are_written_all_the_same(no_promise, tmp_path):
    journal = Journal(tmp_path)
    written(journal, LINES)
    assert read(journal.path) == LINES
    assert journal.path.stat().st_size == journal.offset
    assert journal.path.read_bytes()[: journal.offset] == b"".join(WHOLE)
    journal.close(remove=True)


def test_half_a_frame_is_an_error_and_the_next_one_takes_its_place(no_promise, tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    written(journal, LINES[:2])
    before = journal.offset
    really = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(journals, "write_at", lambda file, data, place: really(file, data[: len(data) // 2], place))
        with pytest.raises(OSError, match="No space"):
            journal.write(encode_frame(1, b"too much for what is left of the disk"))
    assert journal.offset == before
    assert read(journal.path) == LINES[:2]
    written(journal, LINES[2:])
    assert read(journal.path) == LINES
    journal.close(remove=True)


def test_a_disk_that_is_full_from_the_beginning_is_an_error_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(journals.os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        Journal(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_later_is_an_error_and_what_was_written_stays(journal, monkeypatch):
    written(journal, LINES)
    before = journal.offset
    with monkeypatch.context() as patch:
        patch.setattr(journals.os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space"):
            journal.write(encode_frame(1, bytes(2 * journals.PREALLOCATED_BYTES)))
    assert journal.offset == before
    written(journal, [b"and on"])
    assert read(journal.path) == [*LINES, b"and on"]


def test_a_frame_that_a_signal_handler_writes_in_the_middle_of_another_is_kept_like_it(journal, monkeypatch):
    really = os.posix_fallocate
    interrupted: list[bytes] = [b"in the middle" * 200_000]

    def interrupting(*args: Any) -> None:
        if interrupted:
            journal.write(encode_frame(1, interrupted.pop()))
        really(*args)

    monkeypatch.setattr(journals.os, "posix_fallocate", interrupting)
    large = b"large" * journals.PREALLOCATED_BYTES
    written(journal, [b"before", large, b"after"])
    assert read(journal.path) == [b"before", large, b"in the middle" * 200_000, b"after"]


# Who holds it


def names(folder: Path) -> list[str]:
    return [orphan.name for orphan in find_orphaned(folder)]


@pytest.mark.durability
def test_a_journal_is_an_orphan_only_when_its_owner_is_gone(tmp_path):
    code = """
        import sys
        from pathlib import Path
        from mulligan.journal import Journal, encode_frame
        journal = Journal(Path(sys.argv[1]))
        journal.write(encode_frame(1, b"mine"))
        print(journal.name, flush=True)
        sys.stdin.read()
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    name = owner.stdout.readline().strip()
    assert names(tmp_path) == []
    owner.kill()
    owner.communicate()
    assert names(tmp_path) == [name]
    assert read(tmp_path / f"{name}.journal") == [b"mine"]


def test_the_number_of_a_process_says_nothing(journal):
    path = journal.path.with_name(f"{os.getpid()}-j_ofanearlierone.journal")  # the same number, long ago
    path.write_bytes(encode_frame(1, b"of an earlier one"))
    assert names(path.parent) == [path.stem]


def test_an_orphan_that_is_looked_at_is_nobody_elses(tmp_path):
    left = Journal(tmp_path)
    left.close(remove=False)
    for _ in find_orphaned(tmp_path):
        assert names(tmp_path) == []
    assert names(tmp_path) == [left.name]


def test_a_journal_is_held_before_anybody_can_find_it(tmp_path, monkeypatch):
    seen: list[list[str]] = []
    for name in ("_lock", "_preallocate"):
        really = getattr(journals, name)

        def looking(*args: Any, really: Any = really) -> Any:
            seen.append([each.name for each in tmp_path.glob("*.journal")])
            return really(*args)

        monkeypatch.setattr(journals, name, looking)
    made = Journal(tmp_path)
    assert seen == [[], []]
    monkeypatch.undo()
    assert names(tmp_path) == []
    made.close(remove=True)


def test_what_a_process_left_that_died_while_it_made_its_journal_is_swept_away_in_time(tmp_path):
    old, new = tmp_path / "1-j_a.begun", tmp_path / "2-j_b.begun"
    old.touch()
    new.touch()
    os.utime(old, (time.time() - 2 * journals.UNNAMED_EXPIRY_SECONDS,) * 2)
    assert names(tmp_path) == []
    assert list(tmp_path.iterdir()) == [new]


@pytest.mark.durability
def test_frames_are_the_same_with_the_file_functions_of_windows(tmp_path):
    program = "from mulligan.journal import Journal, encode_frame; from pathlib import Path; "
    program += f"Journal(Path({str(tmp_path)!r})).write(encode_frame(1, b'two\\nlines'))"
    subprocess.run([sys.executable, "-c", f"{WINDOWS_FILES}\n{program}"], check=True)
    (path,) = tmp_path.iterdir()
    assert read(path) == [b"two\nlines"]


def test_what_cannot_be_opened_is_passed_over(tmp_path):
    (tmp_path / "a.journal").mkdir()
    (tmp_path / "b.journal").write_bytes(encode_frame(1, b"b"))
    assert names(tmp_path) == ["b"]


def test_one_that_nobody_refers_to_any_more_is_an_orphan(tmp_path):
    journal = Journal(tmp_path)
    name = journal.name
    assert names(tmp_path) == []
    del journal
    assert names(tmp_path) == [name]


@pytest.mark.durability
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_in_a_forked_child_the_parents_journal_stays_the_parents(journal):
    written(journal, [b"before"])
    child = os.fork()
    if child == 0:
        journal.abandon()
        os._exit(0 if names(journal.path.parent) == [] else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    written(journal, [b"after"])
    assert read(journal.path) == [b"before", b"after"]
    assert names(journal.path.parent) == []


def test_a_mapping_that_cannot_be_had_is_an_error_and_leaves_no_file(tmp_path, monkeypatch):
    def refused(*args: Any, **kwargs: Any) -> mmap.mmap:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(journals.mmap, "mmap", refused)
    with pytest.raises(OSError, match="memory"):
        Journal(tmp_path)
    assert list(tmp_path.iterdir()) == []
