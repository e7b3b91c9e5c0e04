"""mulligan suggest: read failed calls, print repaired calls."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any, get_args

import click

from mulligan.capture.suggestions import SuggestionResult, suggest_repairs
from mulligan.classify.classifier import Classifier
from mulligan.cli.options import as_json as json_option
from mulligan.cli.options import load_settings, now_ms, open_existing_store, store_option
from mulligan.core.failure import Failure, SettingsError
from mulligan.core.records import Change, Effects, Fix
from mulligan.record.memory_lookup import match_recorded_failure
from mulligan.recover.repair import Suggestion
from mulligan.recover.tool import Mode
from mulligan.redaction import sanitize
from mulligan.report.run_text import format_count, render_columns
from mulligan.store.base import DEFAULT_TENANT, FixQuery, Store

_MAX_LINE_BYTES = 64 * 1024 * 1024
"""Limit for one line."""

_EXAMPLE = '{"tool": "search", "arguments": {"topK": "5"}, "error": "...", "schema": {...}}'


@click.command(
    epilog="Examples:\n\n  mulligan suggest failed.jsonl --json\n\n  "
    """echo '{"tool": "search", "arguments": {"k": "5"}, "error": "k is no integer", """
    """"schema": {"properties": {"k": {"type": "integer"}}}}' | mulligan suggest"""
)
@click.argument("file", required=False, type=click.Path(allow_dash=True))
@click.option("--no-memory", is_flag=True, help="Ignore fixes from earlier runs.")
@store_option
@json_option
def suggest(file: str | None, no_memory: bool, store: str | None, as_json: bool) -> None:
    """Suggest repairs for failed calls.

    Reads one JSON object per line from FILE or standard input, with the fields tool, arguments, error. Optional fields:
    schema, tools (schemas by name), history (earlier calls of the run: tool, arguments, outcome, result or error),
    privileged, unprivileged, effects, destructive, mode, agent, context, id. Fixes from the store are included.

    With --json, or if the output is not a terminal, prints one JSON object per line, with the field "error" for an
    unreadable line. Exits 1 if no line is readable.
    """
    settings = load_settings(store)
    existing_store = None if no_memory else open_existing_store(settings)
    if store and existing_store is None and not no_memory:
        raise SettingsError(f"Store {settings.store_url} does not exist. Name another with --store, or remove --store.")
    classify = Classifier.from_settings({"kinds": settings.kinds, "rules": settings.rules}).classify
    is_table = not as_json and sys.stdout.isatty()
    rows: list[tuple[str, ...]] = []
    number = unreadable_count = 0
    with _open_input(file) as stream:
        for number, line in enumerate(_read_lines(stream), 1):
            failed_call: dict[str, Any] = {}
            try:
                failed_call = _parse_object(line)
                recall = _build_fix_lookup(existing_store, failed_call) if existing_store is not None else None
                match = (
                    partial(match_recorded_failure, existing_store, DEFAULT_TENANT)
                    if existing_store is not None
                    else None
                )
                advice = suggest_repairs(
                    **_parse_failed_call(failed_call),
                    classify=classify,
                    policy=settings.policy,
                    recall=recall,
                    match=match,
                )
            except (ValueError, SettingsError) as error:
                unreadable_count += 1
                error_text = sanitize(str(error), 300)
                if not is_table:
                    _print_json_line({**_id(failed_call), "error": f"line {number}: {error_text}"})
                rows.append((str(number), "error", "", "", error_text))
                continue
            if not is_table:
                _print_json_line({**_id(failed_call), **facts(advice)})
            else:
                rows.append(_build_row(number, advice))
    if is_table:
        _print_table(rows, unreadable_count)
    sys.exit(1 if number and unreadable_count == number else 0)


def _build_fix_lookup(store: Store, failed_call: dict[str, Any]) -> Callable[..., Sequence[Fix]]:
    agent = failed_call.get("agent")

    def recall(tool: str, key: str, failure: Failure, arguments: Mapping[str, Any], schema: str) -> Sequence[Fix]:
        query_options = {
            "agent": agent if isinstance(agent, str) else "",
            "schema": schema,
            "now": now_ms(),
            "key": key,
        }
        return (
            store.fixes(DEFAULT_TENANT, FixQuery.for_failure(tool, failure, arguments, **query_options))
            if failure.fingerprint
            else ()
        )

    return recall


def _open_input(file: str | None) -> IO[bytes]:
    if file is None and sys.stdin.isatty():
        raise click.UsageError("No input. Pipe failed calls in, or name a file: `mulligan suggest failed.jsonl`.")
    try:
        return click.open_file(file or "-", "rb")
    except OSError as error:
        raise click.UsageError(f"Cannot read {sanitize(str(file), 200)!r}: {error.strerror}.") from None


def _read_lines(stream: IO[bytes]) -> Iterator[bytes]:
    while line := stream.readline(_MAX_LINE_BYTES):
        yield line


def _parse_object(line: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"not a JSON object; expected one such as {_EXAMPLE}") from None
    if not isinstance(parsed, dict):
        raise ValueError(f"not a JSON object; expected one such as {_EXAMPLE}")
    return parsed


def _id(failed_call: dict[str, Any]) -> dict[str, Any]:
    return {"id": failed_call.get("id")}


_FIELDS: dict[str, tuple[type, str]] = {
    "schema": (dict, "a JSON schema"),
    "tools": (dict, "an object of schemas by name"),
    "history": (list, "a list of earlier calls"),
    "privileged": (list, "a list of names"),
    "unprivileged": (list, "a list of names"),
    "released": (list, "a list of names"),
    "effects": (str, ", ".join(get_args(Effects))),
    "destructive": (bool, "true or false"),
    "mode": (str, ", ".join(get_args(Mode))),
}
_KEYWORDS = {"history": "run", "released": "unprivileged"}
"""Fields that have another name as arguments of `suggest_repairs`. `released` is the earlier name of `unprivileged`."""


def _parse_failed_call(failed_call: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `advise`. Raise ValueError with the reason if the line is invalid."""
    if not isinstance(failed_call.get("tool"), str):
        raise ValueError('"tool" must be the name of a tool')
    if failed_call.get("error") is None:
        raise ValueError('missing field "error"')
    keyword_arguments: dict[str, Any] = {
        "tool": failed_call["tool"],
        "error": failed_call["error"],
        "arguments": _parse_arguments(failed_call),
    }
    for name, (expected_type, description) in _FIELDS.items():
        value = failed_call.get(name)
        if value is None:
            continue
        if not isinstance(value, expected_type):
            raise ValueError(f'"{name}" must be {description}')
        if name == "effects" and value == "repeatable":
            value = "idempotent"  # its earlier name
        if isinstance(value, list) and name != "history" and not all(isinstance(entry, str) for entry in value):
            raise ValueError(f'"{name}" must be {description}')
        keyword_arguments[_KEYWORDS.get(name, name)] = value
    tools = keyword_arguments.get("tools", {})
    if not all(schema is None or isinstance(schema, dict) for schema in tools.values()):
        raise ValueError('"tools" must be an object of schemas by name')
    return keyword_arguments


def _parse_arguments(failed_call: dict[str, Any]) -> dict[str, Any]:
    """Return the call's arguments. A string is parsed as JSON, because models write it so."""
    arguments = failed_call.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            raise ValueError('"arguments" is a string that is not JSON') from None
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise ValueError('"arguments" must be an object')
    return arguments


def facts(advice: SuggestionResult) -> dict[str, Any]:
    return {
        "kind": str(advice.kind),
        "suggestions": [_suggestion_facts(suggestion) for suggestion in advice.suggestions],
        "abstained": advice.abstained,
        "reason": advice.reason,
    }


def _suggestion_facts(suggestion: Suggestion) -> dict[str, Any]:
    return {
        "tool": suggestion.tool,
        "arguments": suggestion.arguments,
        "prerequisites": [{"tool": before.tool, "arguments": before.arguments} for before in suggestion.prerequisites],
        "confidence": round(suggestion.confidence, 2),
        "source": suggestion.source,
        "strategy": suggestion.strategy,
        "changes": [_change_facts(change) for change in suggestion.changes],
        "evidence": [sanitize(evidence_text, 200) for evidence_text in suggestion.evidence],
        "fix_id": suggestion.fix_id,
        "automatic": suggestion.automatic,
        "reason": suggestion.reason,
    }


def _change_facts(change: Change) -> dict[str, Any]:
    change_facts: dict[str, Any] = {
        "path": change.path,
        "operation": change.operation,
        "before": change.before,
        "after": change.after,
    }
    return {**change_facts, "source": change.source}


def _print_json_line(answer: dict[str, Any]) -> None:
    # JSON may contain a lone surrogate, which UTF-8 cannot encode: keep it escaped.
    try:
        text = json.dumps(answer, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(answer)
    click.echo(text)


def _build_row(number: int, advice: SuggestionResult) -> tuple[str, ...]:
    if not advice.suggestions:
        return str(number), str(advice.kind), "", "", f"none: {advice.reason}"
    first = advice.suggestions[0]
    calls = [(before.tool, before.arguments) for before in first.prerequisites] + [(first.tool, first.arguments)]
    call = ", then ".join(
        sanitize(f"{tool}({json.dumps(arguments, ensure_ascii=True)})", 120) for tool, arguments in calls
    )
    return str(number), str(advice.kind), f"{first.confidence:.2f}", "yes" if first.automatic else "no", call


def _print_table(rows: list[tuple[str, ...]], unreadable_count: int) -> None:
    suggestion_count = sum(1 for row in rows if row[2])
    unreadable_note = f", {unreadable_count} unreadable" if unreadable_count else ""
    click.echo(
        f"{format_count(suggestion_count, 'suggestion')} for {format_count(len(rows), 'line')}{unreadable_note}."
    )
    if rows:
        click.echo()
        for line in render_columns([("line", "kind", "confidence", "automatic", "call"), *rows], right=(0, 2)):
            click.echo(line)
