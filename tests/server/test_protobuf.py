"""OTLP as protobuf: what is written is read, and what is no message is told as such, whatever the bytes."""

from __future__ import annotations

import contextlib
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from spans import BEGUN, Made, as_protobuf, attribute, field

from mulligan.server import protobuf

FACTS = st.dictionaries(
    st.sampled_from(["gen_ai.tool.name", "gen_ai.operation.name", "input.value", "http.response.status_code", "other"]),
    st.text(max_size=40) | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats(allow_nan=False),
    max_size=6,
)
SPANS = st.builds(
    Made,
    st.binary(min_size=16, max_size=16).filter(any).map(bytes.hex),
    st.binary(min_size=8, max_size=8).filter(any).map(bytes.hex),
    st.just("") | st.binary(min_size=8, max_size=8).filter(any).map(bytes.hex),
    st.text(max_size=300),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    FACTS,
    st.none() | st.text(max_size=300),
)


@given(st.lists(SPANS, max_size=4))
def test_what_is_written_is_read(made):
    for span, wrote in zip(protobuf.parse_spans(as_protobuf(made, "a service")), made, strict=True):
        assert (span.trace, span.id, span.parent, span.name) == (wrote.trace, wrote.id, wrote.parent, wrote.name)
        assert (span.start, span.end, span.has_failed) == (wrote.start, wrote.end, wrote.error is not None)
        assert span.facts == {key: value for key, value in wrote.facts.items() if key != "other"}
        assert span.resource == {"service.name": "a service"}
        if wrote.error is not None:
            assert span.message == wrote.error
            facts = {"exception.message": wrote.error, "exception.stacktrace": "..."}
            assert span.events == [("exception", facts)]


@settings(max_examples=300)
@given(st.binary(max_size=300), st.lists(SPANS, min_size=1, max_size=2), st.data())
def test_bytes_that_are_no_message_are_told_and_never_anything_else(noise, made, data):
    sound = as_protobuf(made)
    cut = sound[: data.draw(st.integers(0, len(sound)))]
    place = data.draw(st.integers(0, len(sound) - 1))
    for given_ in (noise, cut, sound[:place] + noise[:3] + sound[place + 1 :]):
        for read in (protobuf.parse_spans, protobuf.parse_logs):
            with contextlib.suppress(protobuf.MalformedProtobufError):
                list(read(given_))


def test_a_span_without_an_identity_is_none_and_the_others_are_kept():
    good = Made("1" * 32, "2" * 16, "", "execute_tool x", BEGUN, BEGUN, {})
    for bad in (good._replace(trace="0" * 32), good._replace(id=""), good._replace(trace="11")):
        rejected, span = protobuf.parse_spans(as_protobuf([bad, good]))
        assert rejected is None
        assert span.id == good.id


def test_a_partial_success_is_said_as_clients_read_it():
    assert protobuf.encode_response() == b""
    told = protobuf.encode_response(300, "no")
    assert told == field(1, b"\x08\xac\x02" + field(2, b"no"))


def test_the_real_message_reads_the_same():
    trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    made = Made("1" * 32, "2" * 16, "3" * 16, "execute_tool x", 5, 9, {"gen_ai.tool.name": "x"}, "boom")
    message = trace_service.ExportTraceServiceRequest.FromString(as_protobuf([made]))
    (span,) = protobuf.parse_spans(message.SerializeToString())
    assert (span.name, span.message, span.facts) == ("execute_tool x", "boom", {"gen_ai.tool.name": "x"})
    answer = trace_service.ExportTraceServiceResponse.FromString(protobuf.encode_response(7, "why"))
    assert (answer.partial_success.rejected_spans, answer.partial_success.error_message) == (7, "why")


def test_an_attribute_of_any_sort_is_passed_over_without_harm():
    array = field(1, b"gen_ai.tool.name") + field(2, field(5, field(1, field(1, b"x"))))
    assert read_attribute(array) == {"gen_ai.tool.name": ["x"]}
    table = field(1, b"gen_ai.tool.name") + field(2, field(6, b""))
    assert read_attribute(table) == {"gen_ai.tool.name": None}
    for value in (3.5, "", "a", "b" * 125, "c" * 126, "d" * 300):
        assert read_attribute(attribute("gen_ai.tool.name", value)) == {"gen_ai.tool.name": value}


def read_attribute(data: bytes) -> dict[str, Any]:
    (span,) = protobuf.parse_spans(
        field(1, field(2, field(2, field(1, b"t" * 16) + field(2, b"s" * 8) + field(9, data))))
    )
    assert span is not None
    return span.facts
