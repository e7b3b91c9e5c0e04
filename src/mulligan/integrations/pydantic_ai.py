"""Recovery for agents of PydanticAI: `Agent(model, tools=tools, capabilities=[MulliganCapability()])`."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from pydantic import ValidationError
from pydantic_ai import messages as parts
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import ModelRetry, ToolFailed, ToolFailedError, ToolRetryError, UnexpectedModelBehavior
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestContext, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.tools import DeferredToolRequests, RunContext
from pydantic_ai.tools import ToolDefinition as PydanticTool
from pydantic_ai.toolsets import ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from mulligan.api import Mulligan
from mulligan.capture.tool_outcome import ToolOutcome
from mulligan.core.records import new_id
from mulligan.integrations.framework_agent import AgentRun, FrameworkAgent, mark_retried
from mulligan.integrations.framework_tools import ToolDefinition

Handler = Callable[[Any], Awaitable[Any]]


class MulliganCapability(AbstractCapability[Any]):
    """Records the runs of an agent and recovers its tool and model calls.

    The options are those of `FrameworkAgent`. Of several in one agent, the last one applies.
    """

    id: str | None = "mulligan"

    def __init__(self, mulligan: Mulligan | None = None, **options: Any) -> None:
        self._agent = FrameworkAgent(mulligan, **options)
        self._run: AgentRun | None = None
        self._validations: dict[str, tuple[Any, Any, Handler]] = {}
        """Of each call by id, until it is executed: its arguments as requested and as validated, and the validator."""
        self._model: Model | None = None
        self._model_attempt = 1
        """How often the same request was sent to this model, if another capability retries it."""

    @classmethod
    def combine(cls, capabilities: Sequence[AbstractCapability[Any]]) -> AbstractCapability[Any]:
        return capabilities[-1]

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="outermost")

    # Runs

    async def for_run(self, ctx: RunContext[Any]) -> MulliganCapability:
        twin = copy.copy(self)
        twin._validations = {}
        return twin

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Callable[[], Awaitable[Any]]) -> Any:
        if not self._agent.is_enabled or ctx.in_durable_context:  # code of durable workflows must be deterministic
            return await handler()
        self._run = run = await self._agent.astart_run(
            find_pending_calls(ctx, ctx.messages) or ctx.run_id or new_id("pydantic_ai"),
            agent=getattr(ctx.agent, "name", None),
            session=ctx.conversation_id,
            context=_user_text(ctx.prompt),
        )
        try:
            result = await handler()
        except BaseException as error:
            run.end(error)
            raise
        if isinstance(result.output, DeferredToolRequests):
            run.pause(find_pending_calls(ctx, result.all_messages()))
        else:
            await run.aend()
        return result

    def get_instructions(self) -> Callable[[RunContext[Any]], Awaitable[str | None]]:
        return self._render_instructions

    async def _render_instructions(self, ctx: RunContext[Any]) -> str | None:
        if self._run is None:
            return None
        names = list(collect_tools(ctx))
        self._agent.tools.warn_of_misspelled(names)
        return await self._run.ainstructions(names, _summary_ids(ctx.messages)) or None

    # Tools

    async def wrap_tool_validate(
        self, ctx: RunContext[Any], *, call: parts.ToolCallPart, tool_def: PydanticTool, args: Any, handler: Handler
    ) -> Any:
        waits_for_person = tool_def.defer and not ctx.tool_call_approved
        if self._run is None or waits_for_person:
            return await handler(args)
        validated = None
        with contextlib.suppress(ValidationError, ToolFailed):  # the core rejects or repairs the call
            validated = await handler(args)
        self._validations[call.tool_call_id] = args, validated, handler
        return {} if validated is None else validated

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: parts.ToolCallPart, tool_def: PydanticTool, args: Any, handler: Handler
    ) -> Any:
        if self._run is None:
            return await handler(args)
        requested, validated, validate = self._validations.pop(call.tool_call_id, (args, args, _accept))
        arguments_before = requested if isinstance(requested, dict) else call.args_as_dict()
        results: list[tuple[Any, Any]] = []
        errors: list[tuple[BaseException, BaseException]] = []

        async def attempt(name: str, arguments: dict[str, Any]) -> Any:
            try:
                if validated is not None and arguments == arguments_before:
                    result = await handler(args)
                else:
                    result = await handler(await validate(arguments))
            except Exception as error:  # noqa: BLE001 - raised below, without the errors of PydanticAI as its context
                framework_error = getattr(error, "deferral", None) or error  # of a validator that asks a person
                original_error = find_original_error(framework_error, ctx)
                errors[:] = [(original_error, framework_error)]
            else:
                value = result.return_value if isinstance(result, parts.ToolReturn) else result
                results[:] = [(result, value)]
                return value
            raise original_error

        tools, is_validated = collect_tools(ctx), is_converted(arguments_before, validated)
        arguments = arguments_before if validated is not None else requested
        try:
            outcome = await self._run.acall(tools, call.tool_name, arguments or {}, attempt, is_validated=is_validated)
        except Exception as error:
            for original_error, framework_error in errors:
                if error is original_error is not framework_error:
                    raise framework_error from framework_error.__cause__
            raise
        if not outcome.ok:
            raise ToolFailed(outcome.to_message())
        # The value may also come from `verify`.
        result = next((result for result, value in results if value is outcome.value), outcome.value)
        return add_notes(result, outcome) if outcome.notes else result

    # Models

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        is_repeated = request_context.attempt > 1 and request_context.model is self._model
        self._model, self._model_attempt = request_context.model, self._model_attempt + 1 if is_repeated else 1
        return request_context

    def get_wrapper_model(self, model: Model) -> Model | None:
        return None if self._run is None else RecoveredModel(model, self._run, self._model_attempt)

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: parts.ModelResponse
    ) -> parts.ModelResponse:
        if self._run is not None and not self._run.only_observes({}, ""):
            add_unknown_tools(ctx, response)
        return response


def _summary_ids(messages: list[Any]) -> list[str]:
    compactions = [part for message in messages for part in message.parts if isinstance(part, parts.CompactionPart)]
    return [part.id or part.content or "" for part in compactions]


def _user_text(prompt: Any) -> str | None:
    texts = [prompt] if isinstance(prompt, str) else [part for part in prompt or () if isinstance(part, str)]
    return "\n".join(texts) or None


async def _accept(arguments: Any) -> Any:
    return arguments


ANY_ARGUMENTS = SchemaValidator(core_schema.any_schema())
"""Validates the arguments of unknown tools, and marks these tools."""


def collect_tools(ctx: RunContext[Any]) -> dict[str, ToolDefinition]:
    """Return the tools that the model may call now."""
    tools: dict[str, ToolsetTool[Any]] = (ctx.tool_manager.tools if ctx.tool_manager is not None else None) or {}
    definitions: dict[str, ToolDefinition] = {}
    for name, tool in tools.items():
        definition = tool.tool_def
        is_callable = tool.args_validator is not ANY_ARGUMENTS and ctx.is_tool_available(definition)
        if is_callable and definition.kind != "output":
            is_approved = definition.defer or (ctx.tool_call_approved and ctx.tool_name == name)
            mode: Any = "suggest" if is_approved else None  # a person has seen these arguments
            function, object_parameter = _find_function(tool)
            definitions[name] = ToolDefinition(
                name, definition.parameters_json_schema, function, mode, object_parameter=object_parameter
            )
    return definitions


def add_unknown_tools(ctx: RunContext[Any], response: parts.ModelResponse) -> None:
    """Add the unknown tools that the model requests, so that their calls reach `wrap_tool_execute`."""
    manager = ctx.tool_manager
    if manager is None or manager.tools is None:
        return
    for call in response.tool_calls:
        if call.tool_name not in manager.tools:
            definition = PydanticTool(name=call.tool_name)
            manager.tools[call.tool_name] = ToolsetTool(
                toolset=manager.toolset, tool_def=definition, max_retries=0, args_validator=ANY_ARGUMENTS
            )


def _find_function(tool: Any) -> tuple[Callable[..., Any] | None, str | None]:
    """Return the user's function, also of a tool that a toolset has renamed or wrapped.

    With it, the parameter in whose place the schema lists the members of an object, if there is one.
    """
    while (source := getattr(tool, "source_tool", None)) is not None:
        tool = source
    function_schema = getattr(getattr(tool, "call_func", None), "__self__", None)
    return getattr(function_schema, "function", None), getattr(function_schema, "single_arg_name", None)


def is_converted(requested: Any, validated: Any) -> bool:
    """Return whether PydanticAI accepts arguments that do not match the schema as they are, such as "7" for 7.

    Otherwise the schema decides: for tools of MCP servers, PydanticAI accepts everything.
    """
    try:
        return validated is not None and bool(requested != validated)
    except Exception:  # noqa: BLE001 - the arguments are objects of any class
        return True


def find_original_error(error: Exception, ctx: RunContext[Any]) -> BaseException:
    """Return what the tool has raised, not what PydanticAI makes of it."""
    if isinstance(error, ToolFailedError):
        return error.__cause__ or error
    retry = error.__cause__ if isinstance(error, ToolRetryError | UnexpectedModelBehavior) else error
    if isinstance(retry, ModelRetry):
        modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(retry.__traceback__)]
        if modules and modules[-1].startswith("pydantic_ai."):  # for a timeout, or the error of an MCP server
            return retry.__cause__ or ToolFailed(retry.message)
        # The author of the tool has asked the model to retry, perhaps too often: then PydanticAI ends the run.
        is_last = isinstance(error, UnexpectedModelBehavior) and ctx.retry >= ctx.max_retries
        return retry if is_last else error
    return error


def add_notes(result: Any, outcome: ToolOutcome) -> parts.ToolReturn[Any]:
    answer = result if isinstance(result, parts.ToolReturn) else parts.ToolReturn(result)
    value, content = answer.return_value, answer.content or ()
    if any(map(parts.is_multi_modal_content, value if isinstance(value, list | tuple) else [value])):
        content = [content] if isinstance(content, str) else list(content)
        return dataclasses.replace(answer, content=[*content, outcome.to_note()])
    return dataclasses.replace(answer, return_value=outcome.to_message())


def find_pending_calls(ctx: RunContext[Any], messages: list[Any]) -> str:
    """Return the ids of the tool calls that have no result yet, if any. They identify a run that waits for results."""
    result_ids: set[str | None] = set()
    for message in reversed(messages):
        if isinstance(message, parts.ModelResponse):
            ids = [call.tool_call_id for call in message.tool_calls if call.tool_call_id not in result_ids]
            return " ".join([ctx.conversation_id or "", *ids]) if ids else ""
        result_ids.update(getattr(part, "tool_call_id", None) for part in message.parts)
    return ""


class RecoveredModel(WrapperModel):
    """A model whose requests are recovered, unless another capability already retries them."""

    def __init__(self, wrapped: Model, run: AgentRun, number: int) -> None:
        super().__init__(wrapped)
        self._run, self._number = run, number

    async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> parts.ModelResponse:
        async def attempt(messages: Any) -> parts.ModelResponse:
            with self._marked_errors():
                return await self.wrapped.request(messages, model_settings, model_request_parameters)

        return _as_response(await self._run.aask(messages, attempt, model=self.model_name))

    @contextlib.asynccontextmanager
    async def request_stream(
        self, messages: Any, model_settings: Any, model_request_parameters: Any, run_context: Any = None
    ) -> AsyncGenerator[StreamedResponse]:
        async with contextlib.AsyncExitStack() as stack:
            streams: list[StreamedResponse] = []

            async def attempt(messages: Any) -> AsyncIterator[Any]:
                with self._marked_errors():
                    stream = self.wrapped.request_stream(
                        messages, model_settings, model_request_parameters, run_context
                    )
                    streams[:] = [await stack.enter_async_context(stream)]
                return self._read_stream(streams[0])

            answer = await self._run.aask(messages, attempt, model=self.model_name, stream=True)
            if hasattr(answer, "aclose"):
                stack.push_async_callback(answer.aclose)
                yield RecordedStream(model_request_parameters, streams[0], answer)
            else:  # of a fallback
                response = _as_response(answer)
                yield CompletedStreamedResponse(
                    response, model_request_parameters=model_request_parameters, replay_events=True
                )

    async def _read_stream(self, stream: StreamedResponse) -> AsyncIterator[Any]:
        """Yield the events, and at the end the stream itself: it has the usage."""
        with self._marked_errors():
            async for event in stream:
                yield event
        yield stream

    @contextlib.contextmanager
    def _marked_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if self._number > 1:
                mark_retried(error, "another capability", self._number)
            raise


@dataclasses.dataclass
class RecordedStream(StreamedResponse):
    """The stream of a model, whose events are recorded while they are read."""

    source: StreamedResponse
    recorded_events: AsyncIterator[Any]

    get, cancel, close_stream, get_stream_cancel_errors, cancelled, usage = (
        property(attrgetter(f"source.{name}"))
        for name in ("get", "cancel", "close_stream", "get_stream_cancel_errors", "cancelled", "usage")
    )
    model_name, provider_name, provider_url, timestamp = (
        property(attrgetter(f"source.{name}")) for name in ("model_name", "provider_name", "provider_url", "timestamp")
    )

    def __aiter__(self) -> AsyncIterator[Any]:
        # The source has already added what the base class would add. PydanticAI sets both private fields.
        iterator, deadline = getattr(self, "_event_iterator", None), getattr(self, "_request_deadline", None)
        if iterator is None:
            events = self._get_event_iterator()
            self._event_iterator = iterator = events if deadline is None else deadline.iterate(events)
        return iterator

    async def _get_event_iterator(self) -> AsyncIterator[Any]:
        async for event in self.recorded_events:
            if event is not self.source:
                yield event


def _as_response(answer: Any) -> parts.ModelResponse:
    return answer if isinstance(answer, parts.ModelResponse) else parts.ModelResponse([parts.TextPart(str(answer))])
