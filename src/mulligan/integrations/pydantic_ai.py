"""Recovery for agents of PydanticAI: `Agent(model, tools=tools, capabilities=[MulliganCapability()])`."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_ai import messages as parts
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.tools import DeferredToolRequests, RunContext
from pydantic_ai.tools import ToolDefinition as PydanticTool

from mulligan.api import Mulligan
from mulligan.core.records import new_id
from mulligan.integrations.framework_agent import AgentRun, FrameworkAgent
from mulligan.integrations.pydantic_ai_models import RecoveredModel
from mulligan.integrations.pydantic_ai_tools import (
    add_notes,
    add_unknown_tools,
    collect_tools,
    find_original_error,
    find_pending_calls,
    is_converted,
)

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
        twin._validations, twin._redirected = {}, set()
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
