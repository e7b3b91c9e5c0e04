"""Meaning of span attributes: what a span stands for, and its names, arguments, tokens and cost.

Covers the semantic conventions for generative AI and MCP, and the attributes of OpenInference, Langfuse, Traceloop,
LangSmith, MLflow and Vercel's AI SDK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mulligan.classify.recorded_kinds import name_kind
from mulligan.core.attempts import AttemptName, parse_attempt_name
from mulligan.core.failure import Kind
from mulligan.core.kinds import TYPES
from mulligan.core.records import StepType
from mulligan.transcripts.log_lines import parse_json

MAX_ATTEMPTS = 1000
MAX_COST = 1e6
"""Dollars. A larger cost of one span is an error."""
OPERATION_ID = "mulligan.operation.id"
"""The attribute of mulligan's own spans that the attempts of one call share."""
Role = StepType | Literal["agent", "structure"]
"""What a span stands for: a step of this type, an agent that works on the run, or a known part that is no call."""
_ROLES: dict[str, dict[str, Role]] = {
    # Logfire repeats a streamed answer as a log, with all attributes of the call.
    "logfire.span_type": {"log": "structure", "pending_span": "structure"},
    "gen_ai.operation.name": {
        "execute_tool": "tool", "chat": "model", "text_completion": "model", "generate_content": "model",
        "embeddings": "model", "retrieval": "retrieval", "plan": "plan", "invoke_agent": "agent",
        "invoke_workflow": "agent", "create_agent": "agent",
    },
    "mcp.method.name": {"tools/call": "tool", "tools/list": "structure", "initialize": "structure"},
    "openinference.span.kind": {
        "TOOL": "tool", "LLM": "model", "EMBEDDING": "model", "RETRIEVER": "retrieval", "AGENT": "agent",
        "CHAIN": "structure", "RERANKER": "structure", "GUARDRAIL": "structure", "EVALUATOR": "structure",
        "PROMPT": "structure",
    },
    "langfuse.observation.type": {
        "tool": "tool", "generation": "model", "embedding": "model", "retriever": "retrieval", "agent": "agent",
        "chain": "structure", "evaluator": "structure", "guardrail": "structure", "event": "structure",
    },
    "traceloop.span.kind": {"tool": "tool", "agent": "agent", "workflow": "agent", "task": "structure"},
    "langsmith.span.kind": {
        "tool": "tool", "llm": "model", "embedding": "model", "retriever": "retrieval", "chain": "structure",
        "prompt": "structure", "parser": "structure",
    },
    "mlflow.spanType": {
        "TOOL": "tool", "LLM": "model", "CHAT_MODEL": "model", "EMBEDDING": "model", "RETRIEVER": "retrieval",
        "AGENT": "agent", "CHAIN": "structure", "PARSER": "structure", "RERANKER": "structure", "MEMORY": "structure",
        "UNKNOWN": "structure",
    },
    "ai.operationId": {
        "ai.toolCall": "tool", "ai.generateText.doGenerate": "model", "ai.streamText.doStream": "model",
        "ai.generateObject.doGenerate": "model", "ai.streamObject.doStream": "model", "ai.embed.doEmbed": "model",
        "ai.embedMany.doEmbed": "model", "ai.generateText": "agent", "ai.streamText": "agent",
        "ai.generateObject": "agent", "ai.streamObject": "agent", "ai.embed": "structure", "ai.embedMany": "structure",
    },
}  # fmt: skip
"""Attributes that say what a span stands for, by convention: OpenTelemetry, MCP, OpenInference, Langfuse, Traceloop,
LangSmith, MLflow and Vercel's AI SDK. Names of spans are free text and decide nothing."""


ATTRIBUTES = {
    "trace_name": ("langfuse.trace.name",),
    "chain": ("langsmith.trace.name",),
    "agent": ("gen_ai.agent.name", "agent.name", "gen_ai.workflow.name", "ai.telemetry.functionId"),
    "user": (
        "langfuse.user.id", "user.id", "enduser.id", "ai.telemetry.metadata.userId",
        "traceloop.association.properties.user_id", "langsmith.metadata.user_id", "mlflow.trace.user",
    ),
    "tags": ("langfuse.trace.tags", "tag.tags", "logfire.tags", "langsmith.span.tags", "ai.telemetry.metadata.tags"),
    "prompt": ("langfuse.observation.prompt.name", "gen_ai.prompt.name", "traceloop.prompt.key"),
    "prompt_version": (
        "langfuse.observation.prompt.version", "traceloop.prompt.version", "llm.prompt_template.version",
    ),
    "resends": ("http.request.resend_count",),
    "evaluation": ("gen_ai.evaluation.name",),
    "score": ("gen_ai.evaluation.score.value",),
    "score_label": ("gen_ai.evaluation.score.label",),
    "explanation": ("gen_ai.evaluation.explanation",),
    "agent_version": ("gen_ai.agent.version",),
    "entity": ("traceloop.entity.name",),
    "session": (
        "gen_ai.conversation.id", "session.id", "langfuse.session.id", "ai.telemetry.metadata.sessionId",
        "traceloop.association.properties.session_id", "traceloop.association.properties.conversation_id",
        "traceloop.association.properties.thread_id", "traceloop.association.properties.chat_id",
        "langsmith.metadata.session_id", "langsmith.metadata.thread_id", "langsmith.metadata.conversation_id",
        "mlflow.trace.session",
    ),
    "mcp_session": ("mcp.session.id",),
    "context": (
        "input.value", "ai.prompt", "traceloop.entity.input", "langfuse.trace.input", "langfuse.observation.input",
    ),
    "model": ("gen_ai.request.model", "ai.model.id", "mlflow.llm.model"),
    "model_parameters": ("llm.invocation_parameters",),
    "answering_model": ("gen_ai.response.model", "langfuse.observation.model.name", "llm.model_name"),
    "tool": ("gen_ai.tool.name", "tool.name", "mcp.tool.name", "ai.toolCall.name"),
    "server": ("mcp.server.name", "server.address"),
    "call_id": (OPERATION_ID, "gen_ai.tool.call.id", "tool.id", "ai.toolCall.id"),
    "attempt": ("mulligan.attempt",),
    "strategy": ("mulligan.repair.strategy",),
    "arguments": (
        "gen_ai.tool.call.arguments", "ai.toolCall.args", "traceloop.entity.input", "langfuse.observation.input",
        "input.value", "mlflow.spanInputs", "gen_ai.prompt",
    ),
    "result": (
        "gen_ai.tool.call.result", "ai.toolCall.result", "traceloop.entity.output", "langfuse.observation.output",
        "output.value", "mlflow.spanOutputs", "gen_ai.completion",
    ),
    "error": ("exception.message", "langfuse.observation.status_message", "gen_ai.tool.call.result", "output.value"),
    "error_class": ("error.type", "exception.type"),
    "failure_type": ("mulligan.failure.type",),
    "failure_code": ("mulligan.failure.code",),
    "error_trace": ("exception.stacktrace",),
    "level": ("langfuse.observation.level",),
    "status": ("http.response.status_code", "error.type"),
    "step_name": ("mulligan.step.name",),
    "cost": ("mulligan.cost_usd", "operation.cost", "llm.cost.total"),
    "input": (
        "gen_ai.usage.input_tokens", "llm.token_count.prompt", "ai.usage.inputTokens", "gen_ai.usage.prompt_tokens",
        "ai.usage.tokens",
    ),
    "output": (
        "gen_ai.usage.output_tokens", "llm.token_count.completion", "ai.usage.outputTokens",
        "gen_ai.usage.completion_tokens",
    ),
    "cached_input": (
        "gen_ai.usage.cache_read.input_tokens", "llm.token_count.prompt_details.cache_read",
        "ai.usage.cachedInputTokens",
    ),
    "cache_write": ("gen_ai.usage.cache_creation.input_tokens", "llm.token_count.prompt_details.cache_write"),
    "reasoning": (
        "gen_ai.usage.reasoning.output_tokens", "llm.token_count.completion_details.reasoning",
        "ai.usage.reasoningTokens",
    ),
    "usage": ("langfuse.observation.usage_details", "mlflow.chat.tokenUsage"),
    "costs": ("langfuse.observation.cost_details", "mlflow.llm.cost"),
    "service": ("service.name",),
    "service_version": ("service.version",),
    "environment": ("deployment.environment.name", "deployment.environment"),
}  # fmt: skip
"""Attributes of spans, exceptions and resources by their meaning, the preferred name first."""
_USAGE_NAMES = {
    "input": ("input", "prompt_tokens", "input_tokens"),
    "output": ("output", "completion_tokens", "output_tokens"),
    "cached_input": ("input_cached_tokens", "cache_read_input_tokens"),
    "cache_write": ("cache_creation_input_tokens",),
    "reasoning": ("output_reasoning_tokens",),
}
"""Names of token counts in the usage that Langfuse and MLflow report as JSON."""
READ_ATTRIBUTES = frozenset((*_ROLES, *(name for names in ATTRIBUTES.values() for name in names)))
"""The attributes that are read. Other readers may skip all others."""
_MLFLOW_TYPE = "mlflow.spanType"
"""On each span of MLflow, which writes the text of all attributes as JSON."""
UNNAMED_SERVICE_PREFIX = "unknown_service"
"""Start of the service name that SDKs send if none is set."""


def find_role(facts: dict[str, Any]) -> Role | None:
    """Return what a span with these attributes stands for; None if they do not say.

    Without a kind, a span that names a tool is a call of it, and one that names a model is a call of that.
    """
    for attribute, roles in _ROLES.items():
        value = facts.get(attribute)
        if value is not None and isinstance(value, str) and (role := roles.get(value.strip('"'))) is not None:
            return role  # MLflow's values are JSON
    if find_text(facts, "tool"):
        return "tool"
    return "model" if find_text(facts, "model") or find_text(facts, "answering_model") else None


def has_error(facts: dict[str, Any], events: Sequence[tuple[str, dict[str, Any]]]) -> bool:
    """Return whether a span reports a failure without its status.

    Langfuse does so for handled errors. LangSmith sets the status OK first, which no later one may replace.
    """
    if find_text(facts, "level") == "ERROR":
        return True
    return "langsmith.span.kind" in facts and any(name == "exception" for name, _ in events)


def find_model(facts: dict[str, Any]) -> str:
    """Return the requested model, which a failed call has too; else the one that answered."""
    if model := find_text(facts, "model"):
        return model
    parameters = parse_json(find_text(facts, "model_parameters"))
    model = parameters.get("model") if isinstance(parameters, dict) else None
    return model if isinstance(model, str) and model else find_text(facts, "answering_model") or ""


def find_session(facts: dict[str, Any]) -> str | None:
    session = find_text(facts, "session")
    # Start of a value that Logfire replaced before sending. All values of an attribute then look the same.
    return None if session is None or session.startswith("[Scrubbed due to ") else session


def find_agent(facts: dict[str, Any], span_name: str) -> str | None:
    """Return the agent that a span names. Some SDKs name the span of an agent after it, and send no attribute."""
    if agent := find_text(facts, "agent"):
        return agent
    if facts.get("traceloop.span.kind") in ("agent", "workflow"):
        return find_text(facts, "entity")
    if facts.get("langsmith.span.kind") == "chain":
        return find_text(facts, "chain")
    is_named_after_agent = facts.get("openinference.span.kind") == "AGENT" or (
        facts.get("langfuse.observation.type") == "agent" or facts.get(_MLFLOW_TYPE) == '"AGENT"'
    )
    return span_name or None if is_named_after_agent else None


def find_task(facts: dict[str, Any]) -> str:
    """Return the text with which a run was started. Decorators send the arguments of a function instead."""
    text = find_text(facts, "context") or ""
    value = parse_json(text) if text[:1] == "{" else None
    if not isinstance(value, dict) or not value.keys() <= {"args", "kwargs", "prompt"}:
        return text
    positional, keywords = value.get("args"), value.get("kwargs")
    candidates = [
        value.get("prompt"),
        *(positional if isinstance(positional, list) else ()),
        *(keywords.values() if isinstance(keywords, dict) else ()),
    ]
    return next((candidate for candidate in candidates if isinstance(candidate, str)), "")


def unwrap_call(arguments: Any) -> Any:
    """Return the keyword arguments of `{"args": [], "kwargs": {...}}`, the form of Langfuse and Traceloop."""
    if isinstance(arguments, dict) and arguments.keys() == {"args", "kwargs"} and not arguments["args"]:
        return arguments["kwargs"]
    return arguments


def find_attempt(facts: dict[str, Any], name: str) -> AttemptName | None:
    """Return the name of a call and the number of its attempt, if an attribute or the end of the name has one."""
    attempt_name = parse_attempt_name(name)
    number = next((facts[key] for key in ATTRIBUTES["attempt"] if type(facts.get(key)) is int), None)
    resends = next((facts[key] for key in ATTRIBUTES["resends"] if type(facts.get(key)) is int), None)
    if number is None and resends is not None:
        number = resends + 1
    if number is None or not 0 <= number <= MAX_ATTEMPTS:
        return attempt_name
    return AttemptName(name if attempt_name is None else attempt_name.name, number)


def find_tags(facts: dict[str, Any]) -> list[str]:
    """Return the tags of a run: a list, or a text with one tag or a JSON list."""
    value = next((facts[name] for name in ATTRIBUTES["tags"] if facts.get(name)), None)
    if isinstance(value, str):
        parsed = parse_json(value) if value[:1] == "[" else None
        value = parsed if isinstance(parsed, list) else value.split(",")
    return [tag.strip() for tag in value if isinstance(tag, str)][:50] if isinstance(value, list) else []


def read_prompt(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the name and the version of the stored prompt that a model was called with, as metadata."""
    name = find_text(facts, "prompt")
    version = next((facts[key] for key in ATTRIBUTES["prompt_version"] if key in facts), None)
    if name is None:
        return {}
    return {"prompt": name} | ({"prompt_version": version} if isinstance(version, str | int) else {})


def read_evaluations(events: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the results of evaluations among the events of a span, as metadata."""
    evaluations: list[dict[str, Any]] = []
    for name, facts in events[:20]:
        if name == "gen_ai.evaluation.result":
            score = next((facts[key] for key in ATTRIBUTES["score"] if key in facts), None)
            values = {
                "name": find_text(facts, "evaluation"), "score": score if isinstance(score, int | float) else None,
                "label": find_text(facts, "score_label"), "explanation": find_text(facts, "explanation"),
            }  # fmt: skip
            evaluations.append({name: value for name, value in values.items() if value is not None})
    return evaluations


def find_named_kind(facts: dict[str, Any], kinds: Mapping[str, Kind]) -> Kind | None:
    """Return the kind that a sender names: in attributes of its own, or as `error.type` as mulligan's own spans do."""
    type, code = find_text(facts, "failure_type") or "", find_text(facts, "failure_code") or ""
    if not code:
        type, _, code = (find_text(facts, "error_class") or "").partition("/")
        if type not in TYPES:
            return None
    return name_kind(type, code, kinds)[0] if code else None


def find_status(facts: dict[str, Any]) -> int | None:
    status = next((facts[name] for name in ATTRIBUTES["status"] if name in facts), None)
    status = int(status) if isinstance(status, str) and status.isdigit() and len(status) == 3 else status
    return status if isinstance(status, int) and 400 <= status < 600 else None


def read_tokens(facts: dict[str, Any]) -> dict[str, int] | None:
    counts = {}
    usage = parse_json(find_text(facts, "usage"))
    for name in ("input", "output", "cached_input", "cache_write", "reasoning"):
        candidates = [facts.get(attribute) for attribute in ATTRIBUTES[name]]
        if isinstance(usage, dict):
            candidates += [usage.get(key) for key in _USAGE_NAMES.get(name, ())]
        count = next((candidate for candidate in candidates if type(candidate) is int), 0)
        if 0 < count < 2**40:
            counts[name] = count
    return counts or None


def read_cost_nanos(facts: dict[str, Any]) -> int | None:
    """Return the cost that the sender computed, in billionths of a dollar."""
    dollars = next((facts[name] for name in ATTRIBUTES["cost"] if name in facts), None)
    if dollars is None and isinstance(costs := parse_json(find_text(facts, "costs")), dict):
        # Names of the whole cost in the costs that they report as JSON
        dollars = next((costs[name] for name in ("total", "total_cost") if name in costs), None)
    return round(dollars * 1e9) if isinstance(dollars, int | float) and 0 <= dollars <= MAX_COST else None


def find_text(facts: dict[str, Any], meaning: str) -> str | None:
    for name in ATTRIBUTES[meaning]:
        if name in facts and (value := facts[name]) and isinstance(value, str):
            return value.strip('"') if value[0] == '"' and _MLFLOW_TYPE in facts else value
    return None
