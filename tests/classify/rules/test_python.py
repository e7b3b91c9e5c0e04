"""Class and status give the set of kinds, text chooses within it."""

from __future__ import annotations

import http.client
import socket

import pytest

from mulligan.classify.classifier import classify
from mulligan.core.failure import Remedy


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionError("peer went away"), "model/unavailable"),
        (ConnectionRefusedError(111, "Connection refused"), "model/unavailable"),
        (http.client.RemoteDisconnected("closed"), "model/unavailable"),
        (socket.gaierror(-2, "Name or service not known"), "model/unavailable"),
        (TimeoutError(), "model/timeout"),
        (TimeoutError("30 s"), "model/timeout"),
    ],
)
def test_a_model_that_cannot_be_reached_is_waited_for_whatever_client_says_so(error: Exception, kind: str) -> None:
    failure = classify(error, source="model")
    assert (failure.kind, failure.remedy) == (kind, Remedy.RETRY)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("This range is not available."),
        ValueError("Pick north, south, east or west."),
        ValueError("end before start"),
        TypeError("expected str, bytes or os.PathLike object, not int"),
        TypeError("lookup() got an unexpected keyword argument 'topk'"),
    ],
)
def test_a_class_that_speaks_of_the_arguments_outweighs_a_vague_word(error: Exception) -> None:
    assert classify(error, tool="move").kind == "tool/invalid_arguments"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("User 42 does not exist"), "tool/not_found"),
        (ValueError("Table 'orders' already exists"), "tool/conflict"),
        (ValueError("Could not connect to the index server"), "tool/connection_error"),
        (TypeError("unsupported operand type(s) for +: 'int' and 'str'"), "tool/execution_failed"),
        (TypeError("'NoneType' object is not iterable"), "tool/execution_failed"),
    ],
)
def test_a_particular_word_outweighs_a_class_that_speaks_of_the_arguments(error: Exception, kind: str) -> None:
    assert classify(error, tool="move").kind == kind


def test_a_missing_key_inside_a_tool_is_its_own_failure() -> None:
    assert classify(text="'total'", exception="KeyError", tool="report").kind == "tool/execution_failed"


def test_a_command_that_failed_is_not_a_search_without_results() -> None:
    text = "Command 'make' returned non-zero exit status 2."
    assert classify(text=text, exception="subprocess.CalledProcessError", tool="sh").kind == "tool/execution_failed"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("An error occurred (NoSuchKey) when calling the GetObject operation: It is gone.", "tool/not_found"),
        ("An error occurred (BucketAlreadyExists) when calling the CreateBucket operation: no.", "tool/conflict"),
        ('Error from server (Forbidden): pods is forbidden: User "x" cannot list pods', "tool/permission_denied"),
        ('{"ok": false, "error": "missing_scope"}', "tool/permission_denied"),
    ],
)
def test_a_code_says_more_than_everyones_words(text: str, kind: str) -> None:
    assert classify(text=text, tool="cloud").kind == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Rows cannot be deleted on a closed ledger", "orchestration/constraint_violation"),
        ("Maximum 5 items per order", "orchestration/constraint_violation"),
        ("The line must be suspended to resume it", "orchestration/precondition"),
        ("No open documents. Use open_document to choose one first.", "orchestration/precondition"),
        ("Your role (viewer) may not export reports", "tool/permission_denied"),
        ("Fetching this page is not allowed", "tool/permission_denied"),
        ("Origin and destination must be different", "tool/invalid_arguments"),
        ("Username 'ann' is taken", "tool/conflict"),
        ("Unknown contact: Bob", "tool/not_found"),
        ("All 100 requests of today are used up.", "tool/rate_limit"),
        ("upstream connect error or disconnect/reset before headers", "tool/unavailable"),
        ("Skipped because an earlier tool call in this batch failed.", "none/collateral"),
        ("Cancelled: parallel tool call Bash(make) errored", "none/collateral"),
        ("Tool execution aborted", "none/cancelled"),
        ("unsupported call: frob", "tool/unknown_tool"),
    ],
)
def test_what_a_tool_says_in_its_own_words(text: str, kind: str) -> None:
    failure = classify(text=text, tool="frob")
    alike = {"orchestration/constraint_violation", "orchestration/precondition", "tool/conflict"}
    assert failure.kind == kind or (kind in alike and str(failure.kind) in alike)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Failed to find expected lines in a.rs:\n  let x", "tool/edit_mismatch"),
        ("invalid patch: The first line of the patch must be '*** Begin Patch'", "tool/edit_mismatch"),
        (
            "Could not find an exact match for 'old_string' in '/src/a.txt'. If previous edits modified the file, "
            "please use ReadFile to inspect the target lines before retrying.",
            "tool/edit_mismatch",
        ),
        ("No sufficiently similar match found at line: 42 (87% similar, needs 100%)", "tool/edit_mismatch"),
        ("apply_patch verification failed: Failed to read file a.rs: No such file or directory", "tool/file_not_found"),
        ("File path must be within one of the workspace directories: /w", "tool/permission_denied"),
        ("File size exceeds the 20MB limit: dump.sql (55.12MB)", "tool/output_too_large"),
    ],
)
def test_how_several_agents_refuse_an_edit(text: str, kind: str) -> None:
    assert classify(text=text, tool="edit").kind == kind


def test_a_limit_on_tokens_in_the_prompt_is_an_overflow() -> None:
    text = "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000."
    assert classify(text=text, status=400, exception="cohere.BadRequestError").kind == "model/context_length_exceeded"


def test_a_providers_last_retry_is_still_the_providers_failure() -> None:
    text = (
        "An error occurred (ModelNotReadyException) when calling the Converse operation (reached max retries: 1): wait"
    )
    failure = classify(text=text, status=429, exception="botocore.ModelNotReadyException")
    assert failure.kind == "model/unavailable"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("departure_day is in the past", "tool/invalid_arguments"),
        ("rag_lookup needs something to look for.", "tool/invalid_arguments"),
        ("Give a faction, a system or a type", "tool/invalid_arguments"),
        ("Slot 4 was claimed by another team", "tool/conflict"),
        ("The draft has not been reviewed yet", "orchestration/precondition"),
        ("I can only change it while the window is open", "orchestration/precondition"),
        ("The refund exceeds what was paid", "orchestration/constraint_violation"),
        ("The folder escapes the root: ../..", "tool/permission_denied"),
        ("Parcel 1Z not recognised", "tool/not_found"),
    ],
)
def test_a_sentence_in_unknown_words_is_judged_by_its_shape_with_little_confidence(text: str, kind: str) -> None:
    for said in (text, f'{{"error": "{text}"}}'):
        failure = classify(text=said, tool="frob")
        assert failure.kind == kind
        assert failure.confidence <= 0.5


def test_a_sentences_shape_is_not_asked_where_a_class_or_a_program_speaks() -> None:
    assert classify(text="The draft has not been reviewed yet", tool="Bash").kind == "tool/execution_failed"
    assert classify(TimeoutError("it has not been reviewed yet"), tool="frob").kind == "tool/timeout"


def test_a_json_rpc_code_written_into_a_text_names_the_kind() -> None:
    assert classify(text="MCP error -32601: Unknown method tools/cal", tool="frob").kind == "tool/unknown_tool"
    failure = classify(text="MCP error -32602: the limit is 100", tool="frob")
    assert (failure.kind, failure.took_effect.value) == ("tool/invalid_arguments", "unknown")


def test_spellings_and_quotes_make_no_difference() -> None:
    one = classify(text="You can\u2019t view this: you aren\u2019t authorised to read it", tool="frob")
    other = classify(text="You cannot view this: you are not authorized to read it", tool="frob")
    assert one.kind == other.kind == "tool/permission_denied"
