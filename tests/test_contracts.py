"""Contracts that scripts of other people rest on, through the real command line.

One line out for each line in, in order; a bad line gets an `error` and stops nothing; these names of fields, options
and settings. They outlive every rename inside mulligan.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SECRET = "ghp_" + "Q1w2E3r4T5y6U7i8O9p0A1s2D3f4G5h6J7k8"
SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}, "top_k": {"type": "integer", "maximum": 10}}}
BAD_LINES = ("{not json", "[]")


def run(*words: Any, lines: Any = (), code: int = 0, **environment: str) -> str:
    """Run the command in a process of its own, with these lines on stdin."""
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    done = subprocess.run(
        [sys.executable, "-m", "mulligan", *map(str, words)],
        input=text, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout


def run_lines(*words: Any, **options: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*words, **options).splitlines()]


# classify


def test_classify_answers_each_line_with_its_fields() -> None:
    first, bad, empty, last = run_lines(
        "classify",
        "--jsonl",
        "--json",
        lines=[
            {"text": "HTTP 429: rate limit exceeded", "tool": "search", "status": 429, "source": "tool"},
            *BAD_LINES,
            {"text": "connection refused"},
        ],
    )
    for facts in (first, last):
        assert {"kind", "type", "code", "confidence", "fingerprint", "message", "hint"} <= set(facts)
        assert isinstance(facts["confidence"], float)
    assert (first["type"], first["code"]) == ("tool", "rate_limit")
    assert first["message"] == "HTTP 429: rate limit exceeded"
    assert last["code"] == "connection_error"
    assert "line 2" in bad["error"]
    assert "line 3" in empty["error"]


# redact


def test_redact_answers_each_line_and_passes_other_fields_through() -> None:
    first, bad, empty, last = run_lines(
        "redact",
        "--jsonl",
        code=1,
        lines=[{"id": "a", "text": f"use {SECRET}", "other": 5}, *BAD_LINES, {"id": 2, "text": "fine"}],
    )
    assert first == {"id": "a", "text": "use [redacted github]", "other": 5}
    assert last == {"id": 2, "text": "fine"}
    assert set(bad) == set(empty) == {"error"}


def test_redact_takes_a_level() -> None:
    (facts,) = run_lines("redact", "--jsonl", "--all", "--level", "shared", lines=[{"city": "Bern", "n": 3}])
    assert facts == {"city": "[str 4 chars]", "n": "[int]"}


# suggest


def test_suggest_answers_each_line_with_its_id() -> None:
    call = {"tool": "search", "arguments": {"query": "x", "topK": "50"}, "error": "unexpected argument 'topK'"}
    first, bad, empty, wrong, none = run_lines(
        "suggest",
        "--json",
        lines=[
            {"id": "a", **call, "schema": SCHEMA, "clamp": ["top_k"]},
            *BAD_LINES,
            {"id": 4, "tool": "search", "arguments": [1], "error": "bad"},
            {"id": 5, "tool": "search", "arguments": {}, "error": "429 Too Many Requests"},
        ],
    )
    assert first["id"] == "a"
    assert first["kind"].startswith("tool/")
    assert first["abstained"] is False
    (suggestion,) = first["suggestions"]
    assert {"tool", "arguments", "confidence", "source", "automatic"} <= set(suggestion)
    assert (suggestion["tool"], suggestion["arguments"]) == ("search", {"query": "x", "top_k": 10})
    assert (suggestion["source"], suggestion["automatic"]) == ("schema", True)
    assert 0 < suggestion["confidence"] <= 1
    for answer in (bad, empty, wrong):
        assert "error" in answer
        assert "suggestions" not in answer
    assert wrong["id"] == 4
    assert (none["id"], none["suggestions"], none["abstained"]) == (5, [], True)


@pytest.mark.parametrize(("effects", "unprivileged"), [("idempotent", "unprivileged"), ("repeatable", "released")])
def test_suggest_takes_new_and_earlier_names_of_inputs(effects: str, unprivileged: str) -> None:
    schema = {"type": "object", "properties": {"amount": {"type": "integer"}}}
    call = {"tool": "search", "arguments": {"amount": "50"}, "error": "amount is no integer", "schema": schema}
    held, released = run_lines(
        "suggest",
        "--json",
        lines=[
            {"id": 1, **call, "effects": effects},
            {"id": 2, **call, "effects": effects, unprivileged: ["amount"]},
        ],
    )
    for answer in (held, released):
        assert answer["suggestions"][0]["arguments"] == {"amount": 50}
    assert held["suggestions"][0]["automatic"] is False
    assert released["suggestions"][0]["automatic"] is True


# import and export


def call_row(run_id: str, seq: int, error: str | None = None, **parameters: Any) -> dict[str, Any]:
    return {
        "dataset": "shop", "run_id": run_id, "seq": seq, "tool": "order", "parameters": parameters,
        "outcome": "failure" if error else "success", "error": error, "result_excerpt": None if error else "fine",
        "ts": f"2026-03-01T10:00:{seq:02}Z",
    }  # fmt: skip


def test_import_reads_recorded_calls_and_export_writes_them(tmp_path: Path) -> None:
    rows = [call_row("r1", 0, "order_id must be an integer", order_id="1x"), call_row("r1", 1, order_id=1)]
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in [*rows, *BAD_LINES]))
    store = tmp_path / "store.db"
    facts = json.loads(run("import", "--format", "calls", path, "--store", store, "--json"))
    assert (facts["runs"], facts["steps"], facts["lines"], facts["unknown"]) == (1, 2, 4, 2)

    header, history = run_lines("export", "--level", "local", "--store", store)
    assert header["mulligan"] == "export"
    assert header["level"] == "local"
    assert isinstance(header["version"], int)
    assert {"run", "steps"} <= set(history)
    failed, worked = history["steps"]
    assert (failed["name"], failed["arguments"]) == ("order", {"order_id": "1x"})
    assert failed["failure"]["kind"] == "tool/invalid_arguments"
    assert worked["arguments"] == {"order_id": 1}

    (_, hidden) = run_lines("export", "--level", "shared", "--store", store)
    assert hidden["steps"][0]["arguments"] != {"order_id": "1x"}


# settings


def test_settings_have_home_and_level() -> None:
    facts = json.loads(run("settings", "--json"))
    assert facts["home"] == os.environ["MULLIGAN_HOME"]
    assert facts["level"] == "local"


@pytest.mark.parametrize("name", ["home", "level"])
def test_settings_are_read_from_the_environment(name: str, tmp_path: Path) -> None:
    value = {"home": str(tmp_path / "elsewhere"), "level": "shared"}[name]
    facts = json.loads(run("settings", "--json", **{f"MULLIGAN_{name.upper()}": value}))
    assert facts[name] == value
    assert facts["store"].startswith(facts["home"])


def test_settings_are_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MULLIGAN_HOME")
    (tmp_path / "mulligan.toml").write_text(f'level = "shared"\nhome = "{tmp_path}/elsewhere"\n')
    facts = json.loads(run("settings", "--json"))
    assert (facts["level"], facts["home"]) == ("shared", f"{tmp_path}/elsewhere")
