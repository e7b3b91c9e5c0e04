"""The trace a run is part of: what comes in from another program, and what is sent on."""

from __future__ import annotations

import contextvars
import gc
import re
import weakref

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

import mulligan
from mulligan.capture import trace_context
from mulligan.core.failure import SettingsError
from mulligan.testing import Sandbox

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADER = f"00-{TRACE}-{SPAN}-01"
FORM = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def test_what_one_run_sends_makes_another_its_child_in_the_same_trace(played: Sandbox) -> None:
    with mulligan.run("caller", traceparent=HEADER) as caller:
        sent = caller.headers
    with mulligan.run("called", traceparent=sent) as called:
        pass
    assert FORM.fullmatch(sent["traceparent"])
    assert sent["traceparent"] == caller.traceparent
    assert called.record.parent == caller.id
    assert called.record.traceparent == sent["traceparent"]
    assert called.traceparent.split("-")[1] == caller.traceparent.split("-")[1] == TRACE
    assert len({HEADER, caller.traceparent, called.traceparent}) == 3


def test_a_run_that_nobody_began_begins_a_trace_which_runs_inside_it_are_part_of(played: Sandbox) -> None:
    with mulligan.run("outer") as outer, mulligan.run("middle"), mulligan.run("inner") as inner:
        pass
    with mulligan.run("another") as another:
        pass
    own, inside, other = (run.traceparent.split("-") for run in (outer, inner, another))
    assert own[1] == inside[1] != other[1]
    assert own[2] != inside[2]


def test_runs_that_each_begin_the_next_do_not_keep_each_other_alive(played: Sandbox) -> None:
    """As jobs do that plan their successor: its context is theirs."""
    with mulligan.run("job") as run:
        first, trace = weakref.ref(run), run.traceparent.split("-")[1]
        successor = contextvars.copy_context()
    del run
    with successor.run(mulligan.run, "its successor") as last:
        del successor
    gc.collect()
    assert first() is None
    assert last.traceparent.split("-")[1] == trace


def test_headers_are_found_in_any_case_and_the_header_alone_will_do(played: Sandbox) -> None:
    for given_ in (HEADER, {"TraceParent": HEADER, "Accept": "*/*"}, f" {HEADER} "):
        with mulligan.run("called", traceparent=given_) as called:
            pass
        assert called.record.traceparent == HEADER
        assert called.record.parent is None


def test_our_run_is_found_among_the_states_of_other_vendors(played: Sandbox) -> None:
    with mulligan.run("a", traceparent={"traceparent": HEADER, "tracestate": "rojo=1, mulligan=run_x ,congo=2"}) as run:
        pass
    assert run.record.parent == "run_x"


@pytest.mark.parametrize(
    "header",
    ["", "x", HEADER.upper(), f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01",
     f"{HEADER}-more", "00-" + "a" * 10_000_000],
)  # fmt: skip
def test_what_is_no_such_header_begins_a_new_trace(played: Sandbox, header: str) -> None:
    with mulligan.run("called", traceparent={"traceparent": header, "tracestate": "mulligan=run_x"}) as called:
        pass
    assert called.record.traceparent is None
    assert called.record.parent is None
    assert FORM.fullmatch(called.traceparent)


def test_a_header_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert trace_context.parse_trace_headers(f"01-{TRACE}-{SPAN}-01-what-comes-then").traceparent == HEADER


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(SettingsError, match="Invalid traceparent of type int"):
        mulligan.run("called", traceparent=5)  # type: ignore[arg-type]


@given(
    some.dictionaries(some.sampled_from(["traceparent", "tracestate", "x"]), some.text() | some.binary() | some.none())
)
def test_whatever_strangers_send_is_a_trace_of_the_form_or_none(headers: dict[str, str]) -> None:
    came = trace_context.parse_trace_headers(headers)
    assert came.traceparent is None or FORM.fullmatch(came.traceparent)
    assert came.parent is None or (came.traceparent is not None and came.parent.isascii())


@given(some.text(min_size=1), some.text(min_size=1))
@example("0\t", "0")
@example("0,", "0")
def test_whatever_a_run_is_called_its_headers_are_such_headers(run: str, root: str) -> None:
    sent = trace_context.build_trace_headers(run, root, None)
    assert FORM.fullmatch(sent["traceparent"])
    assert trace_context.parse_trace_headers(sent) == (sent["traceparent"], run if "tracestate" in sent else None)
    assert all(value.isascii() and value.isprintable() for value in sent.values())
