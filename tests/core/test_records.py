"""What is kept, under the same names in Python, store and export."""

from __future__ import annotations

import itertools
import os
import random
import re
import subprocess
import sys

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given
from strict_decoding import run_leniently

from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import (
    STEP_TYPES,
    Change,
    History,
    Link,
    Recovery,
    Run,
    Step,
    StepType,
    decode,
    encode,
    new_id,
    sort_steps,
    to_builtins,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def history(value: object = None) -> History:
    changed = Change(path="k", operation="cast", before=value, after=value, source="schema")
    failure = Failure.of(
        Kind("tool", "x", Remedy.REPAIR, TookEffect.NO), "m", status=400, retry_after=1.5, evidence=("a",)
    )
    step = Step(
        run="run_a",
        seq=2,
        call=1,
        attempt=2,
        outcome="failure",
        arguments=value,
        result=value,
        failure=failure,
        recovery=Recovery(remedy=Remedy.REPAIR, changes=(changed,)),
        metadata={"m": value},
    )
    link = Link(
        run="run_a", failed_call=1, recovering_call=2, method="agent", changes=(changed,), intermediate_tools=("x",)
    )
    return History(run=Run(id="run_a", end_reason="finished"), steps=(step,), links=(link,))


@given(JSON)
def test_a_record_comes_back_as_it_was(value):
    assert decode(encode(history(value)), History) == history(value)


def test_what_is_exported_has_the_names_of_the_architecture():
    told = to_builtins(history("v"))
    assert told == msgspec.json.decode(encode(history("v")))
    assert told["steps"][0]["recovery"]["changes"][0]["source"] == "schema"
    assert told["steps"][0]["failure"]["kind"] == "tool/x"
    assert told["steps"][0]["failure"]["remedy"] == "repair"


def test_what_is_not_known_is_left_out():
    assert encode(Run(id="run_a")) == b'{"id":"run_a"}'


@pytest.mark.slow
def test_decode_ignores_fields_of_a_newer_version_outside_of_tests():
    code = """from mulligan.core.records import Run, decode; print(decode('{"id":"run_a","colour":"red"}', Run).id)"""
    assert run_leniently(code) == "run_a\n"


def test_what_is_no_record_is_refused():
    with pytest.raises(msgspec.ValidationError):
        decode(b'{"id": 5}', Run)


def test_records_are_values_that_cannot_be_changed():
    with pytest.raises(AttributeError):
        Run(id="run_a").end_reason = "raised"


@pytest.mark.parametrize(
    ("outcome", "type", "has_failed"),
    [
        ("failure", "tool", True),
        ("failure", "none", False),
        ("success", None, False),
        ("cancelled", None, False),
        ("blocked", "tool", False),
    ],
)
def test_a_step_has_failed_when_its_outcome_is_a_failure_that_counts(outcome, type, has_failed):
    failure = Failure.of(Kind(type, "x")) if type else None
    assert Step(run="run_a", seq=1, call=1, outcome=outcome, failure=failure).has_failed is has_failed


def test_ids_are_short_enough_to_type_and_never_the_same():
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"run_[a-z2-7]{16}", each) for each in ids)
    assert new_id("session").startswith("session_")


def test_who_needs_many_ids_asks_the_system_for_them_ever_more_rarely(monkeypatch):
    """Each time lets go of the interpreter's lock, and makes every other thread wait anew for its turn."""
    asked = []

    def counting(size: int) -> bytes:
        asked.append(size)
        return random.randbytes(size)

    monkeypatch.setattr(os, "urandom", counting)
    ids = {new_id() for _ in range(100_000)}
    assert len(ids) == 100_000
    assert len(asked) < 40


def test_ids_that_are_drawn_together_begin_alike_and_are_told_apart_by_what_people_see():
    ids = [new_id() for _ in range(20_000)]
    beginnings = [len(list(some)) for _, some in itertools.groupby(id[:6] for id in ids)]
    assert len(beginnings) < 20
    assert len({id[:12] for id in ids}) > 19_990


def test_steps_are_ordered_by_their_number():
    steps = [Step(run="run_a", seq=n, call=n) for n in (3, 1, 2)]
    assert [step.seq for step in sort_steps(steps)] == [1, 2, 3]


def test_the_types_of_steps_are_said_once():
    assert set(STEP_TYPES) == set(StepType.__args__)


CONCURRENT_DECODERS = """
from __future__ import annotations

import sys
import threading

import msgspec

from mulligan.core.records import build_decoder

sys.setswitchinterval(1e-6)
for number in range(1500):

    class Inner(msgspec.Struct):
        a: int
        b: float | None = None

    class Outer(msgspec.Struct):
        by_name: dict[str, Inner]
        one: Inner | None = None

    barrier = threading.Barrier(2)

    def work():
        barrier.wait()
        build_decoder(Outer).decode(b'{"by_name": {"x": {"a": 1}}}')

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.durability
def test_two_threads_that_build_a_decoder_at_once_do_not_crash_the_process():
    assert subprocess.run([sys.executable, "-c", CONCURRENT_DECODERS]).returncode == 0
