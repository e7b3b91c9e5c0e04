"""Run page: one lane per call with its attempts to scale, and the details of each attempt."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from mulligan.core import calls
from mulligan.core.calls import TOOL_NAME_PATH, Call
from mulligan.core.failure import TookEffect
from mulligan.core.links import derive_status
from mulligan.core.records import VERIFY, Change, History, Link, Recovery, Step, encode, pattern_id
from mulligan.dashboard import formatting
from mulligan.prompt import Prompt
from mulligan.report.link_evidence import describe_evidence
from mulligan.store import counters

OUTCOME_MARKS = {"success": "✓", "failure": "✕", "cancelled": "\u2013", "refused": "\u2013"}
CALLS_PER_PAGE = 100
"""Limit of calls per page."""
TOOK_EFFECT_LABELS = {
    TookEffect.NO: "no: it was rejected before it ran",
    TookEffect.YES: "yes: it ran",
    TookEffect.UNKNOWN: "unknown: it may have taken effect",
}
REMEDY_LABELS = {
    "wait": "wait, then the same again",
    "repair": "repair the arguments",
    "compress": "compress the conversation",
    "tell": "tell the model",
    "stop": "stop: only a person can help",
}
SOURCE_LABELS = {
    "call": "the failed call itself",
    "run": "this run",
    "schema": "the tool's schema",
    "rule": "an operator's rule",
    "memory": "memory: it worked before",
    "error": "a bound that the error named",
}


class Frame(NamedTuple):
    """Start and end of a run in UTC milliseconds."""

    begin: int
    end: int

    @classmethod
    def of(cls, history: History) -> Frame:
        starts = [step.started for step in history.steps if step.started]
        ends = [step.started + int(step.seconds * 1000) for step in history.steps if step.started]
        begin = min([history.run.started or min(starts, default=0), *starts])
        return cls(begin, max([history.run.ended or begin, begin + 1, *ends]))

    def to_percent(self, timestamp: float) -> float:
        """Convert a timestamp to a percentage of the frame."""
        return min(100.0, max(0.0, 100 * (timestamp - self.begin) / (self.end - self.begin)))


def render_lane(call: Call, frame: Frame) -> Markup:
    """Render the attempts of a call on the run's time axis. Marks and colors both show the outcome."""
    bars, labels = [], []
    for step in call.steps:
        if step.is_skipped:
            continue
        start_percent = min(frame.to_percent(step.started), 98.6)
        width_percent = max(
            1.4, min(frame.to_percent(step.started + step.seconds * 1000) - start_percent, 100 - start_percent)
        )
        css_class = "lost" if step.has_failed else "quietly" if step.outcome != "success" else "ok"
        if css_class == "ok" and call.has_failed:
            css_class = "won"
        label = f"attempt {step.attempt}: {step.outcome} after {formatting.seconds(step.seconds)}"
        labels.append(label)
        bars.append(
            Markup(
                '<g><title>{}</title><rect class="lane-{}" x="{:.2f}%" y="1" width="{:.2f}%" height="16" rx="3"/>'
                '<text class="mark-{}" x="{:.2f}%" y="13">{}</text></g>'
            ).format(
                label,
                css_class,
                start_percent,
                width_percent,
                css_class,
                start_percent + width_percent / 2,
                OUTCOME_MARKS[step.outcome],
            )
        )
    return Markup('<svg class="lane" height="18" width="100%" role="img" aria-label="{}">{}</svg>').format(
        f"{formatting.line(call.name or call.first.type, 60)}: {'; '.join(labels) or 'not made'}", Markup("").join(bars)
    )


def build_run_page(history: History, page: int = 0) -> dict[str, Any]:
    """Build the template context of the run page."""
    all_calls = calls.group_attempts(history.steps)
    agent_calls = [call for call in all_calls if call.first.type != "run"]
    links = {link.failed: link for link in history.links}
    numbers = {call.id: number for number, call in enumerate(agent_calls, start=1)}
    by_id = {call.id: call for call in all_calls}
    frame = Frame.of(history)
    failed = [call for call in agent_calls if call.has_failed]
    recovered_calls = [call for call in failed if call.has_succeeded or call.id in links]
    page_calls = all_calls[page * CALLS_PER_PAGE : (page + 1) * CALLS_PER_PAGE]
    return {
        "run": history.run,
        "status": derive_status(history.run, history.steps, history.links),
        "is_running": history.run.end is None,
        "lasted": (frame.end - frame.begin) / 1000 if history.run.end is not None else None,
        "calls": len(agent_calls),
        "attempts": sum(not step.is_skipped for call in agent_calls for step in call.steps),
        "failures": sum(step.has_failed for call in agent_calls for step in call.steps),
        "failed": len(failed),
        "overcome": len(recovered_calls),
        "recovering": sum(call.recovery_seconds for call in failed),
        "waited": sum(call.backoff_seconds for call in agent_calls),
        "frame": frame,
        "ticks": [(frame.end - frame.begin) / 1000 * share for share in (0, 0.25, 0.5, 0.75, 1)],
        "lanes": [_build_lane(call, frame, numbers, links.get(call.id), by_id) for call in page_calls],
        "page_number": page + 1,
        "pages": -(-len(all_calls) // CALLS_PER_PAGE),
        "compactions": [
            compaction for compaction in history.compactions if counters.is_within(compaction, history.run)
        ],
    }


def _build_lane(
    call: Call, frame: Frame, numbers: dict[int, int], link: Link | None, by_id: dict[int, Call]
) -> dict[str, Any]:
    later_link = link if link is not None and link.failed != link.overcame else None
    later_call = by_id.get(later_link.overcame) if later_link is not None else None
    successful_call = call if call.has_succeeded else later_call
    recovery_seconds = None
    if call.has_failed and successful_call is not None:
        recovery_seconds = (successful_call.last.started - call.first.started) / 1000 + successful_call.last.seconds
    changes = call.changes or (later_link.changes if later_link is not None else ())
    return {
        "number": numbers.get(call.id),
        "id": f"call-{call.id}",
        "name": call.name,
        "type": call.first.type,
        "server": call.first.server,
        "lane": render_lane(call, frame),
        "attempts": [_build_attempt(step, is_last=step is call.last) for step in call.steps]
        if _needs_details(call)
        else [],
        "took": recovery_seconds,
        "seconds": call.first.seconds if not call.has_failed else None,
        "has_failed": call.has_failed,
        "ending": "the run's own failure" if call.first.type == "run" else call.outcome_label,
        "by": numbers.get(later_link.overcame) if later_link is not None else None,
        "by_id": f"call-{later_link.overcame}" if later_link is not None else None,
        "linked": describe_evidence(later_link) if later_link is not None else "",
        "between": later_link.between if later_link is not None and not later_link.changes else (),
        "changes": [describe_change(argument_change) for argument_change in changes],
        "by_model": bool(later_link is not None and later_link.changes),
        "arguments": call.first.arguments,
        "worked": successful_call.last.arguments if successful_call is not None and call.has_failed else None,
        "result": call.last.result if call.has_succeeded else None,
        "told": _messages_to_model(call),
        "offered": [_describe_suggestion(suggestion) for suggestion in call.last.ending.offered]
        if call.last.ending
        else [],
        "why": call.last.ending.why if call.last.ending else "",
        "spiral": call.last.ending.spiral if call.last.ending else "",
        "case": render_test_case(call, successful_call)
        if call.has_failed and call.first.type in ("tool", "retrieval")
        else "",
        "fixes": sorted({step.after.fix for step in call.steps if step.after and step.after.fix}),
    }


def _needs_details(call: Call) -> bool:
    return call.has_failed or len(call.steps) > 1 or call.last.outcome != "success"


def _build_attempt(step: Step, is_last: bool) -> dict[str, Any]:
    failure = step.failure
    return {
        "number": step.attempt,
        "mark": OUTCOME_MARKS[step.outcome],
        "look": "lost" if step.has_failed else "won" if step.outcome == "success" else "quietly",
        "outcome": "not made" if step.is_skipped else step.outcome,
        "seconds": step.seconds,
        "after": _describe_recovery(step.after) if step.after is not None else "",
        "confidence": step.after.confidence if step.after is not None and step.after.changes else None,
        "failure": failure,
        "kind": str(failure.kind) if failure is not None else "",
        "remedy": REMEDY_LABELS[failure.remedy.value] if failure is not None else "",
        "ran": TOOK_EFFECT_LABELS[failure.ran] if failure is not None else "",
        "pattern": pattern_id(step.name, failure.fingerprint) if failure is not None and failure.fingerprint else "",
        "is_last": is_last,
    }


def _describe_recovery(recovery: Recovery) -> str:
    """Describe the recovery action before an attempt."""
    if recovery.source == VERIFY:
        return "a check found that it had worked"
    phrases = []
    if recovery.changes:
        phrases.append(f"repaired from {SOURCE_LABELS.get(recovery.source, recovery.source or 'the call')}")
    elif recovery.remedy.value == "compress":
        phrases.append("the conversation was compressed")
    elif recovery.source == "fallback":
        phrases.append("with another model")
    else:
        phrases.append("the same again")
    if recovery.seconds:
        phrases.append(f"after {formatting.seconds(recovery.seconds)}")
    return ", ".join(phrases)


def describe_change(argument_change: Change, is_learned: bool = False) -> dict[str, Any]:
    """Describe one argument change for a table. A learned change usually has no value before."""
    before: Markup | None = formatting.brief(argument_change.before)
    after: Markup | None = formatting.brief(argument_change.after)
    name: Any = "the tool's name" if argument_change.path == TOOL_NAME_PATH else argument_change.path or "all arguments"
    if argument_change.how == "drop":
        after = None
    elif is_learned and argument_change.before is None:
        before = Markup("what was given")
    elif argument_change.how in ("substitute", "default") and argument_change.before is None:
        before = None
    return {
        "name": name, "how": argument_change.how, "before": before, "after": after,
        "from": SOURCE_LABELS.get(argument_change.from_, argument_change.from_),
        "is_name": argument_change.how == "rename" and argument_change.path != TOOL_NAME_PATH,
    }  # fmt: skip


def _describe_suggestion(recovery: Recovery) -> dict[str, Any]:
    return {
        "changes": [describe_change(argument_change) for argument_change in recovery.changes],
        "source": SOURCE_LABELS.get(recovery.source, recovery.source),
        "confidence": recovery.confidence,
    }


def _messages_to_model(call: Call) -> list[tuple[str, Markup]]:
    """Return what the model received about the call: the failure message, or the note about repaired arguments."""
    if call.first.type not in ("tool", "retrieval"):
        return []
    prompt = Prompt().for_arguments(call.last.arguments, call.first.arguments)
    if call.has_succeeded:
        if not call.changes:
            return []
        return [("note", formatting.text(prompt.note(call.name, call.changes)))]
    failure = call.failure
    if failure is None:
        return []
    ending = call.last.ending
    answer = prompt.answer(
        failure,
        tool=call.name,
        has_effects=call.last.effects not in ("none", "repeatable"),
        suggested=ending.offered if ending else (),
        spiral=ending.spiral if ending else "",
    )
    return [
        (name, formatting.text(value if isinstance(value, str) else _join_lines(value)))
        for name, value in answer.items()
    ]


def _join_lines(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, Sequence) else str(value).lower()


def render_test_case(call: Call, successful_call: Call | None) -> Markup:
    """Render the failed call as a test of the tool. The user completes the import of the tool."""
    failure = call.failure
    name = re.sub(r"\W+", "_", call.name, flags=re.ASCII).strip("_").lower() or "tool"
    if name[0].isdigit() or keyword.iskeyword(name):
        name = f"tool_{name}"
    lines = [
        "from mulligan.testing import sandbox",
        "",
        f"from your_package import {name}  # the function under @mulligan.tool",
        "",
        "",
        f"def test_{name}_of_{re.sub(r'[^a-z0-9]+', '_', call.first.run.lower())[:20]}():",
        f"    # {formatting.line(failure.kind if failure else 'failed', 60).unescape()}: "
        f"{_ascii(failure.message if failure else '')}",
        "    with sandbox(mode='repair') as played:",
        f"        {name}(**{_python_literal(call.first.arguments)})",
    ]
    if successful_call is not None:
        lines += ["    assert played.calls[0].has_succeeded"]
        if successful_call.last.arguments != call.first.arguments:
            lines += [f"    assert played.steps[-1].arguments == {_python_literal(successful_call.last.arguments)}"]
    else:
        lines += [f"    assert played.steps[-1].failure.kind != {str(failure.kind) if failure else ''!r}"]
    return Markup("{}").format("\n".join(lines))


def _ascii(message: str) -> str:
    return formatting.line(message, 100).unescape().encode("ascii", "replace").decode()


def _python_literal(value: Any) -> str:
    import json  # Imported here because only test cases need it: stored values are JSON, tests are Python.

    return ascii(json.loads(encode(value))) if value is not None else "{}"
