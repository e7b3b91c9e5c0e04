"""Models of PydanticAI whose requests are recovered. `pydantic_ai.py` puts them in place of the agent's."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from operator import attrgetter
from typing import Any

from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models import CompletedStreamedResponse, Model, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel

from mulligan.integrations.framework_agent import AgentRun, mark_retried


class RecoveredModel(WrapperModel):
    """A model whose requests are recovered, unless another capability already retries them."""

    def __init__(self, wrapped: Model, run: AgentRun, number: int) -> None:
        super().__init__(wrapped)
        self._run, self._number = run, number

    async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> ModelResponse:
        async def attempt(messages: Any) -> ModelResponse:
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


def _as_response(answer: Any) -> ModelResponse:
    return answer if isinstance(answer, ModelResponse) else ModelResponse([TextPart(str(answer))])
