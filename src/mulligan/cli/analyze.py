"""mulligan classify and mulligan suggest: the kind of a failure, and repaired calls that may succeed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any, get_args

import click

from mulligan import settings as settings_file
from mulligan.build import build_classifier
from mulligan.capture.suggestions import SuggestionResult, suggest_repairs
from mulligan.classify.classifier import SOURCES
from mulligan.classify.fingerprint import VERSION, build_template
from mulligan.classify.result_verdict import judge_result
from mulligan.cli.error_input import (
    ERROR_FIELDS,
    MAX_INPUT_BYTES,
    FieldTypes,
    open_input,
    parse_error,
    pick_fields,
    read_error_text,
)
from mulligan.cli.options import CommandContext, command, now_ms, open_existing_store
from mulligan.contract.store import DEFAULT_TENANT, FixQuery, Store
from mulligan.core.failure import Failure, Remedy, SettingsError, ToolCategory, describe_wait
from mulligan.core.records import Effects, Fix
from mulligan.prompt import Prompt
from mulligan.record.memory_lookup import find_facts, match_recorded_failure
from mulligan.recover.policy import Mode
from mulligan.redaction import sanitize
from mulligan.report.tables import format_count, render_columns, render_pairs, to_line

_REMEDY_SENTENCES = {
    Remedy.RETRY: "retry after a backoff",
    Remedy.REPAIR: "change the arguments",
    Remedy.COMPRESS: "shorten the conversation",
    Remedy.REPLAN: "report the failure to the model, which must change its plan",
    Remedy.STOP: "stop, a person must act first",
}
_TOOK_EFFECT_TEXTS = {"no": "no, the call did not execute", "yes": "yes"}
_JUDGMENT_TEXTS = {
    "failure": "a failure",
    "suspected": "a suspected failure: shown, but counted as a success",
    "success": "content, not a failure",
}
_CALL_FIELDS: FieldTypes = {
    "schema": (dict, "a JSON schema"),
    "tools": (dict, "an object of schemas by name"),
    "history": (list, "a list of earlier calls"),
    "privileged": (list, "a list of names"),
    "unprivileged": (list, "a list of names"),
    "clamp": (list, "a list of names"),
    "released": (list, "a list of names"),
    "effects": (str, ", ".join(get_args(Effects))),
    "destructive": (bool, "true or false"),
    "mode": (str, ", ".join(get_args(Mode))),
}
_KEYWORDS = {"history": "run", "released": "unprivileged"}
"""Fields that have another name as arguments of `suggest_repairs`. `released` is the earlier name of `unprivileged`."""
_CALL_EXAMPLE = '{"tool": "search", "arguments": {"topK": "5"}, "error": "...", "schema": {...}}'


# Input: one JSON object per line


def _process_lines(
    stream: IO[bytes], example: str, process: Callable[[dict[str, Any]], tuple[dict[str, Any], tuple[str, ...]]]
) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Yield the facts and the table row of each line. For an unreadable line, these are its error and two cells."""
    number = 0
    while line := stream.readline(MAX_INPUT_BYTES):
        number += 1
        fields: dict[str, Any] = {}
        try:
            fields = _parse_object(line, example)
            facts, row = process(fields)
        except (ValueError, SettingsError) as error:
            reason = sanitize(str(error), 300)
            facts, row = {"error": f"line {number}: {reason}"}, ("error", reason)
        yield {"id": fields.get("id")} | facts, (str(number), *row)


def _parse_object(line: bytes, example: str) -> dict[str, Any]:
    """Parse a line. Raise ValueError with the reason if it is not a JSON object."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError(f"not a JSON object; expected one such as {example}")
    return parsed


def _print_json_line(facts: dict[str, Any]) -> None:
    # JSON may contain a lone surrogate, which UTF-8 cannot encode: keep it escaped.
    try:
        text = json.dumps(facts, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(facts)
    click.echo(text)


def _print_table(summary: str, titles: Sequence[str], rows: list[tuple[str, ...]], right: tuple[int, ...]) -> None:
    """Print the rows of all lines below a summary. The reason of an unreadable line is in the last column."""
    unreadable_count = sum(row[1] == "error" for row in rows)
    click.echo(f"{summary}{f', {unreadable_count} unreadable' if unreadable_count else ''}.")
    if rows:
        gap = ("",) * (len(titles) - 3)
        full_rows = [(*row[:2], *gap, row[2]) if row[1] == "error" else row for row in rows]
        click.echo("\n".join(["", *render_columns([titles, *full_rows], right=right)]))


def _exit_code(rows: list[tuple[str, ...]]) -> int:
    return 1 if rows and all(row[1] == "error" for row in rows) else 0


# mulligan classify


@command(
    "mulligan classify connection refused",
    "mulligan classify --tool Bash build.log",
    "mulligan classify --category file app.log",
    "make 2>&1 | mulligan classify --show-fingerprint",
    "mulligan classify --jsonl errors.jsonl --json",
    has_store=False,
)
@click.argument("text", nargs=-1, metavar="[TEXT...|FILE|-]")
@click.option(
    "--jsonl", is_flag=True, help="Read one JSON object per line: text, and if known tool, status, exception, ..."
)
@click.option("--tool", help="Name of the tool that failed.")
@click.option("--source", type=click.Choice(SOURCES), help="Type of the failed call. Default: detected from the text.")
@click.option(
    "--category",
    type=click.Choice(get_args(ToolCategory)),
    help="What the tool is. Also prints whether its result counts as a failure without an error flag.",
)
@click.option("--status", type=click.IntRange(100, 599), help="HTTP status of the response.")
@click.option("--exception", help="Class of the exception, such as openai.RateLimitError.")
@click.option("--show-fingerprint", is_flag=True, help="Show the message template behind the fingerprint.")
def classify(context: CommandContext, text: tuple[str, ...], jsonl: bool, show_fingerprint: bool, **hints: Any) -> None:
    """Classify an error: print its kind, its remedy and a hint.

    The error is the TEXT that you type, the content of FILE, or standard input. It may be a message, the output of a
    program, a whole Python traceback, a provider's response body, or an HTTP status. With --jsonl, FILE or standard
    input has one JSON object per line; an unreadable line is answered with an object that has the field "error". Exits
    1 if no line is readable.
    """
    classify_error = build_classifier(settings_file.load_settings())
    if jsonl:
        if any(hints.values()):
            raise click.UsageError(
                "--jsonl excludes --tool, --source, --category, --status and --exception. "
                "Put these fields into each line."
            )
        if len(text) > 1:
            raise click.UsageError("--jsonl reads one FILE, or standard input.")
        with open_input(text[0] if text else None, "classify", "lines of JSON", "--jsonl errors.jsonl") as stream:
            sys.exit(_classify_lines(stream, classify_error, context.as_json, show_fingerprint))
    try:
        fields = parse_error(read_error_text(text))
    except ValueError as error:
        raise click.UsageError(f"Cannot read the JSON object: {error}.") from None
    fields |= {name: value for name, value in hints.items() if value is not None}
    _add_source(fields)
    failure = classify_error(**fields)
    facts = _failure_facts(failure, fields.get("arguments"), show_fingerprint)
    facts |= _seed_facts(failure, fields.get("tool", "")) | _verdict_facts(fields)
    if context.as_json:
        _print_json_line(facts)
    else:
        click.echo("\n".join(_describe_failure(failure, facts, context.width)))


def _add_source(fields: dict[str, Any]) -> None:
    """Add the source that follows from the category: a tool of any category is no model."""
    if "category" in fields:
        fields.setdefault("source", "model" if fields["category"] == "model" else "tool")


def _classify_lines(
    stream: IO[bytes], classify_error: Callable[..., Failure], as_json: bool, should_show_template: bool
) -> int:
    """Classify each line and print the result in order. Return the exit code."""
    last_title = "template" if should_show_template else "message"

    def process(parsed: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        if parsed.get("text") is None:
            raise ValueError('missing field "text"')
        fields = pick_fields(parsed, ERROR_FIELDS)
        if fields.get("source", "tool") not in SOURCES:
            raise ValueError(f'"source" must be one of {", ".join(SOURCES)}')
        if fields.get("category", "other") not in get_args(ToolCategory):
            raise ValueError(f'"category" must be one of {", ".join(get_args(ToolCategory))}')
        _add_source(fields)
        failure = classify_error(**fields)
        facts = _failure_facts(failure, fields.get("arguments"), should_show_template) | _verdict_facts(fields)
        texts = [facts["kind"], facts["remedy"], facts["took_effect"].replace("unknown", "")]
        return facts, (*texts, f"{failure.confidence:.2f}", to_line(facts[last_title], 100))

    rows = []
    for facts, row in _process_lines(stream, '{"text": "Connection refused"}', process):
        rows.append(row)
        if as_json:
            facts.pop("id")
            _print_json_line(facts)
    if not as_json:
        titles = ("line", "kind", "remedy", "took effect", "confidence", last_title)
        _print_table(format_count(len(rows), "line"), titles, rows, right=(0, 4))
    return _exit_code(rows)


def _seed_facts(failure: Failure, tool: str) -> dict[str, Any]:
    """Return the seed lesson about this failure, unless it is disabled in the store."""
    from mulligan.learn import seeds  # only for a single text

    if not seeds.find_matching_seeds(None, DEFAULT_TENANT, tool, failure):
        return {}
    store = open_existing_store(settings_file.load_settings())
    lesson = next(iter(seeds.find_matching_seeds(store, DEFAULT_TENANT, tool, failure)), None)
    if lesson is None:
        return {}
    texts = {"mistake": sanitize(lesson.mistake), "correction": sanitize(lesson.correction)}
    return {"seed_lesson": {"id": lesson.id, **texts}}


def _verdict_facts(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return what the text is as a result of a tool of the category, without an error flag."""
    if "category" not in fields:
        return {}
    verdict = judge_result(fields.get("text", ""), category=fields["category"], arguments=fields.get("arguments"))
    return {"without_flag": verdict.judgment}


def _failure_facts(failure: Failure, arguments: Any, should_show_template: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "kind": str(failure.kind),
        "type": failure.kind.type,
        "code": failure.kind.code,
        "remedy": failure.remedy.value,
        "took_effect": failure.took_effect.value,
        "confidence": round(failure.confidence, 2),
        "evidence": [sanitize(evidence_text, 200) for evidence_text in failure.evidence],
        "fingerprint": failure.fingerprint,
        "message": sanitize(failure.message),
        "hint": sanitize(failure.hint),
    }
    if should_show_template:
        facts["template"] = sanitize(build_template(failure.message, arguments))
    return facts


def _describe_failure(failure: Failure, facts: dict[str, Any], width: int | None) -> Iterator[str]:
    yield f"{failure.kind}: {_REMEDY_SENTENCES[failure.remedy]}."
    yield ""
    rows = [("message", facts["message"] or "(empty)"), ("hint", facts["hint"])]
    if seed := facts.get("seed_lesson"):
        rows.append(("seed lesson", f"{seed['mistake']} {seed['correction']} [{seed['id']}]"))
    rows += [
        # A text alone does not tell whether the call executed, unless it proves it.
        *([("took effect", text)] if (text := _TOOK_EFFECT_TEXTS.get(facts["took_effect"])) else []),
        ("confidence", f"{failure.confidence:.2f}"),
        ("evidence", ", ".join(facts["evidence"]) or "none"),
        ("fingerprint", failure.fingerprint),
    ]
    if "without_flag" in facts:
        rows.append(("without flag", _JUDGMENT_TEXTS[facts["without_flag"]]))
    if failure.retry_after is not None:
        rows.append(("retry after", f"{failure.retry_after:g} s, as requested by the service"))
    elif failure.clears_after is not None:
        rows.append(("clears after", f"{describe_wait(failure.clears_after)}, as stated by the service"))
    if "template" in facts:
        rows.append(("template", f"fingerprint version {VERSION}: kind, tool and this text"))
        rows.append(("", facts["template"] or "nothing"))
    yield from render_pairs(((name, " ".join(value.split())) for name, value in rows), width)


# mulligan suggest


@command(
    "mulligan suggest failed.jsonl --json",
    """echo '{"tool": "search", "arguments": {"k": "5"}, "error": "k is not an integer", """
    """"schema": {"properties": {"k": {"type": "integer"}}}}' | mulligan suggest""",
)
@click.argument("file", required=False, type=click.Path(allow_dash=True))
@click.option("--no-memory", is_flag=True, help="Ignore fixes from earlier runs.")
def suggest(context: CommandContext, file: str | None, no_memory: bool) -> None:
    """Suggest repairs for failed calls.

    Reads one JSON object per line from FILE or standard input, with the fields tool, arguments, error. Optional fields:
    schema, tools (schemas by name), history (earlier calls of the run: tool, arguments, outcome, result or error),
    privileged, unprivileged, clamp, effects, destructive, mode, agent, context, id. Fixes from the store are included.

    With --json, or if the output is not a terminal, prints one JSON object per line, with the field "error" for an
    unreadable line. Exits 1 if no line is readable.
    """
    settings = context.settings
    store = None if no_memory else context.find_store()
    classify_error = build_classifier(settings)

    def process(failed_call: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        memory: dict[str, Any] = {}
        if store is not None:
            memory = {
                "recall": build_fix_lookup(store, failed_call.get("agent")),
                "match": partial(match_recorded_failure, store, DEFAULT_TENANT),
                "lookup_facts": partial(find_facts, store, DEFAULT_TENANT),
            }
        call = _parse_failed_call(failed_call)
        advice = suggest_repairs(**call, **memory, classify=classify_error, policy=settings.policy)
        sentences = Prompt().for_arguments(call["arguments"]).facts(advice.facts)
        return _suggestion_facts(advice) | {"facts": sentences}, _suggestion_row(advice, sentences)

    is_table = not context.as_json and sys.stdout.isatty()
    rows = []
    with open_input(file, "suggest", "failed calls", "failed.jsonl") as stream:
        for facts, row in _process_lines(stream, _CALL_EXAMPLE, process):
            rows.append(row)
            if not is_table:
                _print_json_line(facts)
    if not rows:
        raise click.UsageError(f"The input is empty. Pipe one failed call per line in, such as {_CALL_EXAMPLE}")
    if is_table:
        suggestion_count = sum(1 for row in rows if row[1] != "error" and row[2])
        summary = f"{format_count(suggestion_count, 'suggestion')} for {format_count(len(rows), 'line')}"
        _print_table(summary, ("line", "kind", "confidence", "automatic", "call"), rows, right=(0, 2))
    sys.exit(_exit_code(rows))


def build_fix_lookup(store: Store, agent: Any = "") -> Callable[..., Sequence[Fix]]:
    """Build the function that looks up the fixes of earlier runs for a failure, without those of its own run."""

    def recall(
        tool: str, key: str, failure: Failure, arguments: Mapping[str, Any], schema: str, run: str = ""
    ) -> Sequence[Fix]:
        if not failure.fingerprint:
            return ()
        options = {"agent": agent if isinstance(agent, str) else "", "schema": schema, "now": now_ms(), "key": key}
        return store.fixes(DEFAULT_TENANT, FixQuery.for_failure(tool, failure, arguments, excluded_run=run, **options))

    return recall


def _parse_failed_call(failed_call: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `suggest_repairs`. Raise ValueError with the reason if the line is invalid."""
    if not isinstance(failed_call.get("tool"), str):
        raise ValueError('"tool" must be the name of a tool')
    if failed_call.get("error") is None:
        raise ValueError('missing field "error"')
    fields = pick_fields(failed_call, _CALL_FIELDS)
    for name in ("privileged", "unprivileged", "released", "clamp"):
        if not all(isinstance(entry, str) for entry in fields.get(name, ())):
            raise ValueError(f'"{name}" must be {_CALL_FIELDS[name][1]}')
    if not all(schema is None or isinstance(schema, dict) for schema in fields.get("tools", {}).values()):
        raise ValueError(f'"tools" must be {_CALL_FIELDS["tools"][1]}')
    if fields.get("effects") == "repeatable":
        fields["effects"] = "idempotent"  # its earlier name
    arguments = failed_call.get("arguments")
    if isinstance(arguments, str):  # models write JSON as a string
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            raise ValueError('"arguments" is a string that is not JSON') from None
    if not isinstance(arguments, dict | None):
        raise ValueError('"arguments" must be an object')
    call = {"tool": failed_call["tool"], "error": failed_call["error"], "arguments": arguments or {}}
    return {_KEYWORDS.get(name, name): value for name, value in fields.items()} | call


def _suggestion_facts(advice: SuggestionResult) -> dict[str, Any]:
    suggestions = [
        {
            **_pick(suggestion, "tool", "arguments"),
            "prerequisites": [_pick(before, "tool", "arguments") for before in suggestion.prerequisites],
            "confidence": round(suggestion.confidence, 2),
            **_pick(suggestion, "source", "strategy"),
            "changes": [
                _pick(change, "path", "operation", "before", "after", "source") for change in suggestion.changes
            ],
            "evidence": [sanitize(evidence_text, 200) for evidence_text in suggestion.evidence],
            **_pick(suggestion, "fix_id", "automatic", "reason"),
        }
        for suggestion in advice.suggestions
    ]
    facts = {"kind": str(advice.kind), "suggestions": suggestions}
    return facts | {"abstained": advice.abstained, "reason": advice.reason}


def _pick(record: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _suggestion_row(advice: SuggestionResult, facts: Sequence[str]) -> tuple[str, ...]:
    if not advice.suggestions:
        return str(advice.kind), "", "", ". ".join([f"none: {advice.reason}", *facts[:1]])
    first = advice.suggestions[0]
    calls = [(before.tool, before.arguments) for before in first.prerequisites] + [(first.tool, first.arguments)]
    call = ", then ".join(
        sanitize(f"{tool}({json.dumps(arguments, ensure_ascii=True)})", 120) for tool, arguments in calls
    )
    return str(advice.kind), f"{first.confidence:.2f}", "yes" if first.automatic else "no", call
