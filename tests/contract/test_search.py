"""Runs are found by the words in them, with and without an index, in every store."""

from __future__ import annotations

import contextlib
import itertools
import re
import sqlite3
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, assume, given, settings
from stores import Writer

from mulligan.contract.search_terms import parse_search, split_words
from mulligan.contract.store import DEFAULT_TENANT, HASH_KEY, ForgetRequest, Retention, RunQuery, Store
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, SettingsError, StoreError
from mulligan.core.records import MessagePart, RecordedMessage, Run, Step
from mulligan.redaction.redactor import Redactor
from mulligan.store import run_texts, sqlite_search
from mulligan.store.sql import DatabaseStore
from mulligan.store.sqlite import SqliteStore


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are indexed as soon as they are stored."""
    monkeypatch.setattr(run_texts, "SETTLE_MILLISECONDS", -(10**9))


def write_run(write: Writer, id: str, *steps: Step, messages: tuple[RecordedMessage, ...] = (), **fields: Any) -> None:
    run = Run(id=id, started_at=1000 + int(id[-1]), **fields)
    ended = Run(id=id, started_at=run.started_at, ended_at=9000, end_reason="finished", **fields)
    numbered = [Step(run=id, seq=n, call=n, name=step.name, arguments=step.arguments, result=step.result,
                     outcome=step.outcome, failure=step.failure) for n, step in enumerate(steps, 1)]  # fmt: skip
    write(RunStarted(run), *(StepEnded(step, messages if step.seq == 1 else ()) for step in numbered), RunEnded(ended))


def lookup(arguments: Any = None, result: Any = None, error: str = "", name: str = "lookup") -> Step:
    failure = Failure.of(Kind("tool", "timeout"), error) if error else None
    outcome = "failure" if error else "success"
    return Step(run="", seq=0, call=0, name=name, arguments=arguments, result=result, outcome=outcome, failure=failure)


def update_index(store: Store) -> None:
    if isinstance(store, DatabaseStore):
        store.update_search(DEFAULT_TENANT)


def found(store: Store, text: str, **filters: Any) -> list[str]:
    return [history.run.id for history in store.runs(DEFAULT_TENANT, RunQuery(text=text, **filters))]


@pytest.fixture(params=["read", "indexed"])
def filled(request: pytest.FixtureRequest, store: Store, write: Writer) -> Store:
    write_run(write, "run_1", lookup({"customer_id": "cus_81", "path": "C:\\new\nline"}), agent="Helper")
    write_run(
        write,
        "run_2",
        lookup({"customer_id": "cus_815"}, {"title": "Zürich 検索結果", "note": "it\u2019s Cafe\u0301"}),
        metadata={"user": "ann"},
    )
    write_run(write, "run_3", lookup(error="Gateway 504 at api.example.com"), lookup(["cus_81"]), agent="billing")
    question = RecordedMessage(role="user", parts=(MessagePart(text='Where is "my order" 4711?'),), number=1)
    write_run(write, "run_4", lookup({"n": 81}, name="track_order"), messages=(question,), context="a late parcel")
    if request.param == "indexed":
        update_index(store)
    return store


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("cus_81", ["run_3", "run_2", "run_1"]),
        ('"cus_81"', ["run_3", "run_1"]),
        ("customer_id:cus_81", ["run_2", "run_1"]),
        ("81", ["run_4", "run_3", "run_2", "run_1"]),
        ("argument:81", ["run_4", "run_3", "run_2", "run_1"]),
        ("n:81", ["run_4"]),
        ("ZÜRICH", ["run_2"]),
        ("検索", ["run_2"]),
        ("new", ["run_1"]),
        ("line", ["run_1"]),
        ("user:ann", ["run_2"]),
        ("agent:helper cus_81", ["run_1"]),
        ("error:gateway", ["run_3"]),
        ("kind:tool/timeout", ["run_3"]),
        ("api.example.com", ["run_3"]),
        ("example", ["run_3"]),
        ("xample", []),
        ('"my order"', ["run_4"]),
        ("message:order 4711", ["run_4"]),
        ("context:parcel", ["run_4"]),
        ("tool:track", ["run_4"]),
        ("cus_81 -gateway", ["run_2", "run_1"]),
        ("-customer_id:cus_815 cus_81", ["run_3", "run_1"]),
        ("run_2", ["run_2"]),
        ("zurich", ["run_2"]),
        ("Zu\u0308rich", ["run_2"]),
        ('"ZURICH"', ["run_2"]),
        ("gàtéway", ["run_3"]),
        ("(cus_815)", ["run_2"]),
        ("<gateway>,", ["run_3"]),
        ("zür*", ["run_2"]),
        ("it's café", ["run_2"]),
        ("“my order”", ["run_4"]),
        ("“order my”", []),
        ('"(504"', []),
        ("customer 504", []),
        ("absent", []),
    ],
)
def test_runs_are_found_by_words_phrases_and_fields(filled, text, runs):
    assert found(filled, text) == runs


def test_a_search_combines_with_filters_orders_and_pages(filled):
    assert found(filled, "cus_81", agent="billing") == ["run_3"]
    assert found(filled, "cus_81", since=1002, until=1003) == ["run_2"]
    assert found(filled, "cus_81", limit=2) == ["run_3", "run_2"]
    assert found(filled, "cus_81", before=(1003, "run_3")) == ["run_2", "run_1"]
    assert found(filled, "cus_81", order="attempts", limit=1) == ["run_3"]


def test_another_tenant_finds_nothing(filled):
    assert filled.runs("other", RunQuery(text="cus_81")) == []


@pytest.mark.parametrize("text", ["", "   ", "-word", "!?", "x" * 501, " ".join(string.ascii_lowercase)])
def test_a_text_that_cannot_be_searched_for_is_explained(text):
    with pytest.raises(SettingsError, match=r"Type a word|Use at most"):
        parse_search(text)


HOSTILE = (
    "x" * 10_000, '"' * 500, '""" "a" """b', '"the of and', "NOT", "AND OR NEAR(a b)", "text : a", "words MATCH 'a'",
    "a* ^b + c", "{text}: x", "(q", "q)", "' OR 1=1 --", '"; DROP TABLE runs; --', "(a+)+$" * 20, "(?:.*a){30}", "[[[[",
    "a\\", "a\0b", "\ud800", "nan", "-inf", "%s%d", "a:b:c", ":::", "-:-", "--", "&|!<->():*", "'a':* & 'b'",
    "\u202e\u200b", "<script>alert(1)</script>",
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_finds_no_run_or_is_explained(filled, text):
    answer: object = None
    try:
        answer = found(filled, text)
    except (SettingsError, StoreError) as error:
        answer = re.search(r"The search text has .*Use at most|Nothing to search for|not valid UTF-8", str(error))
    assert answer == [] or isinstance(answer, re.Match)


def test_forgotten_and_changed_runs_are_not_found(filled):
    filled.forget(DEFAULT_TENANT, ForgetRequest(run="run_1"))
    filled.forget(DEFAULT_TENANT, ForgetRequest(text="cus_815"))
    update_index(filled)
    assert found(filled, "cus_81") == ["run_3"]
    assert found(filled, "cus_815") == []
    assert found(filled, "zürich") == ["run_2"]


def test_runs_that_arrive_after_an_update_are_found_before_the_next(filled, write):
    write_run(write, "run_5", lookup({"customer_id": "cus_81"}))
    assert found(filled, "cus_81") == ["run_5", "run_3", "run_2", "run_1"]


def test_an_attempt_that_arrives_after_its_run_was_indexed_is_found(filled, write):
    for seq, city in enumerate(("Lisboa", "Porto", "Faro"), 5):
        step = Step(run="run_1", seq=seq, call=seq, name="lookup", arguments={"city": city}, outcome="success")
        write(StepEnded(step))
        assert found(filled, city) == ["run_1"]
        update_index(filled)
        assert found(filled, city) == ["run_1"]
    assert found(filled, "cus_81 faro lisboa") == ["run_1"]
    filled.forget(DEFAULT_TENANT, ForgetRequest(run="run_1"))
    update_index(filled)
    assert found(filled, "faro") == []


@pytest.mark.parametrize("limits", [(20_000, 2000), (20_000, 0), (0, 0)])
def test_filters_and_orders_select_the_same_runs_however_many_have_the_words(filled, monkeypatch, limits):
    monkeypatch.setattr(sqlite_search, "MAX_LISTED_RUNS", limits[0])
    monkeypatch.setattr(sqlite_search, "MAX_SELECTED_RUNS", limits[1])
    for text, filters, runs in (
        ("cus_81", {}, ["run_3", "run_2", "run_1"]),
        ("cus_81", {"tool": "lookup", "agent": "billing"}, ["run_3"]),
        ("81", {"tool": "track_order"}, ["run_4"]),
        ("cus_81", {"kind": "tool/timeout"}, ["run_3"]),
        ("cus_81", {"kind": "tool/", "agent": "billing"}, ["run_3"]),
        ("cus_81", {"order": "attempts", "limit": 1}, ["run_3"]),
        ("cus_81", {"tool": "lookup", "order": "attempts", "limit": 1}, ["run_3"]),
        ("cus_81", {"limit": 1, "before": (1002, "run_2")}, ["run_1"]),
    ):
        assert found(filled, text, **filters) == runs


@pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)
def test_a_search_ends_when_too_many_runs_lack_what_it_asks(store, write, monkeypatch):
    monkeypatch.setattr(run_texts, "MAX_MISSED_RUNS", 2)
    monkeypatch.setattr(run_texts, "MIN_PAGE_RUNS", 1)
    for number in range(1, 5):
        write_run(write, f"run_{number}", lookup({"customer_id": f"cus_{number}"}))
    assert found(store, "customer_id:lookup", limit=1) == []  # not indexed: all are read
    update_index(store)
    with pytest.raises(SettingsError, match="2 runs were read"):
        found(store, "customer_id:lookup", limit=1)


def test_runs_with_more_words_than_a_row_of_an_index_holds_are_found(store, write):
    product = itertools.product(map(chr, range(0x431, 0x43B)), repeat=6)
    words = ["".join(letters) for letters in itertools.islice(product, 100_000)]
    write_run(write, "run_1", lookup({"text": " ".join(words)}), agent="Hildegunde")
    write_run(write, "run_2", lookup({"text": "Theoderich"}))
    for _ in range(2):
        assert found(store, "hildegunde") == found(store, words[999]) == ["run_1"]
        assert found(store, "theoderich") == ["run_2"]
        update_index(store)


def test_values_that_look_like_recorded_times_and_keys_are_found(store, write):
    write_run(write, "run_1", lookup({"duration_seconds": 777, "started_at": 4711, "list": ["a,", 815, ":b"]}))
    write_run(write, "run_2", lookup({"text": "\u017ftra\u017f\u017fe \u0131stan \u03bb\u03cc\u03b3\u03bf\u03c2"}))
    for _ in range(2):
        assert found(store, "777") == found(store, "started_at:4711") == found(store, "815") == ["run_1"]
        assert (
            found(store, "strasse istan \u03bb\u03bf\u03b3\u03bf\u03c3") == found(store, "\u0131\u017ftan") == ["run_2"]
        )
        update_index(store)


INDEXING = """
import sys
from pathlib import Path
from mulligan.store import run_texts, sqlite_search
from mulligan.store.sqlite import SqliteStore
run_texts.SETTLE_MILLISECONDS, run_texts.INDEX_BATCH_RUNS, sqlite_search.BATCHES = -10**9, 1, 1
def wait(position, total):
    print(position, flush=True)
    if position == 3:
        sys.stdin.read()
SqliteStore(Path(sys.argv[1])).update_search("local", wait)
"""


@pytest.mark.durability
def test_the_index_is_completed_after_its_process_was_killed(tmp_path):
    store = SqliteStore(tmp_path / "mulligan.db")
    write = Writer(store)
    for number in range(1, 9):
        write_run(write, f"run_{number}", lookup({"customer": "Hildegunde"}))
    arguments = [sys.executable, "-c", INDEXING, str(store.path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["1\n", "2\n", "3\n"]
        process.kill()
    assert len(found(store, "hildegunde")) == 8
    assert store.update_search(DEFAULT_TENANT) == 5
    assert len(found(store, "hildegunde")) == 8
    with contextlib.closing(sqlite3.connect(tmp_path / "mulligan.db.search")) as index:
        assert index.execute("SELECT count(*) FROM words WHERE words MATCH 'hildegunde'").fetchone() == (8,)
    store.close()


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(values=st.lists(WORDS, min_size=1, max_size=6), position=st.integers(0, 5), is_phrase=st.booleans())
def test_every_word_of_a_stored_text_is_found(tmp_path_factory, values, position, is_phrase):
    store = SqliteStore(tmp_path_factory.mktemp("store") / "mulligan.db")
    write_run(Writer(store), "run_1", lookup({"texts": values}))
    update_index(store)
    words = split_words(values[position % len(values)])
    assume(words)
    text = f'"{words[0]}"' if is_phrase else words[0][:3]
    assume(parse_search(text))
    assert found(store, text) == ["run_1"]
    store.close()


def test_a_deleted_word_is_in_no_file_of_the_store(tmp_path):
    store = SqliteStore(tmp_path / "mulligan.db")
    write = Writer(store)
    write_run(write, "run_1", lookup({"customer": "Hildegunde"}))
    write_run(write, "run_2", lookup({"customer": "Theoderich"}))
    update_index(store)
    assert files_with(tmp_path, b"hildegunde")
    store.forget(DEFAULT_TENANT, ForgetRequest(text="Hildegunde"))
    assert not files_with(tmp_path, b"hildegunde")
    update_index(store)
    assert found(store, "Theoderich") == ["run_2"]
    store.prune(DEFAULT_TENANT, Retention(keep_successes=0, keep_failures=0), now=2**45)
    assert "mulligan.db.search" not in files_with(tmp_path, b"theoderich")
    store.close()


def files_with(folder: Path, word: bytes) -> list[str]:
    return [path.name for path in folder.iterdir() if word in path.read_bytes().lower()]


@pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)
def test_a_hidden_value_is_found_as_a_whole_by_the_key_of_its_tenant(store, write):
    key = b"k" * 32
    store.put(DEFAULT_TENANT, *HASH_KEY, key)
    hide = Redactor(level="shared", key=key).value
    write_run(write, "run_1", lookup(hide({"customer_id": "Cus_81", "password": "hunter22", "number": 4711})))
    write_run(write, "run_2", lookup(hide({"customer_id": "cus_82"})))
    for _ in range(2):
        assert found(store, "Cus_81") == found(store, "customer_id:Cus_81") == found(store, "4711") == ["run_1"]
        assert found(store, "cus_82 -Cus_81") == ["run_2"]
        assert found(store, "cus_81") == found(store, "Cus_8") == found(store, "other:Cus_81") == []
        assert found(store, "hunter22") == []  # a guess of a password is not confirmed
        update_index(store)
    store.put("other", *HASH_KEY, b"o" * 32)
    assert store.runs("other", RunQuery(text="Cus_81")) == []
