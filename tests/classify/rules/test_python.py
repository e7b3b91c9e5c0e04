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
        TypeError("move() got an unexpected keyword argument 'topk'"),
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
        (TypeError("unsupported operand type(s) for +: 'int' and 'str'"), "orchestration/uncaught_exception"),
        (TypeError("'NoneType' object is not iterable"), "orchestration/uncaught_exception"),
    ],
)
def test_a_particular_word_outweighs_a_class_that_speaks_of_the_arguments(error: Exception, kind: str) -> None:
    assert classify(error, tool="move").kind == kind


def test_a_missing_key_inside_a_tool_is_a_bug_in_it() -> None:
    assert classify(text="'total'", exception="KeyError", tool="report").kind == "orchestration/uncaught_exception"


@pytest.mark.parametrize("name", ["app.OrderNotFound", "app.UserNotFoundError", "NoSuchInvoice"])
def test_the_name_of_an_unknown_class_tells_the_kind_if_its_text_does_not(name: str) -> None:
    assert classify(text="7", exception=name, tool="shop").kind == "tool/not_found"
    assert classify(text="Your card was declined.", exception=name, tool="shop").kind != "tool/not_found"


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
        ("All 100 requests of today are used up.", "tool/quota_exceeded"),
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
        ("invalid patch: The first line of the patch must be '*** Begin Patch'", "tool/invalid_arguments"),
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


def test_the_code_of_a_mail_server_is_no_status_of_http() -> None:
    failure = classify(text="(535, b'5.7.8 rejected')", exception="smtplib.SMTPAuthenticationError", status=535)
    assert failure.kind == "tool/auth_error"


def test_the_status_of_a_remote_call_is_read_from_its_text() -> None:
    text = 'status = StatusCode.INTERNAL\n\tdetails = "panic in handler: nil pointer dereference"'
    assert classify(text=text, tool="stock").kind == "tool/api_error"
    assert classify(text=text.replace("INTERNAL", "NOT_FOUND"), tool="stock").kind == "tool/not_found"


@pytest.mark.parametrize(
    "text",
    [
        "Found multiple exact matches for oldString. Provide more surrounding context.",
        "Guard mismatch: unable to find insert_after substring in the current file.",
        "Could not find matching text to replace",
        "The model used search patterns that don't match anything in the file. Retrying...",
        "src/a.rs does not contain these 17 exact lines in a row:",
        "UnifiedDiffNoMatch: hunk failed to apply!",
        "Edit 0 matched multiple locations in the file at lines: 5, 20.",
        "Expression matches 3 occurrences in file 'a.py'. Please be more specific.",
        "The replacement text is identical to the original. Nothing was changed.",
        "No occurrences of 'getUser' were found in src/api.ts",
        "Patch context mismatch at a.py:33",
        "edit rejected: file content around line 20 has drifted from the patch",
    ],
)
def test_text_that_an_edit_does_not_find_or_finds_twice_is_an_edit_mismatch(text: str) -> None:
    assert classify(text=text, tool="replace_in_file").kind == "tool/edit_mismatch"


def test_words_of_an_edit_tell_nothing_about_other_tools() -> None:
    assert classify(text="No occurrences of 'getUser' in the index", tool="grep").kind != "tool/edit_mismatch"
    assert classify(text="Could not find the pattern in our records", tool="lookup").kind == "tool/not_found"


@pytest.mark.parametrize(
    "text",
    [
        "You must read file /src/a.ts before overwriting it. Use the Read tool first",
        "You have not read this file in this session. Read it before you make changes.",
        "Cannot write to a.yaml: its content on disk is newer than the version you loaded.",
        "File was changed by someone else after you opened it; re-read and retry",
        "You need to view the file before you can edit it",
    ],
)
def test_a_file_that_must_be_read_first_is_stale(text: str) -> None:
    assert classify(text=text, tool="write").kind == "tool/stale_file"


@pytest.mark.parametrize(
    "text",
    [
        "Command(s) not in the allowed commands list. Disallowed commands: 'gh pr view'",
        "Bash command permission check failed for pattern '!ls': it was blocked. For security, ls is not run.",
        "Error: command 'rm -rf /' is blacklisted and was not executed",
        "Command 'curl' is blocked by the allowlist of this workspace",
        "approval policy is Never; reject command",
        "sandbox: write to /usr/local denied",
        "dangerous command detected, not executed",
        "patch rejected: writing outside of the project; rejected by user approval settings",
        "File path '/repo/secret.txt' is ignored by .geminiignore pattern(s).",
        "Domain example.com is not in the list of allowed domains",
        "Import of os is not allowed. Authorized imports are: ['math']",
        "Tool 'write_to_file' is not allowed in architect mode.",
        "The tool is currently disabled by the user, and cannot be called.",
    ],
)
@pytest.mark.parametrize("tool", ["run_shell_command", "frob"])
def test_a_call_that_the_host_does_not_allow_is_no_failed_command(text: str, tool: str) -> None:
    assert classify(text=text, tool=tool).kind == "tool/permission_denied"


def test_an_argument_that_is_not_allowed_is_repaired() -> None:
    for text in ("mode 'x' is not in the allowed values", "cp: path not allowed in destination. Provide only a name."):
        assert classify(text=text, tool="frob").kind == "tool/invalid_arguments"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Error executing tool frob: Tool 'frob' not found in registry.", "tool/unknown_tool"),
        ("Action 'Search it' don't exist, these are the only available Actions: search", "tool/unknown_tool"),
        ("The previous command is still running. Your command is NOT executed.", "orchestration/precondition"),
        ("The command 'npm test' was cancelled because it took more than 30 seconds.", "tool/timeout"),
        ("User did not grant permission to run the command", "none/user_rejected"),
        ("The command was rejected by the reviewer", "none/user_rejected"),
        # What a person of the business decides is a failure of the call. Only the user of the agent steers it.
        ("The section was refused by the reviewer.", "tool/execution_failed"),
    ],
)
def test_what_the_host_of_a_shell_says_is_no_output_of_a_command(text: str, kind: str) -> None:
    assert classify(text=text, tool="run_shell_command").kind == kind


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (422, "{'message': 'Validation Failed', 'errors': [{'message': 'A pull request already exists for a:b.'}]}"),
        (None, "POST https://api.example.com/repos/a/b/pulls: 422 Validation Failed [A pull request already exists]"),
        (422, '{"errors":{"email":["has already been taken"]}}'),
        (None, "PUT https://api.example.com/pulls/1/merge: 405 Pull Request is not mergeable []"),
        (400, "Keys for idempotent requests can only be used with the same parameters they were first used with."),
        (None, "Slack API error: name_taken"),
    ],
)
def test_what_exists_already_is_a_conflict_whatever_the_status(status: int | None, text: str) -> None:
    assert classify(text=text, tool="create", status=status).kind == "tool/conflict"


def test_a_status_of_422_without_a_conflict_is_about_the_arguments() -> None:
    text = "POST https://api.example.com/issues: 422 Validation Failed [{Field:title Code:missing_field}]"
    assert classify(text=text, tool="create").kind == "tool/invalid_arguments"
    assert classify(text="The title is blank", tool="create", status=422).kind == "tool/invalid_arguments"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Error: An API error occurred: missing_scope", "tool/permission_denied"),
        ("Slack API error: invalid_auth", "tool/auth_error"),
        ("Notion API error: object_not_found", "tool/not_found"),
        ("Slack API error: not_in_channel", "orchestration/precondition"),
        ("Slack API error: fatal_error", "tool/api_error"),
    ],
)
def test_a_code_at_the_end_of_a_sentence_tells_the_kind(text: str, kind: str) -> None:
    assert classify(text=text, tool="frob").kind == kind


def test_an_internal_error_that_names_the_arguments_is_about_them() -> None:
    text = '{"id":1,"error":{"code":-32603,"message":"Internal error","data":"Missing required arguments"}}'
    assert classify(text=text, tool="frob").kind == "tool/invalid_arguments"
    assert classify(text="Internal error: handler crashed", tool="frob").kind == "tool/api_error"


@pytest.mark.parametrize(
    "text",
    [
        'status = StatusCode.RESOURCE_EXHAUSTED\n\tdetails = "Received message larger than max (5242880 vs. 4194304)"',
        "maxContentLength size of 10485760 exceeded",
        "stdout maxBuffer length exceeded",
        "PDF has 400 pages, which is too many to read at once.",
    ],
)
def test_a_response_that_the_client_cannot_take_is_too_large(text: str) -> None:
    assert classify(text=text, tool="fetch").kind == "tool/output_too_large"


@pytest.mark.parametrize(
    "text",
    [
        "No good DuckDuckGo Search Result was found",
        "Google hasn't returned any results for this query.",
        "The search came back empty.",
    ],
)
def test_a_search_that_found_nothing_useful_has_no_results(text: str) -> None:
    assert classify(text=text, tool="web_search").kind == "retrieval/no_results"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Issue does not exist or you do not have permission to see it.", "tool/not_found"),
        ("Element index 42 does not exist", "tool/not_found"),
        (
            '{"errors": [{"extensions": {"path": "$.article.name"}, "message": "field \\"name\\" not found in type"}]}',
            "retrieval/invalid_query",
        ),
        ("Target page, context or browser has been closed", "tool/connection_error"),
        ("This tool cannot read binary files.", "tool/invalid_arguments"),
        ("Refusing to overwrite existing file a.txt.", "tool/conflict"),
    ],
)
def test_the_whole_sentence_decides_and_not_its_first_word(text: str, kind: str) -> None:
    assert classify(text=text, tool="frob").kind == kind


@pytest.mark.parametrize(
    "text",
    [
        "Exit code 1\nFAIL  shop: unit suite failed, see output above\n0/1 passed",
        '<summary passed=0 failed=11 /><testFailure name="cart.test.ts#adds items">',
    ],
)
def test_runners_without_a_name_report_failed_tests(text: str) -> None:
    assert classify(text=text, tool="runTests").kind == "tool/test_failure"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("You can book at most 9 passengers", "orchestration/constraint_violation"),
        ("You are doing that too much. Try again in 9 minutes.", "tool/rate_limit"),
        ("No reply from the device after 10 seconds", "tool/timeout"),
        ("Lost contact with the device", "tool/connection_error"),
        ("The printer is out of order", "tool/unavailable"),
        ("We hit a snag while processing your request", "tool/api_error"),
        ("Your login is no longer valid", "tool/auth_error"),
        ("The reply was garbled", "tool/invalid_response"),
        ("The document is 900 pages long. Ask for a range of pages.", "tool/output_too_large"),
        ("I found nothing about that", "retrieval/no_results"),
        ("The game is over", "orchestration/invalid_state"),
        ("Too many recipients: 120 given, 50 possible", "tool/invalid_arguments"),
        ("A meeting overlaps with this slot", "tool/conflict"),
        ("You are not a member of this project", "tool/permission_denied"),
        ("No database selected", "orchestration/precondition"),
        ("That ticket was deleted", "tool/not_found"),
        ("line_start (50) is greater than line_end (10)", "tool/invalid_arguments"),
        ("Only one coupon per order", "orchestration/constraint_violation"),
    ],
)
def test_a_sentence_of_a_service_without_a_known_word_is_guessed(text: str, kind: str) -> None:
    failure = classify(text=text, tool="frob")
    assert (failure.kind, failure.confidence <= 0.5) == (kind, True)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Error executing tool frob: Component/s is required.", "tool/invalid_arguments"),
        ("Error executing tool frob: it broke", "tool/execution_failed"),
        ("Code execution failed at line 'd[9]' due to: IndexError: list index out of range", "tool/execution_failed"),
        ("Refused to fetch http://10.0.0.1/: it is not a public address.", "tool/permission_denied"),
        ("It is not permitted to evaluate other functions than the provided tools", "tool/permission_denied"),
        ("This tool must be called from within an editing session", "orchestration/precondition"),
        ("Only 100 lookups are allowed per day and you have used them all.", "tool/quota_exceeded"),
        ("Cannot locate src/x.py", "tool/file_not_found"),
        ("Daily limit of 500 requests reached", "tool/quota_exceeded"),
        ("Transfers between these accounts are not allowed", "orchestration/constraint_violation"),
        ("Invalid tool name: lookup", "tool/unknown_tool"),
        ("The item is out of stock", "orchestration/precondition"),
        ("not authorized on admin to execute command find", "tool/permission_denied"),
        ("I couldn't find anything matching that", "retrieval/no_results"),
    ],
)
def test_the_sentence_inside_a_wrapper_decides(text: str, kind: str) -> None:
    assert classify(text=text, tool="frob").kind == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('File "bin/main.ml", line 3, characters 8-11:\nError: Unbound value foo', "tool/build_failure"),
        ("[FAIL. Reason: assertion failed: 1 != 2] test_Increment()", "tool/test_failure"),
        ("Coverage failure: total of 71 is less than fail-under=80", "tool/test_failure"),
        ("sudo: a terminal is required to read the password", "tool/auth_error"),
        ("Run gh auth login to authenticate", "tool/auth_error"),
    ],
)
def test_programs_of_less_common_languages_and_services_are_known(text: str, kind: str) -> None:
    assert classify(text=f"Exit code 1\n{text}", tool="Bash").kind == kind


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (400, "You cannot cancel this PaymentIntent because it has a status of canceled.", "tool/conflict"),
        (None, "Cannot delete volume v-1 because it is in the 'creating' state", "tool/conflict"),
        (None, "This charge cannot be captured since its status is failed", "tool/conflict"),
        (None, '[{"message":"no access to this record","errorCode":"UNABLE_TO_LOCK_ROW"}]', "tool/conflict"),
        (None, "unable to obtain exclusive access to this record", "tool/conflict"),
        (409, "The document was changed by another user. Expected version 7, found 8.", "tool/conflict"),
        (403, "Response too large to return. Consider a destination table.", "tool/output_too_large"),
        (403, "Only the owner can share this file", "tool/permission_denied"),
        (None, "Error: Function get_stock_price not found.", "tool/unknown_tool"),
        (None, "function lower(integer) does not exist", "retrieval/invalid_query"),
        (None, "FUNCTION shop.total does not exist", "retrieval/invalid_query"),
        (None, "no unique or exclusion constraint matching the ON CONFLICT specification", "retrieval/invalid_query"),
        (None, 'duplicate key value violates unique constraint "users_pkey"', "tool/conflict"),
        (400, "Search query must be at least 2 characters", "retrieval/invalid_query"),
        (None, "connection to server failed: FATAL: sorry, too many clients already", "tool/unavailable"),
        (None, "connection to server failed: server closed the connection", "tool/connection_error"),
        (None, "error retrieving channels from channels.list: missing_scope", "tool/permission_denied"),
        (None, "The service returned a response that could not be parsed: missing field `a`", "tool/invalid_response"),
        (None, "Tool call repetition limit reached for read_file.", "orchestration/loop_detected"),
    ],
)
def test_what_services_and_databases_say_about_state_size_and_names(status: int | None, text: str, kind: str) -> None:
    assert classify(text=text, status=status).kind == kind
