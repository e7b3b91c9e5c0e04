"""One run as Langfuse, LangSmith and Phoenix export it, and a check of what is read."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from session_logs import write

from mulligan.core.calls import group_attempts
from mulligan.core.records import History
from mulligan.core.run_links import derive_status

Rows = list[dict[str, Any]]


def at(second: int) -> str:
    return f"2026-03-01 10:00:{second:02}.000000"


def langfuse() -> Rows:
    """An agent asks a model and calls a tool, which times out and then succeeds."""
    shared = {"trace_id": "t1", "trace_name": "shop", "user_id": "u7", "session_id": "s1", "environment": "prod"}

    def observation(id: str, kind: str, name: str, second: int, parent: str | None = "a", **fields: Any) -> Any:
        times = {"start_time": at(second), "end_time": at(second + 1)}
        return {**shared, "id": id, "type": kind, "name": name, "parent_observation_id": parent, **times, **fields}

    return [
        observation("a", "AGENT", "shop", 0, None, input="where is order 7?", end_time=at(9)),
        observation(
            "b", "GENERATION", "ask", 1, provided_model_name="gpt-x", usage_details={"input": 90, "output": 8},
            total_cost=0.25, level="DEFAULT",
        ),
        observation(
            "c", "TOOL", "find_order", 2, input={"id": 7}, level="ERROR", status_message="Read timed out after 30 s"
        ),
        observation("d", "TOOL", "find_order", 4, input={"id": 7}, output={"state": "sent"}, level="DEFAULT"),
    ]  # fmt: skip


def langsmith() -> Rows:
    def run(id: str, kind: str, name: str, second: int, parent: str | None = "a", **fields: Any) -> Any:
        times = {"start_time": at(second).replace(" ", "T"), "end_time": at(second + 1).replace(" ", "T")}
        status = "error" if fields.get("error") else "success"
        shared = {"trace_id": "a", "parent_run_id": parent, "status": status, "session_id": "project-1"}
        return {"id": id, "run_type": kind, "name": name, **shared, **times, **fields}

    error = "TimeoutError('Read timed out after 30 s')Traceback (most recent call last):\n  File 'x.py'\nTimeoutError"
    return [
        run("a", "chain", "shop", 0, None, inputs={"input": "where is order 7?"}, end_time=at(9),
            extra={"metadata": {"thread_id": "s1", "user_id": "u7"}}),
        run("b", "llm", "ChatModel", 1, prompt_tokens=90, completion_tokens=8, total_cost=0.25,
            extra={"metadata": {"ls_model_name": "gpt-x"}}),
        run("c", "tool", "find_order", 2, inputs={"id": 7}, error=error),
        run("d", "tool", "find_order", 4, inputs={"id": 7}, outputs={"state": "sent"}),
    ]  # fmt: skip


def phoenix() -> Rows:
    def span(id: str, kind: str, name: str, second: int, parent: str | None = "a", **fields: Any) -> Any:
        times = {"start_time": f"{at(second)}+00:00", "end_time": f"{at(second + 1)}+00:00"}
        shared = {"context.trace_id": "t1", "context.span_id": id, "parent_id": parent, "status_code": "OK"}
        return {"name": name, "span_kind": kind, **shared, **times, **fields}

    exception = {"exception.type": "TimeoutError", "exception.message": "Read timed out after 30 s"}
    event = {"name": "exception", "timestamp": at(3), "attributes": exception}
    call = {"attributes.tool.name": "find_order", "attributes.input.value": '{"id": 7}'}
    return [
        span("a", "AGENT", "shop", 0, None, **{"attributes.session.id": "s1", "attributes.user.id": "u7"}),
        span("b", "LLM", "ask", 1, **{"attributes.llm.model_name": "gpt-x", "attributes.llm.token_count.prompt": 90,
             "attributes.llm.token_count.completion": 8, "attributes.llm.cost.total": 0.25}),
        span("c", "TOOL", "find_order", 2, events=[event], **{**call, "status_code": "ERROR"}),
        span("d", "TOOL", "find_order", 4, **{**call, "attributes.output.value": '{"state": "sent"}'}),
    ]  # fmt: skip


def to_csv(path: Path, rows: Rows) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {name: json.dumps(cell) if isinstance(cell, dict | list) else cell for name, cell in row.items()}
            )
    return path


def to_document(path: Path, rows: Rows) -> Path:
    path.write_text(json.dumps(rows, indent=1))
    return path


PRODUCTS = {"langfuse": langfuse, "langsmith": langsmith, "phoenix": phoenix}
FORMS: dict[str, Callable[[Path, Rows], Path]] = {
    "lines": lambda path, rows: write(path, *rows),
    "document": to_document,
    "csv": to_csv,
}


def check_shop(history: History) -> None:
    """Check the run that all three products recorded."""
    assert (history.run.agent, history.run.session) == ("shop", "s1")
    assert (history.run.metadata or {})["user"] == "u7"
    model, lookup, later_lookup = group_attempts(history.steps)
    assert (model.first.type, model.first.model, model.first.cost_nanos) == ("model", "gpt-x", 250_000_000)
    assert model.first.token_count == 98
    # No number and no id say that both are attempts of one call: the model asked again.
    assert [(call.name, call.last.outcome) for call in (lookup, later_lookup)] == [
        ("find_order", "failure"), ("find_order", "success"),
    ]  # fmt: skip
    (link,) = history.links
    assert (link.failed_call, link.recovering_call, link.evidence) == (2, 3, ("same_arguments",))
    failure = lookup.first.failure
    assert failure is not None
    assert (str(failure.kind), "Read timed out after 30 s" in failure.message) == ("tool/timeout", True)
    assert lookup.first.arguments == {"id": 7}
    assert later_lookup.last.duration_seconds == 1.0
    assert later_lookup.last.started_at == 1772359204000  # 2026-03-01 10:00:04, in UTC
    assert derive_status(history.run, history.steps, history.links) == "recovered"
