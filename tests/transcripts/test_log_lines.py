"""Bad input is normal: what is on disk was written by programs that crashed, and by strangers."""

from __future__ import annotations

import gzip
import os
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_logs import ClaudeCode, read, write

from mulligan.transcripts import log_lines as reading_lines
from mulligan.transcripts.formats import FORMATS, detect_log_format
from mulligan.transcripts.log_lines import LogLines, UnreadableFileError
from mulligan.transcripts.run_builder import ReaderState

LOG = ClaudeCode()
GOOD = [LOG.call("toolu_1", "Bash", 1, command="a"), LOG.result("toolu_1", "no such file", 2, is_error=True)]


@pytest.mark.parametrize(
    "bad",
    [
        b'{"type":"assistant","message":{"content":[{"type":"tool_use","id":"toolu_9","na',
        b"\x00" * 5000,
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b'{"type":"user","sessionId":7,"message":"tool_result"}',
        b"not json at all",
        b'"tool_use"',
        b'{"type":"user","sessionId":"s","message":{"content":[{"type":"tool_result","tool_use_id":null}]}}',
    ],
    ids=["half", "NULs", "deep list", "deep object", "wrong types", "text", "a string", "null id"],
)
def test_a_line_that_cannot_be_read_is_counted_and_the_rest_is_read(tmp_path, bad):
    reading = ReaderState()
    (history,) = read(write(tmp_path / "s.jsonl", GOOD[0], bad, GOOD[1]), reading)
    assert [step.outcome for step in history.steps] == ["failure"]
    assert reading.unrecognized_lines == 1


def test_half_characters_and_bytes_that_are_no_text_are_replaced(tmp_path):
    half = LOG.result("toolu_1", "HALF", 2, is_error=True)
    import json

    line = (
        json.dumps(half)
        .encode()
        .replace(b"HALF", rb"no file \ud83d named \\ud83d or \ud83d\ude00 \xff".replace(rb"\xff", b"\xff"))
    )
    (history,) = read(write(tmp_path / "s.jsonl", GOOD[0], line))
    failure = history.steps[0].failure
    assert failure is not None
    assert "\ufffd" in failure.message
    assert "\\ud83d" in failure.message
    assert "\U0001f600" in failure.message


def test_a_line_of_50_mb_is_read_and_a_longer_one_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(reading_lines, "MAX_LINE_BYTES", 1_000_000)
    long = LOG.result("toolu_1", "x" * 3_000_000, 2)
    path = write(tmp_path / "s.jsonl", GOOD[0], long, GOOD[1])
    with LogLines(path) as lines:
        format = detect_log_format(lines)
        assert format is not None
        (history,) = format.read(lines, ReaderState())
        assert lines.skipped_lines == 1
        assert lines.offset == path.stat().st_size
    assert history.steps[0].outcome == "failure"
    monkeypatch.undo()
    path = write(tmp_path / "s.jsonl", GOOD[0], LOG.result("toolu_1", "x" * 50_000_000, 2))
    tracemalloc.start()
    (history,) = read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert history.steps[0].outcome == "success"
    assert peak < 160_000_000


def test_half_a_gzip_gives_what_is_in_it_and_says_so(tmp_path):
    plain = write(tmp_path / "s.jsonl", *GOOD, *[LOG.user("x" * 100)] * 5000).read_bytes()
    path = tmp_path / "s.jsonl.gz"
    path.write_bytes(gzip.compress(os.urandom(0) + plain)[:-40])
    with LogLines(path) as lines:
        format = detect_log_format(lines)
        assert format is not None
        (history,) = format.read(lines, ReaderState())
        assert "gzip file is truncated" in lines.read_error
    assert len(history.steps) == 1


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(UnreadableFileError, match="not a regular file"):
        LogLines(tmp_path / "pipe.jsonl")
    with pytest.raises(UnreadableFileError, match="directory"):
        LogLines(tmp_path)
    with pytest.raises(UnreadableFileError, match="No such file"):
        LogLines(tmp_path / "absent.jsonl")


def test_an_empty_file_and_a_strangers_are_of_no_format(tmp_path):
    for text in ("", "\n\n", '{"name": "left-pad", "version": "1.0"}', "hello", "[1, 2, 3]"):
        path = tmp_path / "x.json"
        path.write_text(text)
        with LogLines(path) as lines:
            assert detect_log_format(lines) is None


SNIPPETS = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [
            b'{"type":"assistant","sessionId":"s","message":{"content":[{"type":"tool_use","id":"i","name":"n","input":{}}]}}',
            b'{"type":"user","sessionId":"s","message":{"content":[{"type":"tool_result","tool_use_id":"i","is_error":true}]}}',
            b'{"type":"response_item","payload":{"type":"function_call","call_id":"c","name":"n","arguments":"{"}}',
            b'{"type":"response_item","payload":{"type":"function_call_output","call_id":"c","output":"Exit code: 1"}}',
            b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"t","name":"execute_tool x"}]}]}]}',
            b'{"role":"tool","tool_call_id":"c","content":"Error: x"}',
            b'{"sessionId":"s","projectHash":"h","messages":[{"type":"gemini","toolCalls":[{"id":"a","status":"error"}]}]}',
            b'{"run_id":"r","seq":1,"tool":"t","outcome":"failure","parameters":{},"error":"x"}',
            b'{"mulligan":"export","version":1}',
            b'{"run":{"id":"run_a"},"steps":[{"run":"run_a","seq":1,"call":1}]}',
        ]
    ),
)


@settings(max_examples=60)
@given(st.lists(SNIPPETS, max_size=8), st.sampled_from(sorted(FORMATS)), st.integers(0, 40))
def test_no_file_is_fatal_to_any_reader(tmp_path_factory, snippets, name, cut):
    path = tmp_path_factory.mktemp("logs") / "s.jsonl"
    path.write_bytes(b"\n".join(snippets)[: -cut or None])
    with LogLines(path) as lines:
        try:
            for history in FORMATS[name].read(lines, ReaderState(keeps_results=True)):
                assert history.run.id
                assert all(step.run == history.run.id for step in history.steps)
        except UnreadableFileError:
            assert name == "mulligan"
