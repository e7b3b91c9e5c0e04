"""Records as they stand in a database: what a row says is not said again in its body, and everything comes back."""

from __future__ import annotations

import sqlite3

import hypothesis.strategies as st
from hypothesis import given

from mulligan.core.events import RunStarted, StepEnded
from mulligan.core.records import Run, Step, encode
from mulligan.store.base import DEFAULT_TENANT, ForgetRequest
from mulligan.store.rows import CompactStep, compress, decode_step, success_row
from mulligan.store.sqlite import SqliteStore

COLUMNS = {"run", "seq", "call", "name", "started_at"}
ALWAYS = {"attempt", "outcome", "failure", "links_decided"}
"""What is the same of all calls that worked at once."""
JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9), st.lists, max_leaves=4)
PLAIN = st.builds(
    Step,
    run=st.text(min_size=1, max_size=9),
    seq=st.just(7),
    call=st.just(7),
    name=st.text(max_size=9),
    parent=st.none() | st.integers(1, 6),
    type=st.sampled_from(["tool", "model", "custom"]),
    server=st.none() | st.text(max_size=9),
    arguments=st.none() | st.dictionaries(st.text(max_size=9), JSON, max_size=3),
    result=JSON,
    started_at=st.integers(0, 2**41),
    duration_seconds=st.floats(0, 1e6),
    tokens=st.none() | st.dictionaries(st.sampled_from(["input", "output"]), st.integers(0, 9)),
    metadata=st.none() | st.dictionaries(st.text(max_size=9), JSON, max_size=2),
    sample_rate=st.just(1.0) | st.just(0.1),
)


def test_columns_and_body_say_all_of_a_step():
    assert set(Step.__struct_fields__) == COLUMNS | ALWAYS | set(CompactStep.__struct_fields__)


@given(PLAIN, st.booleans())
def test_a_step_comes_back_as_it_was_whether_its_body_is_whole_or_what_is_left_of_it(step, is_packed):
    *place, rest = success_row(step)
    for body in (encode(rest), encode(step)):
        read = decode_step(*place, compress(body) if is_packed else body)
        assert read == step
        assert encode(read) == encode(step)  # also what is not said because it goes without saying


def test_the_body_of_a_call_that_worked_does_not_repeat_what_its_row_says(tmp_path):
    store = SqliteStore(tmp_path / "a.db")
    plain = Step(
        run="run_a", seq=1, call=1, name="look", arguments={"k": 1}, started_at=1_700_000_000_000, duration_seconds=0.5
    )
    again = Step(run="run_a", seq=2, call=1, attempt=2, name="look", started_at=1_700_000_000_001)
    store.append(DEFAULT_TENANT, [RunStarted(Run(id="run_a")), StepEnded(plain), StepEnded(again)], "j", 1)

    with sqlite3.connect(tmp_path / "a.db") as database:
        kept = [body for (body,) in database.execute("SELECT body FROM steps ORDER BY seq")]
    assert kept == [b'{"arguments":{"k":1},"duration_seconds":0.5}', encode(again)]
    assert store.run(DEFAULT_TENANT, "run_a").steps == (plain, again)
    store.close()


def test_a_text_is_forgotten_where_only_the_columns_of_a_row_have_it(tmp_path):
    store = SqliteStore(tmp_path / "a.db")
    steps = [
        Step(run="run_a", seq=seq, call=seq, name=name) for seq, name in enumerate(["look", "ask_annabel"], start=1)
    ]
    store.append(DEFAULT_TENANT, [RunStarted(Run(id="run_a")), *map(StepEnded, steps)], "j", 1)
    store.append(
        DEFAULT_TENANT, [StepEnded(Step(run="run_of_annabel", seq=1, call=1, name="look"))], "j", 2
    )  # and begun elsewhere

    store.forget(DEFAULT_TENANT, ForgetRequest(text="annabel"))

    assert "annabel" not in str(store.run(DEFAULT_TENANT, "run_a"))
    with sqlite3.connect(tmp_path / "a.db") as database:
        assert [run for (run,) in database.execute("SELECT run FROM steps WHERE run LIKE '%annabel%'")] == []
    store.close()
