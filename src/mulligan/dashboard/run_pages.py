"""Run pages: a filtered, paginated list, and one run with a lane per call and the details of each attempt."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup, escape

from mulligan.contract import counters
from mulligan.contract.run_facts import RUN_FACTS, RUN_ORDERS
from mulligan.contract.store import RunQuery, Store
from mulligan.core import calls
from mulligan.core.calls import TOOL_NAME_PATH, Call
from mulligan.core.failure import Failure, SettingsError, TookEffect
from mulligan.core.records import PROGRAM, VERIFY, Change, History, Link, Recovery, Step, encode, pattern_id
from mulligan.core.transformations import describe_transformation
from mulligan.dashboard import charts, formatting
from mulligan.dashboard.metric_cards import empty_state, find_older_runs
from mulligan.dashboard.page_query import UNNAMED_AGENT, PageQuery
from mulligan.prompt import Prompt
from mulligan.report import call_text, conversation_text, run_text
from mulligan.report import stats as stats_report
from mulligan.report.recovery_costs import describe_episodes
from mulligan.report.resources import RUN_SPEC, SESSION_SPEC
from mulligan.report.run_table import RUN_GROUPS, compare_runs, group_runs

MIN_LANE_PERCENT = 2.0
"""Least width of an attempt on the time axis of its run: about that of its mark."""
OUTCOME_MARKS = {"success": "✓", "failure": "✕", "cancelled": "\u2013", "blocked": "\u2013"}
ROWS_PER_PAGE = 25
COLUMNS = {
    "status": "status", "agent": "agent", "started": "started_at",
    **{name: fact.field for name, fact in RUN_FACTS.items()},
    "calls": "calls", "unrecovered": "", "worst": "worst",
}  # fmt: skip
"""Columns of the list that can be chosen, with their names in CSV and JSON, where they have one."""
CALLS_PER_PAGE = 100
ENTRIES_PER_PAGE = 200
"""Limit of messages, failures and recoveries of a conversation per page."""
MAX_SHOWN_METADATA = 20
MAX_SESSION_RUNS = 50
"""Latest runs of a session that its page shows."""
TOOK_EFFECT_LABELS = {
    TookEffect.NO: "no: rejected before execution",
    TookEffect.YES: "yes: executed",
    TookEffect.UNKNOWN: "unknown: may have executed",
}
REMEDY_LABELS = {
    "retry": "retry after a backoff",
    "repair": "repair the arguments",
    "compress": "compress the conversation",
    "replan": "replan: return the failure to the model",
    "stop": "stop: a person must act",
}
SOURCE_LABELS = {
    "call": "failed call",
    "run": "this run",
    "schema": "tool schema",
    "rule": "operator's rule",
    "memory": "memory (earlier success)",
    "error": "bound stated in the error",
    PROGRAM: "the program itself",
}


def runs(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    order = page_query.find_order(RUN_ORDERS, "started")
    by = page_query.other_parameters.get("by", "")
    if by:
        if by not in RUN_GROUPS:
            raise SettingsError(f"Invalid by {by[:40]!r}. Use one of: {', '.join(RUN_GROUPS)}.")
        groups = group_runs(store, tenant, page_query.query(RUN_SPEC, order=order), by)
        is_empty = not groups.rows
        return {
            **_run_list(page_query, order),
            "groups": groups,
            "empty": empty_state(store, tenant, page_query) if is_empty else None,
        }
    histories, pages = page_query.read_page(store, tenant, RUN_SPEC, ROWS_PER_PAGE, order=order)
    return {
        **_run_list(page_query, order),
        "groups": None,
        "empty": empty_state(store, tenant, page_query) if not histories else None,
        "rows": list(map(build_run_row, histories)),
        "older": find_older_runs(store, tenant, page_query) if pages.next is None else None,
        "pages": pages,
    }


def _run_list(page_query: PageQuery, order: str) -> dict[str, Any]:
    """Return what the list and its groups share: the order, and the address of the same rows as CSV or JSON."""
    by, columns = page_query.other_parameters.get("by"), page_query.other_parameters.get("columns")
    chosen_columns = columns.split(",") if columns else list(COLUMNS)
    if unknown := [name for name in chosen_columns if name not in COLUMNS]:
        raise SettingsError(f"Invalid column {unknown[0][:40]!r}. Use some of: {', '.join(COLUMNS)}.")
    period = {"since": str(page_query.since or "all"), "until": str(page_query.until) if page_query.until else None}
    parameters = {**page_query.filters, **period, "order": order, "by": by, "limit": None if by else "1000"}
    if columns and not by:
        parameters["columns"] = ",".join(("id", *(COLUMNS[name] for name in chosen_columns if COLUMNS[name])))
    if parameters.get("agent") == UNNAMED_AGENT:
        parameters["agent"] = ""
    address = urlencode({name: value for name, value in parameters.items() if value is not None}, errors="replace")
    return {
        "order": order,
        "order_label": RUN_ORDERS[order],
        "by": by,
        "dimensions": RUN_GROUPS,
        "shown": chosen_columns,
        "columns": COLUMNS,
        "export": f"/v1/{'run-groups' if by else 'runs'}?{address}",
    }


def sessions(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    rows, pages = page_query.read_page(store, tenant, SESSION_SPEC, ROWS_PER_PAGE)
    return {
        "empty": empty_state(store, tenant, page_query) if not rows and not page_query.filters else None,
        "has_runs": bool(store.runs(tenant, page_query.query(RUN_SPEC, limit=1))),
        "rows": rows,
        "pages": pages,
    }


def session(store: Store, tenant: str, page_query: PageQuery, id: str) -> dict[str, Any] | None:
    """Return the page of one session: its runs, and the recorded conversation over all of them."""
    newest = store.runs(tenant, RunQuery(session=id, limit=MAX_SESSION_RUNS + 1))
    if not newest:
        return None
    latest = newest[:MAX_SESSION_RUNS]
    histories = [store.run(tenant, history.run.id) or history for history in reversed(latest)]
    page = page_query.page_index
    steps = [step for history in histories for step in history.steps]
    return {
        "session": id,
        "rows": list(map(build_run_row, histories)),
        "has_older": len(newest) > MAX_SESSION_RUNS,
        "tokens": call_text.format_tokens(steps),
        "cost": call_text.format_cost(steps),
        **build_conversation_page(histories, page),
    }


def build_conversation_page(histories: Sequence[History], page: int) -> dict[str, Any]:
    """Build one page of the recorded conversation of these runs."""
    entries = conversation_text.build_conversation(histories)
    return {
        "entries": entries[page * ENTRIES_PER_PAGE : (page + 1) * ENTRIES_PER_PAGE],
        "messages": conversation_text.count_messages(entries),
        "failures": sum(entry.type == "failure" for entry in entries),
        "page_number": page + 1,
        "pages": -(-len(entries) // ENTRIES_PER_PAGE),
    }


def build_run_row(history: History) -> dict[str, Any]:
    run, links = history.run, history.links_by_call
    failed = [call for call in calls.group_attempts(history.steps) if call.has_failed and call.first.type != "run"]
    return run_text.to_facts(history) | {
        "unrecovered": sum(not call.is_recovered(links.get(call.id)) for call in failed),
        "context": run.context,
    }


def run(store: Store, tenant: str, page_query: PageQuery, id: str) -> dict[str, Any] | None:
    """Return the page of one run, by its id or an unambiguous prefix of it."""
    history = _find_run(store, tenant, id)
    if history is None:
        return None
    other_id = page_query.other_parameters.get("with", "")
    other = _find_run(store, tenant, other_id) if other_id else None
    page = page_query.page_index if "page" in page_query.other_parameters else None
    return build_run_page(history, page) | {
        "other_id": other_id,
        "comparison": compare_runs(history, other) if other is not None else None,
    }


FAILED_STATUSES = ("failure", "partial")
"""Statuses of runs that open at their first failure."""


def _find_run(store: Store, tenant: str, id: str) -> History | None:
    history = store.run(tenant, id)
    if history is None and len(matches := store.find(tenant, id, limit=2)) == 1:
        return store.run(tenant, matches[0].id)
    return history


class Frame(NamedTuple):
    """Start and end of a run in UTC milliseconds."""

    begin: int
    end: int

    @classmethod
    def of(cls, history: History) -> Frame:
        starts = [step.started_at for step in history.steps if step.started_at]
        ends = [step.started_at + int(step.duration_seconds * 1000) for step in history.steps if step.started_at]
        begin = min([history.run.started_at or min(starts, default=0), *starts])
        return cls(begin, max([history.run.ended_at or begin, begin + 1, *ends]))

    def to_percent(self, timestamp: float) -> float:
        return min(100.0, max(0.0, 100 * (timestamp - self.begin) / (self.end - self.begin)))


def render_lane(call: Call, frame: Frame) -> Markup:
    """Render the attempts of a call on the run's time axis. Marks and colors both show the outcome."""
    attempts = []
    steps = [step for step in call.steps if not step.is_skipped]
    starts = _spread([frame.to_percent(step.started_at) for step in steps])
    for step, start in zip(steps, starts, strict=True):
        end = frame.to_percent(step.started_at + step.duration_seconds * 1000)
        look = "lost" if step.has_failed else "quietly" if step.outcome != "success" else "ok"
        css_class = "won" if look == "ok" and call.has_failed else look
        label = f"attempt {step.attempt}: {step.outcome} after {formatting.seconds(step.duration_seconds)}"
        attempts.append(
            (label, css_class, start, min(100 - start, max(MIN_LANE_PERCENT, end - start)), OUTCOME_MARKS[step.outcome])
        )
    labels = "; ".join(label for label, *_ in attempts) or "not executed"
    description = f"{formatting.line(call.name or call.first.type, 60)}: {labels}"
    return charts.macro("lane", description, attempts)


def _spread(starts: Sequence[float]) -> list[float]:
    """Move the starts of attempts apart, so that no bar hides the mark of the one before it."""
    gap = min(MIN_LANE_PERCENT, 100 / max(1, len(starts)))
    spread_starts: list[float] = []
    for number, start in enumerate(starts):
        latest = 100 - gap * (len(starts) - number)  # leaves room for the attempts after it
        earliest = spread_starts[-1] + gap if spread_starts else 0.0
        spread_starts.append(max(earliest, min(start, latest)))
    return spread_starts


def _locate_call(call: Call, all_calls: Sequence[Call], numbers: Mapping[int, int]) -> dict[str, Any]:
    """Return the id and number of a call, and the page that shows it."""
    page = all_calls.index(call) // CALLS_PER_PAGE
    return {"call": call.id, "number": numbers[call.id], "page": page + 1 if page else None}


def build_run_page(history: History, page: int | None = None) -> dict[str, Any]:
    """Return one page of the calls of a run: by default that of the first failure if the run failed, else the first."""
    all_calls = calls.group_attempts(history.steps)
    agent_calls = [call for call in all_calls if call.first.type != "run"]
    links = history.links_by_call
    numbers = {call.id: number for number, call in enumerate(agent_calls, start=1)}
    by_id = {call.id: call for call in all_calls}
    by_seq = {step.seq: call for call in all_calls for step in call.steps}
    frame = Frame.of(history)
    failed = [call for call in agent_calls if call.has_failed]
    recovered_calls = [call for call in failed if call.is_recovered(links.get(call.id))]
    usage = counters.sum_usage(history.steps)
    status = run_text.status_of(history)
    first_failure = _locate_call(failed[0], all_calls, numbers) if failed else None
    if page is None:
        page = (first_failure["page"] or 1) - 1 if first_failure is not None and status in FAILED_STATUSES else 0
    page_calls = all_calls[page * CALLS_PER_PAGE : (page + 1) * CALLS_PER_PAGE]
    episode_notes = describe_episodes(history)
    return {
        "run": history.run,
        "metadata": list((history.run.metadata or {}).items())[:MAX_SHOWN_METADATA],
        "status": status,
        "lasted": (frame.end - frame.begin) / 1000 if history.run.end_reason is not None else None,
        "calls": len(agent_calls),
        "attempts": sum(not step.is_skipped for call in agent_calls for step in call.steps),
        "failures": sum(step.has_failed for call in agent_calls for step in call.steps),
        "failed": len(failed),
        "first_failure": first_failure,
        "recovered": len(recovered_calls),
        "suspected": len(run_text.list_suspected(history)),
        "recovery_times": [
            seconds
            for call in recovered_calls
            if (seconds := seconds_to_success(call, _find_success(call, links.get(call.id), by_id))) is not None
        ],
        "backoff": sum(call.backoff_seconds for call in agent_calls),
        "tokens": call_text.format_tokens(history.steps),
        "cost": call_text.format_cost(history.steps),
        "recovery_cost": stats_report.recovery_cost_nanos(usage) if usage.recovery_tokens else 0,
        "avoided": stats_report.format_avoided(usage) if usage.avoided_turns else "",
        "ticks": [(frame.end - frame.begin) / 1000 * share for share in (0, 0.25, 0.5, 0.75, 1)],
        "lanes": [
            _build_lane(call, frame, numbers, links.get(call.id), by_id)
            | {"depth": _depth(call, by_seq), "is_cut_off": call.id in history.run.cut_off}
            | {"advice": [advised_fix for advised_fix in history.run.advice if advised_fix.call == call.id]}
            | {"notes": episode_notes.get(call.id, ())}
            for call in page_calls
        ],
        "page_number": page + 1,
        "pages": -(-len(all_calls) // CALLS_PER_PAGE),
        "compactions": [item for item in history.compactions if counters.is_within(item, history.run)],
        "conversation": build_conversation_page([history], 0) if history.messages else None,
    }


def _depth(call: Call, by_seq: Mapping[int, Call]) -> int:
    """Return how many calls enclose this one."""
    depth, parent = 0, call.first.parent
    # Levels of calls within calls that are indented.
    while depth < 4 and parent is not None and (enclosing := by_seq.get(parent)) is not None:
        depth, parent = depth + 1, enclosing.first.parent
    return depth


def _build_lane(
    call: Call, frame: Frame, numbers: dict[int, int], link: Link | None, by_id: dict[int, Call]
) -> dict[str, Any]:
    later_link = link if link is not None and link.failed_call != link.recovering_call else None
    successful_call = _find_success(call, link, by_id)
    needs_details = call.has_failed or len(call.steps) > 1 or call.last.outcome != "success"
    changes = call.changes or (later_link.changes if later_link is not None else ())
    stop = call.last.stop
    is_tool = call.first.type in ("tool", "retrieval")
    return {
        "call": call,
        "number": numbers.get(call.id),
        "lane": render_lane(call, frame),
        "attempts": list(map(_build_attempt, call.steps)) if needs_details else [],
        "took": seconds_to_success(call, successful_call) if call.has_failed else None,
        "outcome": "failure of the run itself" if call.first.type == "run" else call.outcome_label,
        "link": later_link,
        "by": numbers.get(later_link.recovering_call) if later_link is not None else None,
        "linked": call_text.describe_evidence(later_link) if later_link is not None else "",
        "changes": list(map(describe_change, changes)),
        "working_arguments": successful_call.last.arguments if successful_call and call.has_failed else None,
        "input": _preview(call.first.arguments),
        "output": _preview(call.last.result) if call.has_succeeded else None,
        "result": call.last.result if call.has_succeeded else None,
        "messages": _messages_to_model(call) if is_tool else [],
        "suggestions": [
            {
                "changes": list(map(describe_change, recovery.changes)),
                "source": SOURCE_LABELS.get(recovery.source, recovery.source),
                "confidence": recovery.confidence,
            }
            for recovery in (stop.suggestions if stop else ())
        ],
        "suspected": call.last.suspected,
        "case": render_test_case(call, successful_call) if call.has_failed and is_tool else "",
        "fixes": sorted({step.recovery.fix_id for step in call.steps if step.recovery and step.recovery.fix_id}),
    }


def _find_success(call: Call, link: Link | None, by_id: Mapping[int, Call]) -> Call | None:
    """Return the call itself if it succeeded, else the later one that recovered it."""
    return call if call.has_succeeded else by_id.get(link.recovering_call) if link is not None else None


def _preview(value: Any) -> Markup | None:
    """Return the start of arguments or of a result on one line; None if there are none."""
    return formatting.brief(value) if value not in (None, {}, []) else None


def seconds_to_success(call: Call, successful_call: Call | None) -> float | None:
    """Return the seconds from the first attempt of a call to the end of the attempt that succeeded."""
    if successful_call is None:
        return None
    last = successful_call.last
    return (last.started_at - call.first.started_at) / 1000 + last.duration_seconds


def _build_attempt(step: Step) -> dict[str, Any]:
    failure, recovery = step.failure, step.recovery
    return {
        "step": step,
        "failure": failure,
        "mark": OUTCOME_MARKS[step.outcome],
        "look": "bad" if step.has_failed else "good" if step.outcome == "success" else "quiet",
        "outcome": "not executed" if step.is_skipped else step.outcome,
        "after": _describe_recovery(recovery) if recovery is not None else "",
        "compression": list(map(escape, call_text.describe_compression(step))),  # sanitized already
        "wait": call_text.describe_wait(step),
        "confidence": recovery.confidence if recovery and recovery.changes and recovery.source != PROGRAM else None,
        "remedy": REMEDY_LABELS[failure.remedy.value] if failure is not None else "",
        "took_effect": _describe_effect(failure) if failure is not None else "",
        "pattern": pattern_id(step.name, failure.fingerprint) if failure is not None and failure.fingerprint else "",
    }


def _describe_effect(failure: Failure) -> str:
    if failure.took_effect is TookEffect.UNKNOWN and not failure.has_unknown_outcome:
        return "no, as the error says"
    return TOOK_EFFECT_LABELS[failure.took_effect]


def _describe_recovery(recovery: Recovery) -> str:
    """Describe the recovery action before an attempt."""
    if recovery.source == VERIFY:
        return "verified: the call had executed"
    if recovery.changes:
        phrase = f"repair, source: {SOURCE_LABELS.get(recovery.source, recovery.source or 'call')}"
    elif recovery.remedy.value == "compress":
        phrase = "conversation compressed"
    else:
        labels = {"fallback": "fallback model", PROGRAM: "retry by the program itself"}
        phrase = labels.get(recovery.source, "retry")
    backoff = recovery.backoff_seconds
    return f"{phrase}, backoff {formatting.seconds(backoff)}" if backoff else phrase


def describe_change(change: Change, is_learned: bool = False) -> dict[str, Any]:
    """Describe one argument change for a table. A learned change usually has no value before."""
    before: Markup | None = formatting.brief(change.before)
    if is_learned and change.before is None and change.operation != "drop":
        before = Markup("any value")
    elif change.operation in ("substitute", "default") and change.before is None:
        before = None
    after = describe_transformation(change.form) if change.form else change.after
    return {
        "name": "tool name" if change.path == TOOL_NAME_PATH else change.path or "all arguments",
        "operation": change.operation,
        "before": before,
        "after": None if change.operation == "drop" else formatting.brief(after),
        "source": SOURCE_LABELS.get(change.source, change.source),
        "is_name": change.operation == "rename" and change.path != TOOL_NAME_PATH,
    }


def _messages_to_model(call: Call) -> list[tuple[str, Markup]]:
    """Return what the model received about the call: the failure message, or the note about repaired arguments."""
    prompt, failure, stop = (
        Prompt().for_arguments(call.last.arguments, call.first.arguments),
        call.failure,
        call.last.stop,
    )
    if call.has_succeeded:
        return [("note", formatting.text(prompt.note(call.name, call.changes)))] if call.changes else []
    if failure is None:
        return []
    answer = prompt.answer(
        failure,
        tool=call.name,
        has_effects=call.last.effects not in ("none", "idempotent"),
        suggested=stop.suggestions if stop else (),
        spiral=stop.spiral if stop else "",
    )

    def to_text(value: Any) -> str:
        if isinstance(value, str):
            return value
        return "\n".join(map(str, value)) if isinstance(value, Sequence) else str(value).lower()

    return [(name, formatting.text(to_text(value))) for name, value in answer.items()]


def render_test_case(call: Call, successful_call: Call | None) -> Markup:
    """Render the failed call as a test of the tool. The user completes the import of the tool."""
    kind, message = (str(call.failure.kind), call.failure.message) if call.failure else ("failed", "")
    ascii_message = formatting.plain_line(message, 100).encode("ascii", "replace").decode()
    name = re.sub(r"\W+", "_", call.name, flags=re.ASCII).strip("_").lower() or "tool"
    if name[0].isdigit() or keyword.iskeyword(name):
        name = f"tool_{name}"
    lines = [
        "from mulligan.testing import sandbox",
        "",
        f"from your_package import {name}  # the function decorated with @mulligan.tool",
        "",
        "",
        f"def test_{name}_of_{re.sub(r'[^a-z0-9]+', '_', call.first.run.lower())[:20]}():",
        f"    # {formatting.plain_line(kind, 60)}: {ascii_message}",
        "    with sandbox(mode='repair') as played:",
        f"        {name}(**{_python_literal(call.first.arguments)})",
    ]
    if successful_call is None:
        lines += [f"    assert played.steps[-1].failure.kind != {kind if call.failure else ''!r}"]
    else:
        lines += ["    assert played.calls[0].has_succeeded"]
        if successful_call.last.arguments != call.first.arguments:
            lines += [f"    assert played.steps[-1].arguments == {_python_literal(successful_call.last.arguments)}"]
    return Markup("{}").format("\n".join(lines))


def _python_literal(value: Any) -> str:
    """Return a stored value as Python source: stored values are JSON, tests are Python."""
    return ascii(json.loads(encode(value))) if value is not None else "{}"
