"""Run page: one lane per call with its attempts to scale, and the details of each attempt."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from mulligan import calls, figures
from mulligan.calls import TOOL, Call
from mulligan.failure import Ran
from mulligan.links import derive_status
from mulligan.prompt import Prompt
from mulligan.records import VERIFY, Change, History, Link, Recovery, Step, encode, pattern_id
from mulligan.report.link_evidence import describe_evidence
from mulligan.serve.dashboard import shown

MARKS = {"success": "✓", "failure": "✕", "cancelled": "\u2013", "refused": "\u2013"}
SHOWN = 100
"""Limit of calls per page."""
RAN = {
    Ran.NO: "no: it was rejected before it ran",
    Ran.YES: "yes: it ran",
    Ran.UNKNOWN: "unknown: it may have taken effect",
}
REMEDIES = {
    "wait": "wait, then the same again",
    "repair": "repair the arguments",
    "compress": "compress the conversation",
    "tell": "tell the model",
    "stop": "stop: only a person can help",
}
FROM = {
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

    def at(self, moment: float) -> float:
        """Convert a timestamp to a percentage of the frame."""
        return min(100.0, max(0.0, 100 * (moment - self.begin) / (self.end - self.begin)))


def lane(call: Call, frame: Frame) -> Markup:
    """Render the attempts of a call on the run's time axis. Marks and colors both show the outcome."""
    drawn, told = [], []
    for step in call.steps:
        if step.is_unmade:
            continue
        left = min(frame.at(step.started), 98.6)
        wide = max(1.4, min(frame.at(step.started + step.seconds * 1000) - left, 100 - left))
        look = "lost" if step.has_failed else "quietly" if step.outcome != "success" else "ok"
        if look == "ok" and call.has_failed:
            look = "won"
        said = f"attempt {step.attempt}: {step.outcome} after {shown.seconds(step.seconds)}"
        told.append(said)
        drawn.append(
            Markup(
                '<g><title>{}</title><rect class="lane-{}" x="{:.2f}%" y="1" width="{:.2f}%" height="16" rx="3"/>'
                '<text class="mark-{}" x="{:.2f}%" y="13">{}</text></g>'
            ).format(said, look, left, wide, look, left + wide / 2, MARKS[step.outcome])
        )
    return Markup('<svg class="lane" height="18" width="100%" role="img" aria-label="{}">{}</svg>').format(
        f"{shown.line(call.name or call.first.type, 60)}: {'; '.join(told) or 'not made'}", Markup("").join(drawn)
    )


def told(history: History, page: int = 0) -> dict[str, Any]:
    """Build the template context of the run page."""
    joined = calls.group_attempts(history.steps)
    own = [call for call in joined if call.first.type != "run"]
    links = {link.failed: link for link in history.links}
    numbers = {call.id: number for number, call in enumerate(own, start=1)}
    by_id = {call.id: call for call in joined}
    frame = Frame.of(history)
    failed = [call for call in own if call.has_failed]
    overcome = [call for call in failed if call.has_succeeded or call.id in links]
    part = joined[page * SHOWN : (page + 1) * SHOWN]
    return {
        "run": history.run,
        "status": derive_status(history.run, history.steps, history.links),
        "is_running": history.run.end is None,
        "lasted": (frame.end - frame.begin) / 1000 if history.run.end is not None else None,
        "calls": len(own),
        "attempts": sum(not step.is_unmade for call in own for step in call.steps),
        "failures": sum(step.has_failed for call in own for step in call.steps),
        "failed": len(failed),
        "overcome": len(overcome),
        "recovering": sum(call.recovery_seconds for call in failed),
        "waited": sum(call.waited for call in own),
        "frame": frame,
        "ticks": [(frame.end - frame.begin) / 1000 * share for share in (0, 0.25, 0.5, 0.75, 1)],
        "lanes": [_call(call, frame, numbers, links.get(call.id), by_id) for call in part],
        "page_number": page + 1,
        "pages": -(-len(joined) // SHOWN),
        "compactions": [each for each in history.compactions if figures.is_within(each, history.run)],
    }


def _call(
    call: Call, frame: Frame, numbers: dict[int, int], link: Link | None, by_id: dict[int, Call]
) -> dict[str, Any]:
    later = link if link is not None and link.failed != link.overcame else None
    by = by_id.get(later.overcame) if later is not None else None
    ended = call if call.has_succeeded else by
    took = None
    if call.has_failed and ended is not None:
        took = (ended.last.started - call.first.started) / 1000 + ended.last.seconds
    changes = call.changes or (later.changes if later is not None else ())
    return {
        "number": numbers.get(call.id),
        "id": f"call-{call.id}",
        "name": call.name,
        "type": call.first.type,
        "server": call.first.server,
        "lane": lane(call, frame),
        "attempts": [_attempt(step, is_last=step is call.last) for step in call.steps] if _is_worth(call) else [],
        "took": took,
        "seconds": call.first.seconds if not call.has_failed else None,
        "has_failed": call.has_failed,
        "ending": "the run's own failure" if call.first.type == "run" else call.ending,
        "by": numbers.get(later.overcame) if later is not None else None,
        "by_id": f"call-{later.overcame}" if later is not None else None,
        "linked": describe_evidence(later) if later is not None else "",
        "between": later.between if later is not None and not later.changes else (),
        "changes": [change(each) for each in changes],
        "by_model": bool(later is not None and later.changes),
        "arguments": call.first.arguments,
        "worked": ended.last.arguments if ended is not None and call.has_failed else None,
        "result": call.last.result if call.has_succeeded else None,
        "told": _model_was_told(call),
        "offered": [_offered(each) for each in call.last.ending.offered] if call.last.ending else [],
        "why": call.last.ending.why if call.last.ending else "",
        "spiral": call.last.ending.spiral if call.last.ending else "",
        "case": test_case(call, ended) if call.has_failed and call.first.type in ("tool", "retrieval") else "",
        "fixes": sorted({step.after.fix for step in call.steps if step.after and step.after.fix}),
    }


def _is_worth(call: Call) -> bool:
    return call.has_failed or len(call.steps) > 1 or call.last.outcome != "success"


def _attempt(step: Step, is_last: bool) -> dict[str, Any]:
    failure = step.failure
    return {
        "number": step.attempt,
        "mark": MARKS[step.outcome],
        "look": "lost" if step.has_failed else "won" if step.outcome == "success" else "quietly",
        "outcome": "not made" if step.is_unmade else step.outcome,
        "seconds": step.seconds,
        "after": _recovery(step.after) if step.after is not None else "",
        "confidence": step.after.confidence if step.after is not None and step.after.changes else None,
        "failure": failure,
        "kind": str(failure.kind) if failure is not None else "",
        "remedy": REMEDIES[failure.remedy.value] if failure is not None else "",
        "ran": RAN[failure.ran] if failure is not None else "",
        "pattern": pattern_id(step.name, failure.fingerprint) if failure is not None and failure.fingerprint else "",
        "is_last": is_last,
    }


def _recovery(recovery: Recovery) -> str:
    """Describe the recovery action before an attempt."""
    if recovery.source == VERIFY:
        return "a check found that it had worked"
    told = []
    if recovery.changes:
        told.append(f"repaired from {FROM.get(recovery.source, recovery.source or 'the call')}")
    elif recovery.remedy.value == "compress":
        told.append("the conversation was compressed")
    elif recovery.source == "fallback":
        told.append("with another model")
    else:
        told.append("the same again")
    if recovery.seconds:
        told.append(f"after {shown.seconds(recovery.seconds)}")
    return ", ".join(told)


def change(changed: Change, is_learned: bool = False) -> dict[str, Any]:
    """Describe one argument change for a table. A learned change usually has no value before."""
    before: Markup | None = shown.brief(changed.before)
    after: Markup | None = shown.brief(changed.after)
    name: Any = "the tool's name" if changed.path == TOOL else changed.path or "all arguments"
    if changed.how == "drop":
        after = None
    elif is_learned and changed.before is None:
        before = Markup("what was given")
    elif changed.how in ("substitute", "default") and changed.before is None:
        before = None
    return {
        "name": name, "how": changed.how, "before": before, "after": after,
        "from": FROM.get(changed.from_, changed.from_), "is_name": changed.how == "rename" and changed.path != TOOL,
    }  # fmt: skip


def _offered(recovery: Recovery) -> dict[str, Any]:
    return {
        "changes": [change(each) for each in recovery.changes],
        "source": FROM.get(recovery.source, recovery.source),
        "confidence": recovery.confidence,
    }


def _model_was_told(call: Call) -> list[tuple[str, Markup]]:
    """Return what the model received about the call: the failure message, or the note about repaired arguments."""
    if call.first.type not in ("tool", "retrieval"):
        return []
    prompt = Prompt().beside(call.last.arguments, call.first.arguments)
    if call.has_succeeded:
        if not call.changes:
            return []
        return [("note", shown.text(prompt.note(call.name, call.changes)))]
    failure = call.failure
    if failure is None:
        return []
    ending = call.last.ending
    answer = prompt.answer(
        failure,
        tool=call.name,
        has_effects=call.last.effects not in ("none", "repeatable"),
        offered=ending.offered if ending else (),
        spiral=ending.spiral if ending else "",
    )
    return [(name, shown.text(value if isinstance(value, str) else _joined(value))) for name, value in answer.items()]


def _joined(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, Sequence) else str(value).lower()


def test_case(call: Call, ended: Call | None) -> Markup:
    """Render the failed call as a test of the tool. The user completes the import of the tool."""
    failure = call.failure
    name = re.sub(r"\W+", "_", call.name, flags=re.ASCII).strip("_").lower() or "tool"
    if name[0].isdigit() or keyword.iskeyword(name):
        name = f"tool_{name}"
    lines = [
        "from mulligan.testing import rehearsal",
        "",
        f"from your_package import {name}  # the function under @mulligan.tool",
        "",
        "",
        f"def test_{name}_of_{re.sub(r'[^a-z0-9]+', '_', call.first.run.lower())[:20]}():",
        f"    # {shown.line(failure.kind if failure else 'failed', 60).unescape()}: "
        f"{_ascii(failure.message if failure else '')}",
        "    with rehearsal(mode='repair') as played:",
        f"        {name}(**{_python(call.first.arguments)})",
    ]
    if ended is not None:
        lines += ["    assert played.calls[0].has_succeeded"]
        if ended.last.arguments != call.first.arguments:
            lines += [f"    assert played.steps[-1].arguments == {_python(ended.last.arguments)}"]
    else:
        lines += [f"    assert played.steps[-1].failure.kind != {str(failure.kind) if failure else ''!r}"]
    return Markup("{}").format("\n".join(lines))


def _ascii(message: str) -> str:
    return shown.line(message, 100).unescape().encode("ascii", "replace").decode()


def _python(value: Any) -> str:
    import json  # Imported here because only test cases need it: stored values are JSON, tests are Python.

    return ascii(json.loads(encode(value))) if value is not None else "{}"
