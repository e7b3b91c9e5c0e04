"""mulligan suggest: read failed calls, print repaired calls."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

import click

from mulligan.capture.suggestions import SuggestionResult, suggest_repairs
from mulligan.classify.classifier import Classifier
from mulligan.cli.classify import FieldTypes, open_input, parse_object, pick_fields, read_lines
from mulligan.cli.options import as_json as json_option
from mulligan.cli.options import load_settings, now_ms, open_existing_store, store_option
from mulligan.core.failure import Failure, SettingsError
from mulligan.core.records import Effects, Fix
from mulligan.record.memory_lookup import match_recorded_failure
from mulligan.recover.policy import Mode, Suggestion
from mulligan.redaction import sanitize
from mulligan.report.tables import format_count, render_columns
from mulligan.store.base import DEFAULT_TENANT, FixQuery, Store

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
    unreadable_count = 0
    with open_input(file, "suggest", "failed calls", "failed.jsonl") as stream:
        for number, line in enumerate(read_lines(stream), 1):
            failed_call: dict[str, Any] = {}
            try:
                failed_call = parse_object(line, _EXAMPLE)
                memory: dict[str, Any] = {}
                if existing_store is not None:
                    memory = {
                        "recall": _build_fix_lookup(existing_store, failed_call.get("agent")),
                        "match": partial(match_recorded_failure, existing_store, DEFAULT_TENANT),
                    }
                keyword_arguments = _parse_failed_call(failed_call) | memory
                advice = suggest_repairs(**keyword_arguments, classify=classify, policy=settings.policy)
                answer, row = _facts(advice), _build_row(number, advice)
            except (ValueError, SettingsError) as error:
                unreadable_count += 1
                error_text = sanitize(str(error), 300)
                answer = {"error": f"line {number}: {error_text}"}
                row = (str(number), "error", "", "", error_text)
            rows.append(row)
            if not is_table:
                _print_json_line({"id": failed_call.get("id"), **answer})
    if is_table:
        _print_table(rows, unreadable_count)
    sys.exit(1 if rows and unreadable_count == len(rows) else 0)


def _build_fix_lookup(store: Store, agent: Any) -> Callable[..., Sequence[Fix]]:
    def recall(tool: str, key: str, failure: Failure, arguments: Mapping[str, Any], schema: str) -> Sequence[Fix]:
        if not failure.fingerprint:
            return ()
        options = {"agent": agent if isinstance(agent, str) else "", "schema": schema, "now": now_ms(), "key": key}
        return store.fixes(DEFAULT_TENANT, FixQuery.for_failure(tool, failure, arguments, **options))

    return recall


_FIELDS: FieldTypes = {
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
    fields = pick_fields(failed_call, _FIELDS)
    for name in ("privileged", "unprivileged", "released"):
        if not all(isinstance(entry, str) for entry in fields.get(name, ())):
            raise ValueError(f'"{name}" must be {_FIELDS[name][1]}')
    if not all(schema is None or isinstance(schema, dict) for schema in fields.get("tools", {}).values()):
        raise ValueError(f'"tools" must be {_FIELDS["tools"][1]}')
    if fields.get("effects") == "repeatable":
        fields["effects"] = "idempotent"  # its earlier name
    keyword_arguments = {_KEYWORDS.get(name, name): value for name, value in fields.items()}
    call = {"tool": failed_call["tool"], "error": failed_call["error"], "arguments": _parse_arguments(failed_call)}
    return keyword_arguments | call


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


def _facts(advice: SuggestionResult) -> dict[str, Any]:
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
        "changes": [
            {name: getattr(change, name) for name in ("path", "operation", "before", "after", "source")}
            for change in suggestion.changes
        ],
        "evidence": [sanitize(evidence_text, 200) for evidence_text in suggestion.evidence],
        "fix_id": suggestion.fix_id,
        "automatic": suggestion.automatic,
        "reason": suggestion.reason,
    }


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
        titled_rows = [("line", "kind", "confidence", "automatic", "call"), *rows]
        click.echo("\n".join(["", *render_columns(titled_rows, right=(0, 2))]))
