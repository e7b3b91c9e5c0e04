"""Shortcuts that look for bytes in what mulligan wrote: each constant stands where its shortcut looks for it.

A shortcut that no longer matches is silent: the result is the same and slow, or a record is taken for another. These
tests encode real records, so that a renamed field fails here.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
from session_logs import ClaudeCode
from struct_filler import encoded_fields, fill

from mulligan import journal
from mulligan.cli import clients, install
from mulligan.core import records
from mulligan.core.events import ContextCompacted, StepEnded
from mulligan.core.records import Change, Compaction, Link, Step, decode, encode
from mulligan.hooks import main as hook_main
from mulligan.learn.pattern_decisions import PatternDecision
from mulligan.server import bodies as api_bodies
from mulligan.server.payloads import BatchPayload
from mulligan.store import erasure, fix_queries, rows
from mulligan.transcripts import claude_code, formats, recorded_runs

# remember


def test_links_that_differ_only_in_where_they_are_share_the_rest_of_their_bytes() -> None:
    links = [fill(Link, run=f"run_{number}", failed_call=number, recovering_call=number + 1) for number in (1, 2)]
    texts = [encode(link) for link in links]
    remainders = {text.partition(fix_queries.METHOD_KEY)[2] for text in texts}
    assert len(remainders) == 1
    assert remainders != {b""}, f"{fix_queries.METHOD_KEY!r} is not in {texts[0]!r}"
    assert all(text.count(fix_queries.METHOD_KEY) >= 1 for text in texts)
    fields = Link.__struct_encode_fields__
    assert fields.index(fix_queries.METHOD_KEY.decode().strip('":')) == 3, (
        "only run, failed_call and recovering_call may stand before it"
    )


def test_links_in_the_same_words_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []

    def count(data: Any, type: Any) -> Any:
        decoded.append(data)
        return decode(data, type)

    monkeypatch.setattr(fix_queries, "decode", count)
    change = Change(path="k", operation="clamp", before=50, after=10)
    links = [
        (
            f"run_{number}",
            encode(Link(run=f"run_{number}", failed_call=number, recovering_call=9, method="agent", changes=(change,))),
        )
        for number in range(1, 6)
    ]
    assert [count for count, _ in fix_queries.group_links(links)] == [5]
    assert len(decoded) == 1


def test_words_of_the_compression_are_fields_of_records() -> None:
    """Words that no record has any more compress nothing. Those that stand for foreign values are listed."""
    foreign = set("content data description error input items model query results text title url".split())
    words = {word.decode() for word in re.findall(rb'"(\w+)":', rows.DICTIONARY_1)} - {"1"}
    structs = [struct for struct in vars(records).values() if isinstance(struct, type)]
    fields = {name for struct in structs if issubclass(struct, msgspec.Struct) for name in encoded_fields(struct)}
    assert "outcome" in words
    assert sorted(words - foreign - fields) == []
    filled = encode(fill(Step))
    assert len(rows.compress(filled)) < 0.75 * len(filled)
    assert rows.decompress(rows.compress(filled)) == filled


def test_merged_patterns_are_found_by_the_name_of_the_field() -> None:
    """`upkeep` reads it without a type."""
    assert msgspec.json.decode(encode(fill(PatternDecision)))["into"] == "into"


# journal and server


def test_forgotten_frames_decode_to_an_empty_event() -> None:
    event = ContextCompacted(Compaction())
    assert encode(event) == erasure.EMPTY_EVENT
    frame = journal.JournalFrame(0, journal.EVENT_FRAME, erasure.EMPTY_EVENT.ljust(200))
    assert [record for _, record in journal.decode_events([frame])] == [event]


def test_batches_of_our_own_client_take_the_short_way() -> None:
    batch = BatchPayload(client="client_a", journal="a", offset=1, events=[StepEnded(fill(Step))])
    data = encode(batch)
    assert data.startswith(api_bodies.LIBRARY_PREFIXES)
    assert encode(api_bodies.parse_json(data, BatchPayload)) == data


# transcripts


def test_exports_are_recognized_by_their_header() -> None:
    header = encode(fill(recorded_runs.ExportHeader, mulligan="export", version=recorded_runs.EXPORT_VERSION))
    assert header.startswith(b'{"mulligan":')
    assert recorded_runs.recognizes_export(header + b"\n")
    others = [format.name for format in formats.FORMATS.values() if format.recognizes(header + b"\n")]
    assert others == [recorded_runs.EXPORT_NAME]


def test_lines_of_claude_code_about_calls_pass_the_filter() -> None:
    session = ClaudeCode()
    call, text = session.call("t1", "Bash", 1, command="false"), session.user("hello")
    assert claude_code.may_hold_calls(msgspec.json.encode(call))
    assert not claude_code.may_hold_calls(msgspec.json.encode(text))


# hooks and entries


def hook_event(name: str, **fields: Any) -> bytes:
    return msgspec.json.encode({"session_id": "s-1", "hook_event_name": name, "tool_name": "Bash", **fields})


def test_hooks_read_fields_of_agents_by_bytes() -> None:
    data = hook_event("PostToolUse", tool_use_id="t1")
    assert hook_main.find_field(data, b"hook_event_name") == b"PostToolUse"
    assert hook_main.find_field(data, b"session_id") == b"s-1"
    assert hook_main.find_field(data, b"tool_name") == b"Bash"


@pytest.mark.parametrize(
    ("data", "needs_more"),
    [
        (hook_event("PostToolUse", tool_use_id="t1", tool_response={"stdout": "fine"}), False),
        (hook_event("PostToolUseFailure", tool_use_id="t1", error="Exit code 1"), True),
        (hook_event("SessionStart", source="compact"), True),
        (hook_event("SessionStart", source="startup"), False),
        (hook_event("Stop"), False),
    ],
)
def test_hooks_leave_early_where_nothing_failed(data: bytes, needs_more: bool) -> None:
    assert hook_main.should_process("claude-code", data) is needs_more


@pytest.mark.parametrize("agent", clients.AGENTS)
def test_hook_commands_name_a_file_and_are_recognized(agent: str) -> None:
    command = install.build_hook_command(agent)
    (path,) = [word for word in shlex.split(command) if word.endswith(".py")]
    assert Path(path).is_file()
    assert install.HOOK_COMMAND_PATTERN.search(command)


def test_start_scripts_are_recognized_by_their_path() -> None:
    assert clients.SCRIPT_PATTERN.search(str(clients.SCRIPT))
    assert clients.parse_mulligan_arguments(clients.StartCommand("python", ("-ESP", str(clients.SCRIPT), "proxy"))) == (
        "proxy",
    )
