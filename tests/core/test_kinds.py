"""Every kind has a text that leads to it, a hint that helps, and a row on the page."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import Any

import pytest

from mulligan import AgentError, InfraError
from mulligan.classify.classifier import Classifier, classify
from mulligan.classify.rules import RuleTable, words
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect, build_tool_response
from mulligan.core.kinds import KINDS, TYPES, render_page
from mulligan.core.records import decode, encode
from mulligan.redaction import Redactor

# Written for this test, or said by programs that were run for it.
EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "tool/timeout": [
        {"text": "curl: (28) Operation timed out after 3001 milliseconds with 0 bytes received"},
        {"text": "The weather service did not respond within 30 seconds", "tool": "weather"},
        {"error": TimeoutError()},
        {"status": 504, "tool": "crm"},
    ],
    "tool/connection_error": [
        {"text": "curl: (7) Failed to connect to localhost port 9 after 0 ms: Couldn't connect to server"},
        {"text": "getaddrinfo ENOTFOUND api.weather.invalid"},
        {"error": ConnectionResetError(104, "Connection reset by peer")},
        {"text": "ssh: connect to host build-7 port 22: No route to host", "tool": "deploy"},
    ],
    "tool/unavailable": [
        {"text": "The booking service is temporarily unavailable, please come back tomorrow.", "tool": "book"},
        {"text": "Cannot connect to the Docker daemon at tcp://build:2375. Is the docker daemon running?"},
        {"text": "sqlite3.OperationalError: database is locked"},
        {"status": 503, "tool": "crm"},
    ],
    "tool/rate_limit": [
        {"text": "Slow down: 60 calls per minute are allowed", "tool": "geocode"},
        {"status": 429, "tool": "geocode"},
    ],
    "tool/quota_exceeded": [
        {"text": "Your account has run out of searches.", "tool": "search", "status": 429},
        {"text": "Monthly quota exceeded", "tool": "geocode", "status": 429},
        {"text": "This request exceeds your plan's set usage limit.", "tool": "search", "status": 432},
        {"text": "Payment Required: insufficient credits to perform this request.", "tool": "scrape", "status": 402},
        {"text": "Error: out of credits, top up your account", "tool": "Bash", "is_error": True},
    ],
    "tool/captcha_required": [
        {"text": "captcha required", "tool": "fetch", "status": 403},
        {"text": "Please verify you are a human.", "tool": "fetch", "status": 429},
        {"text": "Checking your browser before accessing example.com", "tool": "fetch", "status": 503},
        {"text": "curl: our systems have detected unusual traffic from your network", "tool": "Bash", "is_error": True},
    ],
    "tool/api_error": [
        {"text": "500 Internal Server Error", "tool": "crm", "status": 500},
        {"text": "Something went wrong on our side. We have been notified.", "tool": "crm"},
    ],
    "tool/invalid_response": [
        {"text": "Expecting value: line 1 column 1 (char 0)", "exception": "json.JSONDecodeError"},
        {"text": "Failed to parse the response of the upstream server: unexpected end of JSON input", "tool": "crm"},
    ],
    "tool/auth_error": [
        {"text": "You are not logged in. Run `acme login` first.", "tool": "acme"},
        {"text": "git@example.org: Permission denied (publickey).", "tool": "push"},
        {"text": "fatal: Authentication failed for 'https://example.org/a.git/'", "tool": "push"},
        {"status": 401, "tool": "crm"},
    ],
    "tool/permission_denied": [
        {"text": "touch: cannot touch '/etc/motd': Permission denied", "tool": "touch"},
        {"text": "Your plan does not have permission to export invoices.", "tool": "export"},
        {"error": PermissionError(13, "Permission denied")},
    ],
    "tool/invalid_arguments": [
        {"text": "search() got an unexpected keyword argument 'topk'", "tool": "search"},
        {"text": "1 validation error for Search\ntop_k\n  Input should be less than or equal to 10", "tool": "search"},
        {"text": "'colour' is a required property", "tool": "paint"},
        {"error": ValueError("top_k must be <= 10, got 50")},
        {"status": 422, "tool": "crm"},
    ],
    "tool/unknown_tool": [
        {"text": "Unknown tool: serch", "tool": "serch"},
        {"error": {"jsonrpc": "2.0", "id": 4, "error": {"code": -32601, "message": "Method not found"}}},
        {"text": "Tool 'get_wether' not found. Available tools: get_weather", "tool": "get_wether"},
    ],
    "tool/not_found": [
        {"text": "No customer with the number 4711.", "tool": "get_customer"},
        {"text": "Order O-17 could not be found", "tool": "get_order"},
        {"text": "ERROR: No matching distribution found for nosuchpackage", "tool": "pip"},
        {"status": 404, "tool": "crm"},
    ],
    "tool/conflict": [
        {"text": "sqlite3.IntegrityError: UNIQUE constraint failed: users.email"},
        {"text": "A calendar with this name already exists.", "tool": "create_calendar"},
        {"text": " ! [rejected]        main -> main (non-fast-forward)\nerror: failed to push some refs"},
        {"error": FileExistsError(17, "File exists")},
    ],
    "tool/edit_mismatch": [
        {"text": "error: patch failed: app.py:3\nerror: app.py: patch does not apply", "tool": "apply"},
        {"text": "old_str `def f()` did not appear verbatim in app.py, nothing was replaced.", "tool": "edit"},
        {"text": "Hunk #2 FAILED at 17.\n1 out of 2 hunks FAILED", "tool": "patch"},
    ],
    "tool/stale_file": [
        {"text": "notes.md has been modified since you last saw it. Read it again before you edit it.", "tool": "edit"},
        {"text": "You must read the file with the read tool before you overwrite it", "tool": "write"},
    ],
    "tool/file_not_found": [
        {"text": "cat: notes.txt: No such file or directory", "tool": "sh"},
        {"error": FileNotFoundError(2, "No such file or directory", "notes.txt")},
        {"text": "fatal: pathspec 'notes.txt' did not match any files"},
    ],
    "tool/command_not_found": [
        {"text": "bash: line 1: frobnicate: command not found"},
        {"text": "sh: 1: frobnicate: not found"},
        {"text": "'frobnicate' is not recognized as an internal or external command,\noperable program or batch file."},
        {"text": "Exit code 127\nxargs: frobnicate: No such file or directory", "tool": "Bash"},
    ],
    "tool/build_failure": [
        {
            "text": "a.c: In function 'main':\na.c:1:14: error: 'x' undeclared (first use in this function)",
            "tool": "Bash",
        },
        {"text": "error[E0308]: mismatched types\n --> src/main.rs:2:18", "tool": "Bash"},
        {"text": "src/a.ts(1,7): error TS2322: Type 'string' is not assignable to type 'number'."},
        {"text": "# example.org/a\n./a.go:4:2: undefined: frob", "tool": "Bash"},
        {"text": "A.java:1: error: ';' expected\nclass A { int x }\n1 error"},
        {"text": '  File "a.py", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax'},
        {"text": "/usr/bin/ld: a.o: in function `main':\na.c:(.text+0xa): undefined reference to `frob'"},
        {"text": "make: *** [Makefile:3: all] Error 2"},
        {
            "text": "a.py:1: error: Incompatible types in assignment  [assignment]\nFound 1 error in 1 file (checked "
            "1 source file)"
        },
    ],
    "tool/test_failure": [
        {
            "text": "=== FAILURES ===\n___ test_it ___\nE   assert 1 == 2\nFAILED test_a.py::test_it - assert 1 == "
            "2\n1 failed in 0.03s"
        },
        {"text": "--- FAIL: TestIt (0.00s)\n    a_test.go:6: no\nFAIL\nFAIL\texample.org/a\t0.002s", "tool": "Bash"},
        {"text": "test it ... FAILED\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored"},
        {"text": "FAIL src/a.test.ts\nTests:       1 failed, 2 passed, 3 total"},
        {"text": "Tests run: 3, Failures: 1, Errors: 0, Skipped: 0"},
        {"text": "FAIL: test_it (test_a.T)\nRan 1 test in 0.000s\n\nFAILED (failures=1)"},
        {"text": "[  FAILED  ] Math.Adds (0 ms)\n 1 FAILED TEST"},
        {"text": "67% tests passed, 1 tests failed out of 3"},
    ],
    "tool/output_too_large": [
        {"text": "The file is too large to read at once (1.2 MB).", "tool": "read"},
        {"text": "Response exceeds the maximum allowed size of 25000 tokens", "tool": "list_issues"},
    ],
    "tool/execution_failed": [
        {"error": ModuleNotFoundError("No module named 'frobnicate'")},
        {"text": "'NoneType' object is not subscriptable", "tool": "summarise"},
        {"text": "Segmentation fault (core dumped)", "tool": "run"},
        {"text": "It failed.", "tool": "run", "is_error": True},
        {"error": ZeroDivisionError("division by zero")},
    ],
    "tool/unknown": [{"text": "42", "tool": "run"}, {}],
    "model/rate_limit": [
        {"text": "429 Too Many Requests", "source": "model"},
        {"text": "ThrottlingException: Too many tokens, please wait before you try again.", "source": "model"},
        {"text": "Quota exceeded for requests per minute. Please retry in 21s.", "source": "model", "status": 429},
    ],
    "model/context_length_exceeded": [
        {"text": "This model's maximum context length is 8192 tokens, but you asked for 9000."},
        {
            "text": "Request too large for this model on tokens per min: Limit 1000, Requested 1500.",
            "status": 429,
            "source": "model",
        },
    ],
    "model/invalid_output": [
        {"text": "Could not parse LLM output: `I think`", "source": "model"},
        {"text": "name 'serch' is not defined", "tool": "serch"},
    ],
    "model/output_limit": [
        {"text": "Could not parse response content as the length limit was reached", "source": "model"},
        {"exception": "openai.LengthFinishReasonError", "text": "cut"},
    ],
    "model/timeout": [{"text": "Request timed out.", "exception": "openai.APITimeoutError"}],
    "model/quota_exceeded": [
        {"text": "Your credit balance is too low to use this service.", "status": 400, "source": "model"},
        {"text": "Insufficient Balance", "status": 402, "source": "model"},
    ],
    "model/unavailable": [
        {"text": "Overloaded", "status": 529, "source": "model"},
        {"text": "Connection error.", "exception": "anthropic.APIConnectionError"},
    ],
    "model/bad_request": [
        {"text": "max_tokens: 9000 > 4096, which is the most this model can write", "status": 400, "source": "model"},
        {"text": "messages.2: image exceeds 5 MB maximum: 7 MB", "status": 400, "source": "model"},
    ],
    "model/auth_error": [
        {"text": "API key not valid. Please pass a valid API key.", "status": 400, "source": "model"},
        {"text": "no", "status": 401, "source": "model"},
    ],
    "model/content_policy": [
        {"text": "The response was filtered by our content management policy.", "status": 400, "source": "model"}
    ],
    "model/not_found": [
        {"text": "The model `gpt-0` does not exist.", "status": 404, "source": "model"},
        {"text": "model 'tiny' not found, try pulling it first", "source": "model"},
    ],
    "model/unknown": [{"text": "hm", "source": "model"}],
    "retrieval/no_results": [
        {"text": "No results found for 'unicorns'.", "tool": "search"},
        {"text": "Order O-17 was not found", "source": "retrieval"},
    ],
    "retrieval/connection_error": [{"error": ConnectionRefusedError(111, "Connection refused"), "source": "retrieval"}],
    "retrieval/timeout": [{"error": TimeoutError("5 s"), "source": "retrieval"}],
    "retrieval/invalid_query": [
        {"text": 'near "FORM": syntax error', "exception": "sqlite3.OperationalError"},
        {"text": 'ERROR:  relation "ordres" does not exist'},
        {"text": "Query vector dimension 3 does not match index dimension 768", "tool": "search"},
        {"text": "ORA-00942: table or view does not exist"},
    ],
    "retrieval/unknown": [{"text": "hm", "source": "retrieval"}],
    "orchestration/max_retries_exceeded": [
        {"text": "Recursion limit of 25 reached", "exception": "langgraph.errors.GraphRecursionError"},
    ],
    "orchestration/invalid_state": [
        {"text": "Invalid state: the machine is off", "tool": "brew"},
        {"text": "no", "exception": "asyncio.InvalidStateError"},
    ],
    "orchestration/constraint_violation": [{"text": "This exceeds the daily spending budget.", "tool": "pay"}],
    "orchestration/precondition": [
        {"text": "Close the lid before starting the machine.", "tool": "start"},
        {"text": "fatal: not a git repository (or any of the parent directories): .git"},
    ],
    "orchestration/uncaught_exception": [{"error": KeyError("user"), "source": "orchestration"}],
    "orchestration/unknown": [{"text": "hm", "source": "orchestration"}],
    # Never read out of an error's words: whoever notices a spiral says so by name.
    "tool/wrong_approach": [
        {"error": AgentError("Three edits of one line have failed alike.", code="wrong_approach"), "tool": "edit"}
    ],
    "orchestration/loop_detected": [
        {"error": AgentError("The same call has failed three times.", code="orchestration/loop_detected")},
        {"text": "Loop detected: the same tool call was repeated.", "tool": "search"},
    ],
    "none/user_rejected": [
        {"text": "The command was rejected by the user.", "tool": "Bash", "is_error": True},
        {"text": "User declined to run this tool", "tool": "delete"},
    ],
    "none/cancelled": [{"exception": "asyncio.CancelledError", "text": "x"}, {"text": "The operation was cancelled."}],
    "none/collateral": [{"text": "Skipped because another tool call failed", "tool": "Read"}],
}


@pytest.mark.parametrize(("kind", "given"), [(kind, given) for kind, all_ in EXAMPLES.items() for given in all_])
def test_the_kind_is_found_in_a_text_of_its_own(kind: str, given: dict[str, Any]) -> None:
    asked = dict(given)
    error = asked.pop("error", None)
    assert str(classify(error, **asked).kind) == kind


def test_every_kind_has_an_example_here_or_in_a_rule() -> None:
    rules = {str(rule.kind) for table in vars(words).values() if isinstance(table, RuleTable) for rule in table}
    assert set(EXAMPLES) | rules >= set(KINDS)


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_every_kind_has_a_hint_of_whole_sentences(kind: Kind) -> None:
    assert kind.hint.endswith(".")
    assert 20 <= len(kind.hint) <= 200
    assert kind.type in TYPES


@pytest.mark.parametrize("error", [AgentError, InfraError])
@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_the_code_of_a_declared_error_decides_the_kind_and_the_hint_is_never_empty(
    kind: Kind, error: type[AgentError] | type[InfraError]
) -> None:
    """The code is the name of the kind, in any case, as a text or as a member of an enum."""
    Code = enum.Enum("Code", {"FULL": str(kind), "SHORT": kind.code.upper(), kind.code.upper(): 1})  # noqa: N806
    assert classify(error("no", code=Code.FULL)).kind == kind
    for code in (Code.SHORT, Code[kind.code.upper()], kind.code):
        failure = classify(error("no", code=code), source=kind.type)
        assert failure.kind == kind
        assert failure.hint
        assert decode(encode(failure), Failure).code == failure.code.lower() or failure.code == kind.code.upper()


@pytest.mark.parametrize(
    ("code", "kind"),
    [("precondition", "orchestration/precondition"), ("no_results", "retrieval/no_results"),
     ("not_found", "tool/not_found"), ("unknown", "tool/unknown"), ("too_many", "tool/invalid_arguments")],
)  # fmt: skip
def test_a_code_of_another_type_names_its_kind_if_no_other_kind_has_it(code: str, kind: str) -> None:
    assert classify(AgentError("no", code=code), source="tool").kind == kind


@pytest.mark.parametrize("remedy", [remedy.value for remedy in Remedy])
def test_a_kind_declared_without_a_hint_has_the_hint_of_its_remedy(remedy: str) -> None:
    kinds = {"tool/declined": {"remedy": remedy}, "tool/empty": {"hint": "", "remedy": remedy}}
    declared = Classifier.from_settings({"kinds": kinds}).kinds
    assert declared["tool/declined"].hint
    assert declared["tool/empty"].hint


def test_no_kind_by_itself_claims_that_nothing_ran_except_where_nothing_can_have() -> None:
    sure = {str(kind) for kind in KINDS.values() if kind.took_effect is TookEffect.NO}
    assert sure == {
        "tool/unknown_tool",
        "tool/edit_mismatch",
        "tool/stale_file",
        "orchestration/loop_detected",
        "none/user_rejected",
    }


def test_only_kinds_that_time_can_mend_are_waited_for() -> None:
    waiting = {kind.code for kind in KINDS.values() if kind.remedy is Remedy.RETRY}
    assert waiting == {"timeout", "connection_error", "unavailable", "rate_limit", "api_error", "invalid_response"}


def test_the_page_of_kinds_is_the_table() -> None:
    root = Path(__file__).resolve().parents[2]
    assert (root / "docs" / "kinds.md").read_text(encoding="utf-8") == render_page(), (
        "python -m mulligan.core.kinds > docs/kinds.md"
    )


# Unknown outcomes

UNKNOWN_OUTCOME_CODES = set(
    "timeout connection_error unavailable rate_limit api_error invalid_response conflict output_too_large "
    "execution_failed wrong_approach max_retries_exceeded uncaught_exception unknown cancelled collateral".split()
)
"""Codes of failures after which a call may have executed. All others refuse the call, or say what it did."""
ERRORS = Path(__file__).parents[2] / "evals" / "errors"


def tell_outcome(failure: Failure, *, has_effects: bool = True) -> str:
    return str(build_tool_response(failure, Redactor(), "pay", has_effects=has_effects).get("outcome", ""))


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.type != "model"])
def test_unknown_outcome_is_told_of_a_kind_only_where_the_call_may_have_executed(kind: Kind) -> None:
    may_have_executed = kind.code in UNKNOWN_OUTCOME_CODES
    assert bool(tell_outcome(Failure.of(kind))) is may_have_executed
    assert not tell_outcome(Failure.of(kind), has_effects=False), "a read-only tool has no outcome to check"
    assert "executed" not in kind.hint
    assert "took effect" not in kind.hint


@pytest.mark.parametrize(
    "error",
    [
        {"text": "Input validation error: 'to' is a required property"},
        {"text": "-32602: Invalid arguments for tool send: to: Required"},
        {"text": "ENOENT: no such file or directory, open '/tmp/a.txt'", "tool": "read_file"},
        {"error": FileNotFoundError(2, "No such file or directory", "a.txt")},
        {"text": "Permission denied: /etc/shadow"},
        {"status": 403, "text": "Forbidden"},
        {"error": ConnectionRefusedError(111, "Connection refused")},
        {"text": "connect ECONNREFUSED 127.0.0.1:5432", "tool": "query"},
        {"text": "getaddrinfo ENOTFOUND api.weather.invalid"},
        {"status": 404, "text": "Order 7 not found"},
        {"status": 422, "text": "amount must be positive"},
    ],
    ids=str,
)
def test_unknown_outcome_is_not_told_after_a_refusal(error: dict[str, Any]) -> None:
    assert not tell_outcome(classify(source="tool", is_error=True, **error))


@pytest.mark.parametrize(
    "error",
    [
        {"error": TimeoutError("no answer in 30 s")},
        {"error": ConnectionResetError(104, "Connection reset by peer")},
        {"status": 500, "text": "Internal Server Error"},
        {"status": 502, "text": "Bad Gateway"},
        {"text": "MCP error -32001: Request timed out"},
    ],
    ids=str,
)
def test_unknown_outcome_is_told_where_the_reply_was_lost(error: dict[str, Any]) -> None:
    assert tell_outcome(classify(source="tool", is_error=True, **error))


@pytest.mark.parametrize("name", ["libraries.jsonl", "programs.jsonl"])
def test_unknown_outcome_is_told_of_no_refusal_in_the_corpus(name: str) -> None:
    rows = [json.loads(line) for line in (ERRORS / name).read_text().splitlines()]
    told_kinds = set()
    for row in rows:
        fields = {field: row.get(field) for field in ("text", "tool", "status", "exception")}
        failure = classify(source="tool", is_error=True, **fields)
        if tell_outcome(failure):
            told_kinds.add(failure.kind.code)
            assert "refused" not in failure.message, row["name"]
    assert told_kinds <= UNKNOWN_OUTCOME_CODES
    assert told_kinds
