"""Functions that answer item by item: recovered until the first item, recorded until the last.

After the first item nothing is tried again: a second stream spliced onto the first would say things twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from typing import Any

from mulligan.capture.drive import STREAM, Attempts, aplay, play
from mulligan.capture.kit import Kit
from mulligan.capture.tracer import ActiveRun

DONE = object()
Opening = tuple[Callable[[ActiveRun, Callable[..., Any]], Attempts], Callable[..., Any], Kit]
"""How to make the call with another function in its place, that function, and the kit."""


@contextlib.contextmanager
def _scope(kit: Kit) -> Iterator[ActiveRun]:
    """The current run, or one of the stream's own, which is current only while the stream is working."""
    run = kit.run.get()
    if run is not None:
        yield run
    else:
        with ActiveRun(kit).lasting() as own:
            yield own


def stream(opening: Opening) -> Generator[Any, Any, Any]:
    """The items of a generator function, as one call."""
    attempts, function, kit = opening
    source: Any = None
    item: Any = DONE
    items = 0

    def first(*args: Any, **kwargs: Any) -> object:
        nonlocal source, item
        source = function(*args, **kwargs)
        item = next(source, DONE)
        return STREAM

    with _scope(kit) as run:
        call = attempts(run, first)
        with run.inside():
            play(call)
        try:
            while item is not DONE:
                items += 1
                try:
                    sent = yield item
                except GeneratorExit:
                    source.close()
                    raise
                except BaseException as thrown:  # noqa: BLE001 - thrown at the stream: it is the stream's to answer
                    with run.inside():
                        item = source.throw(thrown)
                else:
                    with run.inside():
                        item = source.send(sent)
        except StopIteration as stop:
            call.streamed(items)
            return stop.value
        except Exception as error:
            call.failed(error)
            raise
        except BaseException:
            call.cancelled()
            raise
        call.streamed(items)


async def astream(opening: Opening) -> AsyncGenerator[Any, Any]:
    """The items of an async generator function, as one call."""
    attempts, function, kit = opening
    source: Any = None
    item: Any = DONE
    items = 0

    async def first(*args: Any, **kwargs: Any) -> object:
        nonlocal source, item
        source = function(*args, **kwargs)
        item = await anext(source, DONE)
        return STREAM

    with _scope(kit) as run:
        call = attempts(run, first)
        with run.inside():
            await aplay(call)
        try:
            while item is not DONE:
                items += 1
                try:
                    sent = yield item
                except GeneratorExit:
                    await source.aclose()
                    raise
                except BaseException as thrown:  # noqa: BLE001 - thrown at the stream: it is the stream's to answer
                    with run.inside():
                        item = await source.athrow(thrown)
                else:
                    with run.inside():
                        item = await source.asend(sent)
        except StopAsyncIteration:
            call.streamed(items)
            return
        except Exception as error:
            call.failed(error)
            raise
        except BaseException:
            call.cancelled()
            raise
        call.streamed(items)
