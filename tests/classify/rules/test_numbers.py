"""Numbers and names of error codes decide before words do, in any language."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.classify.classifier import classify
from mulligan.classify.rules.numbers import find_number


@pytest.mark.parametrize(
    ("text", "label", "kind"),
    [
        ("[Errno 13] Keine Berechtigung: '/srv/x'", "errno 13", "tool/permission_denied"),
        ("open '/srv/x': ENOENT", "ENOENT", "tool/file_not_found"),
        ("{ errno: -111, syscall: 'connect' }", "errno 111", "tool/connection_error"),
        ("[Errno -2] Name or service not known", "errno -2", "tool/connection_error"),
        ("java.io.IOException: error=2, Aucun fichier", "errno 2", "tool/file_not_found"),
        ("[WinError 32] O arquivo está em uso", "windows 32", "tool/conflict"),
        ("HRESULT 0x80070005", "windows 5", "tool/permission_denied"),
        ("failed with -2147024891", "windows 5", "tool/permission_denied"),
        ("Systemfehler 53 aufgetreten.", "windows 53", "tool/connection_error"),
        ("Access is denied. (os error 5)", "os error 5", "tool/permission_denied"),
        ("Eingabe-/Ausgabefehler (os error 5)", "os error 5", "tool/execution_failed"),
        ("SQLSTATE 42501", "sqlstate 42501", "tool/permission_denied"),
        ("42P01", "sqlstate 42P01", "retrieval/invalid_query"),
        ("FEHLER:  23505: doppelter Wert", "sqlstate 23505", "tool/conflict"),
        ("ORA-01017", "oracle 1017", "tool/auth_error"),
        ("ORA-00942", "oracle 942", "retrieval/invalid_query"),
        ("ERROR 1045 (28000)", "mysql 1045", "tool/auth_error"),
        ("(1213, 'x')", "mysql 1213", "tool/unavailable"),
        ("Msg 229, Level 14, State 5", "sqlserver 229", "tool/permission_denied"),
        ("SQL0803N", "db2 -803", "tool/conflict"),
        ("SQLITE_CONSTRAINT_UNIQUE", "sqlite CONSTRAINT", "tool/conflict"),
        ("rpc error: code = DeadlineExceeded desc = x", "grpc 4", "tool/timeout"),
        ("14 UNAVAILABLE: x", "grpc 14", "tool/unavailable"),
        ("grpc-status: 16", "grpc 16", "tool/auth_error"),
        ("curl: (28) x", "curl 28", "tool/timeout"),
        ("LDAP: error code 49", "ldap 49", "tool/auth_error"),
        ("550 5.1.1 no", "smtp 5.1.1", "tool/not_found"),
        ("Prozess mit Exit-Code 137 beendet", "exit 137", "tool/execution_failed"),
        ("le processus a rendu le code de sortie 127", "exit 127", "tool/command_not_found"),
    ],
)
def test_a_number_decides_in_any_language(text: str, label: str, kind: str) -> None:
    stated = find_number(text)
    assert stated is not None
    assert stated.label == label
    assert classify(text=text, tool="call").kind == kind


@pytest.mark.parametrize(("code", "kind"), [(126, "tool/permission_denied"), (127, "tool/command_not_found"),
                                            (130, "none/cancelled"), (137, "tool/execution_failed"),
                                            (139, "tool/execution_failed"), (124, "tool/timeout")])  # fmt: skip
def test_an_exit_code_means_the_same_in_every_shell(code: int, kind: str) -> None:
    assert classify(text=f"Exit code {code}", tool="Bash", is_error=True).kind == kind


@pytest.mark.parametrize(
    "text", ["Delivery to 23505 is not offered", "The year (2006) is too early", "the value 42", "ID 1062", "OK", ""]
)
def test_a_number_of_something_else_tells_nothing(text: str) -> None:
    assert find_number(text) is None


def test_words_choose_among_the_kinds_that_a_number_allows() -> None:
    assert classify(text="8 RESOURCE_EXHAUSTED: slow down", tool="call").kind == "tool/rate_limit"
    assert classify(text="8 RESOURCE_EXHAUSTED: monthly quota exceeded", tool="call").kind == "tool/quota_exceeded"


def test_a_number_outweighs_a_status_for_errors_of_any_kind_and_no_other() -> None:
    assert classify(text="SQLSTATE 23505", tool="call", status=500).kind == "tool/conflict"
    assert classify(text="SQLSTATE 23505", tool="call", status=403).kind == "tool/permission_denied"


def test_a_number_after_which_a_retry_fails_again_is_not_retried() -> None:
    assert classify(text="12 UNIMPLEMENTED: x", tool="call").remedy.value == "replan"
    assert classify(text="13 INTERNAL: x", tool="call").remedy.value == "retry"


@given(st.text(), st.lists(st.text()))
def test_no_text_and_no_code_breaks_the_search(text: str, codes: list[str]) -> None:
    find_number(text, tuple(codes))
