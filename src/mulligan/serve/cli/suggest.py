"""mulligan suggest: read failed calls, print repaired calls."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any, get_args

import click

from mulligan.capture.advice import Advice, advise
from mulligan.classify.classifier import Classifier
from mulligan.failure import Failure, SettingsError
from mulligan.records import Change, Effects, Fix
from mulligan.recover.repair import Suggestion
from mulligan.recover.tool import Mode
from mulligan.redaction import clean
from mulligan.remember.recall import match_recorded_failure
from mulligan.remember.store import LOCAL, FixQuery, Store
from mulligan.report.terminal import columns, count
from mulligan.serve.cli.options import as_json as json_option
from mulligan.serve.cli.options import now, opened, settings_with, store_option

_MOST = 64 * 1024 * 1024
"""Limit for one line."""

_EXAMPLE = '{"tool": "search", "arguments": {"topK": "5"}, "error": "...", "schema": {...}}'


@click.command(
    epilog="Examples:\n\n  mulligan suggest failed.jsonl --json\n\n  "
    """echo '{"tool": "search", "arguments": {"k": "5"}, "error": "k is no integer", """
    """"schema": {"properties": {"k": {"type": "integer"}}}}' | mulligan suggest"""
)
@click.argument("file", required=False, type=click.Path(allow_dash=True))
@click.option("--no-memory", is_flag=True, help="Leave out what worked before.")
@store_option
@json_option
def suggest(file: str | None, no_memory: bool, store: str | None, as_json: bool) -> None:
    """What would repair this call?

    Reads one JSON object a line from FILE or from standard input: tool, arguments, error, and if known schema, tools
    (schemas by name), history (earlier calls of the run: tool, arguments, outcome, result or error), privileged,
    released, effects, destructive, mode, agent, context, id. What worked before, by the store, is among the answers.
    With --json, or where the output is not a terminal, it answers each line with one, and with the field "error" where
    it cannot be read. Exit 1 when none can.
    """
    settings = settings_with(store)
    kept = None if no_memory else opened(settings)
    if store and kept is None and not no_memory:
        raise SettingsError(f"there is no {settings.store_url}. Name another with --store, or leave it out.")
    classify = Classifier.from_settings({"kinds": settings.kinds, "rules": settings.rules}).classify
    is_table = not as_json and sys.stdout.isatty()
    rows: list[tuple[str, ...]] = []
    number = bad = 0
    with _opened(file) as stream:
        for number, line in enumerate(_lines(stream), 1):
            given: dict[str, Any] = {}
            try:
                given = _read(line)
                recall = _recall(kept, given) if kept is not None else None
                match = partial(match_recorded_failure, kept, LOCAL) if kept is not None else None
                advice = advise(**_asked(given), classify=classify, policy=settings.policy, recall=recall, match=match)
            except (ValueError, SettingsError) as error:
                bad += 1
                told = clean(str(error), 300)
                if not is_table:
                    _echo({**_id(given), "error": f"line {number}: {told}"})
                rows.append((str(number), "error", "", "", told))
                continue
            if not is_table:
                _echo({**_id(given), **facts(advice)})
            else:
                rows.append(_row(number, advice))
    if is_table:
        _print(rows, bad)
    sys.exit(1 if number and bad == number else 0)


def _recall(kept: Store, given: dict[str, Any]) -> Callable[..., Sequence[Fix]]:
    agent = given.get("agent")

    def recall(tool: str, key: str, failure: Failure, arguments: Mapping[str, Any], schema: str) -> Sequence[Fix]:
        about = {"agent": agent if isinstance(agent, str) else "", "schema": schema, "now": now(), "key": key}
        return kept.fixes(LOCAL, FixQuery.about(tool, failure, arguments, **about)) if failure.fingerprint else ()

    return recall


def _opened(file: str | None) -> IO[bytes]:
    if file is None and sys.stdin.isatty():
        raise click.UsageError("give me failed calls on standard input, or a file: `mulligan suggest failed.jsonl`.")
    try:
        return click.open_file(file or "-", "rb")
    except OSError as error:
        raise click.UsageError(f"{clean(str(file), 200)} cannot be read: {error.strerror}.") from None


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    while line := stream.readline(_MOST):
        yield line


def _read(line: bytes) -> dict[str, Any]:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"not a JSON object, such as {_EXAMPLE}") from None
    if not isinstance(given, dict):
        raise ValueError(f"not a JSON object, such as {_EXAMPLE}")
    return given


def _id(given: dict[str, Any]) -> dict[str, Any]:
    return {"id": given.get("id")}


_FIELDS: dict[str, tuple[type, str]] = {
    "schema": (dict, "a JSON schema"),
    "tools": (dict, "an object of schemas by name"),
    "history": (list, "a list of earlier calls"),
    "privileged": (list, "a list of names"),
    "released": (list, "a list of names"),
    "effects": (str, ", ".join(get_args(Effects))),
    "destructive": (bool, "true or false"),
    "mode": (str, ", ".join(get_args(Mode))),
}


def _asked(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `advise`. Raise ValueError with the reason if the line is invalid."""
    if not isinstance(given.get("tool"), str):
        raise ValueError('"tool" is the name of a tool')
    if given.get("error") is None:
        raise ValueError('no "error"')
    asked: dict[str, Any] = {"tool": given["tool"], "error": given["error"], "arguments": _arguments(given)}
    for name, (sort, wanted) in _FIELDS.items():
        value = given.get(name)
        if value is None:
            continue
        if not isinstance(value, sort):
            raise ValueError(f'"{name}" is {wanted}')
        if isinstance(value, list) and name != "history" and not all(isinstance(each, str) for each in value):
            raise ValueError(f'"{name}" is {wanted}')
        asked["run" if name == "history" else name] = value
    tools = asked.get("tools", {})
    if not all(each is None or isinstance(each, dict) for each in tools.values()):
        raise ValueError('"tools" is an object of schemas by name')
    return asked


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Return the call's arguments. A string is parsed as JSON, because models write it so."""
    arguments = given.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            raise ValueError('"arguments" is a text that is not JSON') from None
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise ValueError('"arguments" is an object')
    return arguments


def facts(advice: Advice) -> dict[str, Any]:
    return {
        "kind": str(advice.kind),
        "suggestions": [_suggestion(each) for each in advice.suggestions],
        "abstained": advice.abstained,
        "why": advice.why,
    }


def _suggestion(each: Suggestion) -> dict[str, Any]:
    return {
        "tool": each.tool,
        "arguments": each.arguments,
        "first": [{"tool": before.tool, "arguments": before.arguments} for before in each.first],
        "confidence": round(each.confidence, 2),
        "source": each.source,
        "family": each.family,
        "changes": [_change(change) for change in each.changes],
        "evidence": [clean(told, 200) for told in each.evidence],
        "fix": each.fix,
        "automatic": each.automatic,
        "why": each.why,
    }


def _change(change: Change) -> dict[str, Any]:
    told: dict[str, Any] = {"path": change.path, "how": change.how, "before": change.before, "after": change.after}
    return {**told, "from": change.from_}


def _echo(answer: dict[str, Any]) -> None:
    # JSON may contain a lone surrogate, which UTF-8 cannot encode: keep it escaped.
    try:
        text = json.dumps(answer, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(answer)
    click.echo(text)


def _row(number: int, advice: Advice) -> tuple[str, ...]:
    if not advice.suggestions:
        return str(number), str(advice.kind), "", "", f"nothing: {advice.why}"
    first = advice.suggestions[0]
    calls = [(before.tool, before.arguments) for before in first.first] + [(first.tool, first.arguments)]
    call = ", then ".join(clean(f"{tool}({json.dumps(given, ensure_ascii=True)})", 120) for tool, given in calls)
    return str(number), str(advice.kind), f"{first.confidence:.2f}", "yes" if first.automatic else "no", call


def _print(rows: list[tuple[str, ...]], bad: int) -> None:
    answered = sum(1 for row in rows if row[2])
    unread = f", {bad} of them unreadable" if bad else ""
    click.echo(f"{count(answered, 'suggestion')} for {count(len(rows), 'line')}{unread}.")
    if rows:
        click.echo()
        for line in columns([("line", "kind", "sure", "automatic", "call"), *rows], right=(0, 2)):
            click.echo(line)
