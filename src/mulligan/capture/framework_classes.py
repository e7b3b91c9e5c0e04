"""Classes of other libraries, by qualified name: exceptions that are control flow, and types of injected parameters.

Names are compared along the bases of a class, so a subclass counts too, and no library is imported for it.
`docs/frameworks.md` names the versions in which each class was found.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Collection
from typing import Any

CANCELLED = "asyncio.exceptions:CancelledError"
CONTROL_FLOW = frozenset(
    f"""
    builtins:StopIteration builtins:StopAsyncIteration builtins:GeneratorExit {CANCELLED}
    _pytest.outcomes:OutcomeException _pytest.outcomes:Exit unittest.case:SkipTest bdb:BdbQuit
    langgraph.errors:GraphBubbleUp
    pydantic_ai.exceptions:ModelRetry pydantic_ai.exceptions:ToolRetryError pydantic_ai.exceptions:CallDeferred
    pydantic_ai.exceptions:ApprovalRequired pydantic_ai.exceptions:SkipModelRequest
    pydantic_ai.exceptions:RetryModelRequest pydantic_ai.exceptions:SkipToolValidation
    pydantic_ai.exceptions:SkipToolExecution pydantic_ai.exceptions:RunCancelled
    google.adk.workflow._errors:NodeInterruptedError strands.interrupt:InterruptException
    agent_framework._middleware:MiddlewareTermination agent_framework._middleware:MiddlewareFailure
    agent_framework.exceptions:UserInputRequiredException
    agent_framework._tools:_FunctionArgumentsChangedAfterApproval
    agno.exceptions:AgentRunException agno.exceptions:RunCancelledException
    crewai.flow.async_feedback.types:HumanFeedbackPending
    smolagents.local_python_executor:FinalAnswerException
    workflows.runtime.types.results:WaitingForEvent workflows.errors:WorkflowDone
    workflows.errors:WorkflowCancelledByUser
    celery.exceptions:TaskPredicate mulligan.integrations.openai_agents_tools:_AgentPause
    """.split()
)
"""Exceptions with which a library steers the program: interrupts, approvals, requests to the model, skipped tests."""
INJECTED_TYPES = frozenset(
    """
    langchain_core.tools.base:InjectedToolArg langchain_core.runnables.config:RunnableConfig
    langchain_core.callbacks.manager:BaseRunManager langchain_core.callbacks.base:BaseCallbackManager
    langchain_core.callbacks.base:BaseCallbackHandler
    langgraph.prebuilt.tool_node:ToolRuntime langgraph.runtime:Runtime langgraph.store.base:BaseStore
    pydantic_ai._run_context:RunContext pydantic_graph.basenode:GraphRunContext pydantic_graph.step:StepContext
    agents.run_context:RunContextWrapper
    google.adk.agents.readonly_context:ReadonlyContext google.adk.agents.invocation_context:InvocationContext
    google.adk.live.live_request_queue:LiveRequestQueue strands.types.tools:ToolContext
    agent_framework._middleware:FunctionInvocationContext agent_framework._sessions:AgentSession
    agno.agent.agent:Agent agno.team.team:Team agno.run.base:RunContext
    workflows.context.context:Context llama_index.core.callbacks.base:CallbackManager
    mcp.server.mcpserver.context:Context mcp.server.fastmcp.server:Context mcp.client.session:ClientSession
    fastmcp.server.context:Context uncalled_for.base:Dependency
    fastapi.params:Depends starlette.requests:HTTPConnection starlette.responses:Response
    starlette.background:BackgroundTask
    sqlalchemy.orm.session:Session sqlalchemy.orm.scoping:scoped_session sqlalchemy.ext.asyncio.session:AsyncSession
    sqlalchemy.ext.asyncio.scoping:async_scoped_session sqlalchemy.engine.base:Engine sqlalchemy.engine.base:Connection
    sqlalchemy.ext.asyncio.engine:AsyncEngine sqlalchemy.ext.asyncio.engine:AsyncConnection
    sqlite3:Connection psycopg._connection_base:BaseConnection asyncpg.connection:Connection asyncpg.pool:Pool
    redis.client:Redis redis.asyncio.client:Redis
    httpx._client:BaseClient httpx2._client:BaseClient requests.sessions:Session aiohttp.client:ClientSession
    botocore.client:BaseClient boto3.resources.base:ServiceResource boto3.session:Session
    openai._base_client:BaseClient anthropic._base_client:BaseClient
    logging:Logger logging:LoggerAdapter structlog._base:BoundLoggerBase
    opentelemetry.trace:Tracer opentelemetry.trace.span:Span
    """.split()
)
"""Types of parameters that a framework or the program supplies, and marks in `Annotated` or as a default."""
FRAMEWORK_PAGES = {
    "langchain": "langchain",
    "langchain_core": "langchain",
    "langchain_mcp_adapters": "langchain",
    "langgraph": "langchain",
    "pydantic_ai": "pydantic_ai",
    "agents": "openai_agents",
    "google.adk": "google_adk",
    "agent_framework": "agent_framework",
    "strands": "strands",
    "agno": "agno",
    "crewai": "crewai",
    "smolagents": "smolagents",
    "llama_index": "llama_index",
    "dspy": "dspy",
    "claude_agent_sdk": "claude_agent_sdk",
}
"""The packages of agent frameworks, and their pages in docs/frameworks."""


def class_name(cls: type) -> str:
    """Return `module:qualname` of a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def has_class_name(cls: Any, names: Collection[str]) -> bool:
    return isinstance(cls, type) and any(class_name(base) in names for base in cls.__mro__)


def find_framework_page(cls: type) -> str:
    """Return the page about the framework that defines a class or one of its bases, or an empty string."""
    for base in cls.__mro__:
        package, _, module = base.__module__.partition(".")
        name = FRAMEWORK_PAGES.get(package) or FRAMEWORK_PAGES.get(f"{package}.{module.partition('.')[0]}")
        if name is not None:
            return f"docs/frameworks/{name}.md"
    return ""


def is_framework_tool(cls: type) -> bool:
    """Return whether a class is a tool of an agent framework: `BaseTool`, `FunctionTool` and others."""
    return any(base.__name__.endswith("Tool") and find_framework_page(base) for base in cls.__mro__)


def is_control_flow(error: BaseException, names: Collection[str]) -> bool:
    """Return whether an exception steers the program and reports no failure. Never raises.

    So does each exception that is no `Exception`, such as Ctrl-C, and a group with control flow only.
    """
    try:
        pending, count = [error], 0
        while pending:
            member = pending.pop()
            count += 1
            if isinstance(member, ExceptionGroup):
                pending.extend(member.exceptions)
            elif isinstance(member, Exception) and not _has_control_flow_name(type(member), names):
                return False
            # Members of an exception group that are examined; a larger group is a failure.
            if count > 1000:
                return False
    except Exception:  # noqa: BLE001 - a class may define its attributes as it likes
        return False
    return True


def _has_control_flow_name(cls: type, names: Collection[str]) -> bool:
    # A timeout is a failure, even if its base says that the run was cancelled: pydantic_ai's RunTimedOut.
    return has_class_name(cls, names) and not issubclass(cls, TimeoutError)


def is_interruption(error: BaseException | None, names: Collection[str]) -> bool:
    """Return whether an exception cuts a run short: Ctrl-C, a cancellation, an exit with an error.

    A normal exit does not, and neither does an exception of a library that pauses or ends the run on purpose.
    """
    if error is None:
        return False
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    if has_class_name(type(error), (CANCELLED,)):
        return True
    return not isinstance(error, Exception) and not has_class_name(type(error), names)


def cuts_call_off(error: BaseException, names: Collection[str]) -> bool:
    """Return whether an exception cancels a call of a program that may go on: that of a timeout around it, or its task.

    Ctrl-C and an exit do not: a person, or the program, ends everything.
    """
    return is_interruption(error, names) and not isinstance(error, KeyboardInterrupt | SystemExit)


def is_injected(annotation: Any, default: Any, names: Collection[str]) -> bool:
    """Return whether a parameter is supplied by a framework or the program, judged by its annotation and default."""
    return has_class_name(type(default), names) or _is_injected_type(annotation, names, 0)


def _is_injected_type(annotation: Any, names: Collection[str], depth: int) -> bool:
    if depth > 8:
        return False
    origin, type_args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        marks = (mark if isinstance(mark, type) else type(mark) for mark in type_args[1:])
        return any(has_class_name(mark, names) for mark in marks) or _is_injected_type(type_args[0], names, depth + 1)
    if origin is typing.Union or origin is types.UnionType:
        members = [member for member in type_args if member is not type(None)]
        return bool(members) and all(_is_injected_type(member, names, depth + 1) for member in members)
    if isinstance(annotation, typing.TypeVar):
        return annotation.__bound__ is not None and _is_injected_type(annotation.__bound__, names, depth + 1)
    return has_class_name(annotation if origin is None else origin, names)
