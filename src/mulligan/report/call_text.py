"""Text rendering of calls: each attempt with its arguments, result, error, tokens and cost.

Stored values are printed as JSON. Error messages are sanitized, because terminals execute escape sequences.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mulligan.contract.counters import sum_usage
from mulligan.core import calls, conversation
from mulligan.core.failure import Failure, Remedy, TookEffect
from mulligan.core.records import (
    ANY_FIX,
    PROGRAM,
    TOKEN_PARTS,
    VERIFY,
    WAIT_METADATA,
    Change,
    Link,
    LinkEvidence,
    Recovery,
    RecoveryStop,
    Step,
    SuspectedFailure,
)
from mulligan.core.transformations import describe_transformation
from mulligan.prompt.failure_messages import MIN_SHOWN_CONFIDENCE
from mulligan.report import stats
from mulligan.report.tables import (
    display_width,
    escape_hidden,
    format_count,
    format_duration,
    to_line,
    wrap_text,
)

MAX_VALUE_CHARS = 300
"""Maximum length of the arguments, or of the result, of one attempt."""
MIN_ARGUMENT_CHARS = 24
"""Minimum length at which one of many arguments is cut."""
LABEL_CHARS = len("arguments")
MAX_MESSAGE_CHARS = 160
MAX_REASON_CHARS = 600
"""Characters of a stop reason. It is ours, and its advice stands at the end."""
MAX_SUMMARY_CHARS = 320
TRACE_LINE_STARTS = ("  ", "caused by ", "while handling ", "contains ", "...")
"""Starts of the lines of a stack trace by mulligan: a frame, or another exception of the chain."""
EVIDENCE_TEXTS: dict[LinkEvidence, str] = {
    "same_arguments": "same arguments",
    "same_values": "same values in another form",
    "missing_arguments": "the error names the missing argument",
    "conversation": "same conversation continued",
    "attempt": "another attempt at the same call",
    "handler": "made in the error handler",
    "model_turn": "the model's next turn",
    "next_call": "the tool's next call in the log",
    "stated_limit": "the error states the limit",
    "tool_result": "the value came from a tool result",
    "same_text": "corrected text",
    "explicit": "marked by the program",
}
MODEL_EVIDENCE: frozenset[LinkEvidence] = frozenset({"conversation", "model_turn", "next_call"})
"""Evidence that a model made the recovering call. With any other, it may have been the program."""
EXECUTION_TEXTS = {"no": "not executed", "yes": "executed", "unknown": "may have executed"}
_CUT_NOTE = re.compile(r" \[\.\.\. (\d{1,12}) characters cut \.\.\.\] ")
"""The note that recording leaves in place of the middle of a long text."""
CUT_OFF = "cut off"
"""The outcome of a call that was cancelled while its run went on, and not made again."""
OUTCOME_MARKS = {"success": "+", "failure": "x", "cancelled": "-", "blocked": "-"}


class CallRenderer:
    """Renders the calls of one run for a terminal of this width, or for a pipe if it is None."""

    def __init__(
        self,
        run_start: int,
        numbers: Mapping[int, int],
        width: int | None,
        is_full: bool,
        cut_off: Collection[int] = (),
        advice: Mapping[int, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self._run_start = run_start
        self._numbers = numbers
        self._cut_off = cut_off
        self._advice = advice
        self._width = width
        self._is_full = is_full
        self._indent = " " * (4 + len(str(len(numbers))))
        value_width = 0 if width is None else width - len(self._indent) - LABEL_CHARS - 6
        # Less than the lines hold, because they break between words.
        # Lines for the arguments, or for the result, of one attempt on a terminal
        self._value_chars = MAX_VALUE_CHARS if width is None else max(60, 2 * (value_width - 6))

    def render_count(self, counted_calls: Sequence[calls.Call]) -> str:
        """Render successful calls of a long run as one line with their number."""
        names = Counter(to_line(call.name or "-", 40) for call in counted_calls).most_common(4)
        shown_names = ", ".join(name for name, _ in names[:3]) + (", ..." if len(names) > 3 else "")
        return f"{self._indent}+ {format_count(len(counted_calls), 'successful call')} of {shown_names} (list: --full)"

    def render_call(self, call: calls.Call, link: Link | None, facts: Sequence[str] = ()) -> Iterator[str]:
        """Render one call: a line for a short success, otherwise a title and the details of each attempt.

        `facts` are sentences about successful calls of the tool.
        """
        if call.first.type == "reflection":
            yield from self._render_reflection(call)
            return
        if link is not None and link.failed_call == link.recovering_call:
            link = None  # another attempt recovered it
        mark = OUTCOME_MARKS[call.last.outcome]
        title = f"{self._prefix(call)}{mark} {to_line(call.name or '-', 40)} ({call.first.type})"
        if len(call.steps) == 1 and call.first.outcome == "success":
            title += f", {format_duration(call.first.duration_seconds)}"
            line = f"{title}: {self._format_call(call.first)}"
            needs_details = call.first.tokens or call.first.metadata or call.first.suspected
            if not needs_details and self._fits(line):
                yield line
                return
            yield title
            yield from self._render_details(call.first, None)
            return
        yield from self._wrap(f"{title}, {self._describe_ending(call, link)}", self._indent + "  ")
        previous_step = None
        for step in call.steps:
            if step.recovery is not None:
                yield from self._wrap(f"{self._indent}> {describe_recovery(step.recovery)}", self._indent + "    ")
                lines = describe_compression(step)
                # Actions of one compression in the text of a run. `--full`, JSON and dashboard show all.
                shown_lines = lines if self._is_full else lines[:13]
                if len(shown_lines) < len(lines):
                    shown_lines.append(f"{len(lines) - len(shown_lines)} more (--full)")
                for line in shown_lines:
                    yield from self._wrap(f"{self._indent}  {line}", self._indent + "    ")
            attempt = _describe_attempt(step, (step.started_at - self._run_start) / 1000)
            yield from self._wrap(f"{self._indent}{OUTCOME_MARKS[step.outcome]} {attempt}", self._indent + "    ")
            yield from self._render_details(step, previous_step)
            if wait := describe_wait(step):
                yield from self._wrap(f"{self._indent}> {wait}", self._indent + "    ")
            previous_step = step
        notes = (*_iter_notes(call.last.stop, link), *self._advice.get(call.id, ()), *_iter_rules(call.last))
        for note in (*notes, *(f"fact: {to_line(fact)}" for fact in facts)):
            yield from self._wrap(f"{self._indent}> {note}", self._indent + "    ")

    def _render_reflection(self, call: calls.Call) -> Iterator[str]:
        """Render a request to the reflector: the call that it is about, the answer, and its cost."""
        step = call.first
        subject = step.arguments if isinstance(step.arguments, Mapping) else {}
        number = self._numbers.get(subject.get("call", 0))
        target = f" on call {number}" if number else ""
        costs = (format_tokens([step]), format_cost([step]) if step.cost_nanos else "")
        usage = "".join(f", {cost}" for cost in costs if cost)
        title = f"{OUTCOME_MARKS[step.outcome]} reflection{target}, {format_duration(step.duration_seconds)}{usage}"
        answer = self._describe_reflection(step.result)
        yield from self._wrap(f"{self._indent}{title}: {answer}", self._indent + "    ")

    def _describe_reflection(self, result: Any) -> str:
        """Describe the answer of a reflector: the suggested call or prerequisites, its confidence and its reason."""
        if not isinstance(result, Mapping) or "confidence" not in result:
            error = result.get("error") if isinstance(result, Mapping) else None
            return f"no usable answer: {to_line(error, MAX_MESSAGE_CHARS)}" if error else "not recorded"
        names = [call.get("tool") for call in result.get("prerequisites") or () if isinstance(call, Mapping)]
        if names:
            answer = f"call {', then '.join(to_line(name, 40) for name in names)} first"
        elif result.get("arguments") is not None:
            answer = format_arguments(result["arguments"], self._value_chars)
        else:
            answer = "abstained"
        reason = f", {to_line(result['reason'], MAX_MESSAGE_CHARS)}" if result.get("reason") else ""
        return f"{answer} (stated confidence {to_line(result['confidence'], 20)}{reason})"

    def _prefix(self, call: calls.Call) -> str:
        return f"{self._numbers.get(call.id, ''):>{len(self._indent) - 2}}  "

    def _describe_ending(self, call: calls.Call, link: Link | None) -> str:
        stop = call.last.stop
        if call.first.type == "run":
            return "failure of the run itself"
        if call.id in self._cut_off:
            return f"{CUT_OFF}: cancelled while the run went on, and not made again"
        if link is not None:
            number = self._numbers.get(link.recovering_call, link.recovering_call)
            actor = "the model in " if MODEL_EVIDENCE.intersection(link.evidence) else ""
            return f"recovered by {actor}call {number}"
        if stop is not None:
            # The stop reason is the most important fact, so it is part of the first line.
            suggestions = " (suggestions below)" if stop.suggestions else ""
            return f"unrecovered: {to_line(stop.reason, MAX_REASON_CHARS)}{suggestions}"
        return call.outcome_label

    def _format_call(self, step: Step) -> str:
        arguments = format_arguments(step.arguments, self._value_chars) if step.arguments else "()"
        # None is also the result of a call whose result was not recorded.
        answer = self._describe_answer(step) or (
            "" if step.result is None else format_value(step.result, self._value_chars)
        )
        return f"{arguments} -> {answer}" if answer else arguments

    def _fits(self, line: str) -> bool:
        if self._is_full and "\\n" in line:
            return False  # texts of several lines are printed as such
        # Width of a call on one line if the output is no terminal
        return display_width(line) <= (100 if self._width is None else self._width)

    def _wrap(self, text: str, further: str) -> Iterator[str]:
        return wrap_text(text, self._width, "", further)

    def _render_details(self, step: Step, previous_step: Step | None) -> Iterator[str]:
        """Render the facts of an attempt. Arguments and stack traces equal to the previous attempt's are omitted."""
        failure, rows = step.failure, list[tuple[str, str | list[str]]]()
        if step.arguments and (previous_step is None or step.arguments != previous_step.arguments):
            rows.append(("arguments", self._format_arguments(step.arguments)))
        if failure is not None:
            if failure.message:
                rows.append(("error", self._format_text(failure.message)))
            trace_before = previous_step.failure.trace if previous_step and previous_step.failure else ""
            if failure.trace and failure.trace != trace_before:  # the same for most retries
                rows.append(("raised", self._format_trace(failure)))
            texts = (("detail", failure.detail), ("hint", failure.hint)) if self._is_full else ()
            rows += [(name, self._format_text(text)) for name, text in texts if text]
        if step.suspected is not None:
            rows.append(("suspected", self._format_text(describe_suspected(step.suspected))))
        if step.result is not None:
            rows.append(("result", self._describe_answer(step) or self._format_value(step.result)))
        if tokens := format_tokens([step]):
            rows.append(("tokens", tokens))
        if step.cost_nanos is not None:  # the head of the run says that a cost is unknown
            rows.append(("cost", format_cost([step])))
        shown_names = ("cost", WAIT_METADATA) if self._is_full else ("cost", "compressed", "cut", WAIT_METADATA)
        if metadata := {name: value for name, value in (step.metadata or {}).items() if name not in shown_names}:
            rows.append(("metadata", self._format_arguments(metadata)))
        further_indent = f"{self._indent}    {'':{LABEL_CHARS}}  "
        for name, content in rows:
            first, *others = [content] if isinstance(content, str) else content
            label = f"{self._indent}    {name:{LABEL_CHARS}}  "
            yield from wrap_text(first, None if self._is_full else self._width, label, further_indent)
            yield from (f"{further_indent}{line}".rstrip() for line in others)

    def _format_arguments(self, arguments: Any) -> str | list[str]:
        if self._is_full and isinstance(arguments, Mapping):
            named_lines = ((escape_hidden(str(name)), _format_full(value)) for name, value in arguments.items())
            return [line for name, lines in named_lines for line in (f"{name}={lines[0]}", *lines[1:])] or ["()"]
        return format_arguments(arguments, self._value_chars)

    def _format_value(self, value: Any) -> str | list[str]:
        return _format_full(value) if self._is_full else format_value(value, self._value_chars)

    def _describe_answer(self, step: Step) -> str:
        """Describe the answer of a model by its text and the calls that it requests; empty if it has none of both."""
        if step.type != "model" or self._is_full or not isinstance(step.result, Mapping):
            return ""
        answer = conversation.parse_answer(step.result) or conversation.parse_message(step.result)
        texts = [block.value for block in answer.blocks if block.type == "text" and block.value]
        phrases = [format_value(" ".join(map(str, texts)), self._value_chars)] if texts else []
        for block in answer.blocks:
            if block.type == "call":
                arguments = _parse_arguments(block.value)
                phrases.append(f"calls {to_line(block.name, 40)}({format_arguments(arguments, self._value_chars)})")
        return "; ".join(phrases)

    def _format_text(self, text: str) -> str | list[str]:
        return list(map(escape_hidden, text.splitlines())) if self._is_full else to_line(text, MAX_MESSAGE_CHARS)

    def _format_trace(self, failure: Failure) -> str | list[str]:
        if self._is_full:
            return [escape_hidden(line) for line in (failure.exception or "exception", *failure.trace.splitlines())]
        return list(_summarize_trace(failure)) if self._width is None else "; ".join(_summarize_trace(failure))


def describe_suspected(suspected: SuspectedFailure) -> str:
    """Describe what looks like a failure in the result of a success."""
    text = f": {suspected.sentence}" if suspected.sentence else ""
    return f"{suspected.kind}, confidence {suspected.confidence:.2f}{text}"


# Values


def format_value(value: Any, limit: int) -> str:
    """Format a stored value as JSON on one line. A longer one is cut, and its size added."""
    text = _to_json(value)
    if len(text) <= limit:
        return text
    size = format_count(len(value), "item") if isinstance(value, list) else format_count(len(text), "character")
    if isinstance(value, str) and (note := _CUT_NOTE.search(value)):
        size = f"{format_count(len(value) - len(note[0]) + int(note[1]), 'character')}, {len(value):,} stored"
    quote = '"' if isinstance(value, str) else ""
    return f"{text[: max(0, limit - len(size) - len(quote) - 6)]}...{quote} ({size})"


def _parse_arguments(arguments: Any) -> Any:
    """Return the arguments of a requested call. Some providers send them as JSON text."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def format_arguments(arguments: Any, limit: int) -> str:
    """Format arguments as `name=value` on one line. The longest values are cut first, so that all names are shown."""
    if not isinstance(arguments, Mapping):
        return format_value(arguments, limit)
    names = [escape_hidden(str(name))[:60] for name in arguments]
    value_chars = _share_limit(
        [len(_describe_messages(value, limit) or _to_json(value)) for value in arguments.values()],
        limit - sum(len(name) + len("=, ") for name in names),
    )
    return ", ".join(
        f"{name}={_describe_messages(value, value_chars) or format_value(value, value_chars)}"
        for name, value in zip(names, arguments.values(), strict=True)
    )


def _share_limit(lengths: Sequence[int], limit: int) -> int:
    """Return the length at which texts are cut, so that all together have at most `limit` characters."""
    remaining = limit
    for index, length in enumerate(sorted(lengths)):
        share = remaining // (len(lengths) - index)
        if length > share:
            return max(MIN_ARGUMENT_CHARS, share)
        remaining -= length
    return max(MIN_ARGUMENT_CHARS, limit)


def _describe_messages(value: Any, limit: int) -> str:
    """Describe the recorded summary of a conversation: its size and the last user message. Empty for other values."""
    if not isinstance(value, Mapping) or type(value.get("count")) is not int or not ({"each", "recorded"} & {*value}):
        return ""
    size = format_count(value["count"], "message")
    last = value.get("last_user")
    return f"({size}, last user message: {format_value(last, limit - len(size) - 23)})" if last else f"({size})"


def _to_json(value: Any) -> str:
    return escape_hidden(json.dumps(value, ensure_ascii=False, default=str))


def _format_full(value: Any) -> list[str]:
    """Format a stored value as lines: a text as it is, everything else as indented JSON."""
    if isinstance(value, str) and "\n" in value:
        return ["", *map(escape_hidden, value.split("\n"))]
    text = _to_json(value)
    # With `--full`, a longer value is printed on several lines
    if len(text) <= 80:
        return [text]
    return list(map(escape_hidden, json.dumps(value, ensure_ascii=False, indent=2, default=str).split("\n")))


_TOKEN_PART_WORDS = {
    "input": (
        ("cached_input", "cached"),
        ("cache_write", "cache write"),
        ("cache_write_1h", "cache write for 1 h"),
        ("audio_input", "audio"),
    ),
    "output": (("reasoning", "reasoning"), ("audio_output", "audio")),
}


def format_tokens(steps: Iterable[Step]) -> str:
    """Format the tokens of these attempts, such as `1,234 input (1,000 cached), 56 output`; empty without any."""
    totals = Counter[str]()
    for step in steps:
        totals.update(step.tokens or {})
    phrases = []
    for name, count in totals.items():
        if name not in TOKEN_PARTS:
            parts = [f"{totals[part]:,} {word}" for part, word in _TOKEN_PART_WORDS.get(name, ()) if totals[part]]
            phrases.append(f"{count:,} {to_line(name, 40)}" + (f" ({', '.join(parts)})" if parts else ""))
    return ", ".join(phrases)


def format_cost(steps: Iterable[Step]) -> str:
    """Format the cost of these attempts, or that it is unknown; empty if they have neither cost nor tokens."""
    usage = sum_usage(steps)
    return stats.format_cost(usage) if usage.priced_attempts or usage.unpriced_attempts else ""


# Attempts


def _describe_attempt(step: Step, start_seconds: float) -> str:
    if step.is_skipped:
        return "not executed"
    duration = format_duration(step.duration_seconds)
    text = f"attempt {step.attempt} at {format_duration(max(0.0, start_seconds))}, took {duration}"
    if step.failure is None:
        return text if step.outcome == "success" else f"{text}: {step.outcome}"
    failure = step.failure
    is_refused = failure.took_effect is TookEffect.UNKNOWN and not failure.has_unknown_outcome
    is_call = step.type != "run"  # a run is not executed as a whole: its calls say what was
    return f"{text}: {failure.kind}" + (
        f", {EXECUTION_TEXTS[failure.took_effect.value]}" if is_call and not is_refused else ""
    )


def describe_recovery(recovery: Recovery) -> str:
    if recovery.source == VERIFY:
        return "verified whether the call had executed"
    phrases = [f"repair: {_describe_repair(recovery)}" if recovery.changes else recovery.remedy.value]
    if recovery.backoff_seconds:
        phrases.append(f"backoff {format_duration(recovery.backoff_seconds)}")
    return ", ".join(phrases)


def describe_wait(step: Step) -> str:
    """Return what the call waits for after a failed attempt because its target is down; mostly nothing."""
    waiting = (step.metadata or {}).get(WAIT_METADATA)
    if not isinstance(waiting, dict) or not step.has_failed:
        return ""
    target, seconds = to_line(waiting.get("target"), 60), waiting.get("next_probe_seconds")
    if not isinstance(seconds, int | float) or seconds <= 0:
        return f"waiting for {target}, which is probed now"
    return f"waiting for {target}, next probe in {format_duration(seconds)}"


def describe_compression(step: Step) -> list[str]:
    """Describe how the conversation of an attempt was compressed: the tokens, then each action with its messages."""
    facts = (step.metadata or {}).get("compressed")
    if not isinstance(facts, dict):
        return []
    lines = [f"{_format_tokens(facts)}, by {to_line(facts.get('by'), 20)}"]
    actions = [action for action in facts.get("actions") or () if isinstance(action, dict)]
    for action in actions:
        first, count = _to_number(action.get("message")), _to_number(action.get("messages")) or 1
        position = f"message {first}" if count == 1 else f"messages {first} to {first + count - 1}"
        tool = f" ({to_line(action['tool'], 40)})" if action.get("tool") else ""
        lines.append(f"{to_line(action.get('action'), 20)} {position}{tool}: {_format_tokens(action)}")
    return lines


def _format_tokens(facts: dict[str, Any]) -> str:
    before, after = (_to_number(facts.get(name)) for name in ("tokens_before", "tokens_after"))
    return f"{before:,} -> {after:,} tokens"


def _to_number(value: Any) -> int:
    return value if type(value) is int else 0


def _describe_repair(repair: Recovery) -> str:
    prerequisites = ", then ".join(to_line(tool, 40) for tool in repair.prerequisites)
    text = describe_changes(repair.changes) or f"call {prerequisites} first"
    if repair.source == PROGRAM:
        return f"{text} (by the program itself)"
    return f"{text} (source: {repair.source or 'unknown'}, {repair.confidence:.0%} confidence)"


def describe_changes(changes: Sequence[Change]) -> str:
    """Describe argument changes, such as `top_k 50 -> 10`."""
    return ", ".join(_describe_change(change) for change in changes)


def _describe_change(change: Change) -> str:
    before, after = format_value(change.before, 40), format_value(change.after, 40)
    if change.operation == "drop":
        return f"{to_line(change.path, 40)} dropped"
    if change.operation == "rename" and change.path != calls.TOOL_NAME_PATH:
        return f"{to_line(change.before, 40)} renamed to {to_line(change.after, 40)}"
    if change.form:
        return f"{to_line(change.path, 40)} {before} -> {to_line(describe_transformation(change.form), 60)}"
    if change.before is None and change.after is not None:  # the argument was missing
        return f"{to_line(change.path, 40)}={after}"
    return f"{to_line(change.path, 40)} {before} -> {after}"


def _summarize_trace(failure: Failure) -> Iterator[str]:
    """Yield a line for each exception of a chain: its class and the nearest frames, those of the user's code if any."""
    header, frames = failure.exception or "exception", list[str]()
    lines = failure.trace.splitlines()
    if not all(line.startswith(TRACE_LINE_STARTS) for line in lines):  # sent by another program
        yield to_line(f"{header}, stack trace of {format_count(len(lines), 'line')} (--full)", MAX_SUMMARY_CHARS)
        return
    for line in (*lines, ""):
        if line.startswith("  "):
            frames.append(line.strip())
            continue
        user_frames = [frame for frame in frames if not frame.startswith(("library ", "..."))]
        # Frames of one exception in the text of a run. `--full`, JSON and dashboard show all.
        nearest = ", from ".join(user_frames[:3] or frames[:1])
        yield to_line(f"{header} at {nearest}" if nearest else header, MAX_SUMMARY_CHARS)
        header, frames = line, []


def _iter_notes(stop: RecoveryStop | None, link: Link | None) -> Iterator[str]:
    """Yield the stop reason if the first line lacks it, the spiral, the suggestions, and what recovered the call."""
    if stop is not None:
        if link is not None:
            yield f"recovery stopped: {to_line(stop.reason, MAX_REASON_CHARS)}"
        if stop.spiral:
            yield to_line(stop.spiral, MAX_MESSAGE_CHARS)
        for suggestion in stop.suggestions:
            hidden = "" if suggestion.confidence >= MIN_SHOWN_CONFIDENCE else ", hidden from models"
            yield f"suggestion{hidden}: {_describe_repair(suggestion)}"
    if link is not None:
        if link.changes:
            yield f"changed: {describe_changes(link.changes)}"
        elif link.intermediate_tools:
            yield f"calls in between: {to_line(', '.join(link.intermediate_tools))}"
        yield f"linked because: {describe_evidence(link)}"


def _iter_rules(step: Step) -> Iterator[str]:
    """Yield the rule that allows to repeat a call of an MCP server, if only its unknown side effects forbid it."""
    stop, failure = step.stop, step.failure
    if stop is None or failure is None or not step.server or 'effects="once"' not in stop.reason:
        return
    if stop.suggestions or failure.remedy is Remedy.RETRY:
        name = to_line(step.name if step.name.startswith(f"{step.server}.") else f"{step.server}.{step.name}")
        yield (
            f'to allow it, if the tool only reads: [tools."{name}"] effects = "none" in '
            "~/.config/mulligan/mulligan.toml, or --trust-annotations if the server marks it with readOnlyHint"
        )


MAX_SHOWN_FIXES = 3
"""Fixes that a model had read, shown with a link."""


def describe_evidence(link: Link) -> str:
    """Describe why both calls of a recovery link have the same intent."""
    reasons = [EVIDENCE_TEXTS[evidence] for evidence in link.evidence] or ["not recorded"]
    if link.provisional:
        reasons.append("provisional until the run ends")
    if link.advice:
        names = ["advice about this tool" if fix == ANY_FIX else fix for fix in link.advice[-MAX_SHOWN_FIXES:]]
        reasons.append(f"after the model read {to_line(', '.join(names))}")
    return ", ".join(reasons)
