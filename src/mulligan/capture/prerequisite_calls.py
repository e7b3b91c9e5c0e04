"""Calls that had been missing: a recipe says what must come before a call that failed, and here it is made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mulligan.capture.context import Kit, reset
from mulligan.capture.player import aexecute_plan, execute_plan
from mulligan.capture.run import ActiveRun
from mulligan.recover.repair import PrerequisiteCall
from mulligan.recover.tool import Tool

if TYPE_CHECKING:
    from mulligan.capture.call_execution import Attempts


class Preparing:
    """Makes the calls that must come before another; each answers with why it did not work, or with nothing."""

    def __init__(self, kit: Kit, run: ActiveRun, tool: Tool) -> None:
        self._kit, self._run, self._tool = kit, run, tool
        self.made: list[PrerequisiteCall] = []
        """Those that worked."""

    def call(self, before: PrerequisiteCall) -> str:
        made = self._missing(before)
        if isinstance(made, str):
            return made
        if made.is_async:
            return f"the prerequisite {before.tool} is async and {self._tool.name} is not"
        with self._following():
            execute_plan(made)
        return self._came_out(made, before)

    async def acall(self, before: PrerequisiteCall) -> str:
        made = self._missing(before)
        if isinstance(made, str):
            return made
        import asyncio  # loaded by whoever awaits us

        with self._following():
            await (aexecute_plan(made) if made.is_async else asyncio.to_thread(execute_plan, made))
        return self._came_out(made, before)

    def _missing(self, before: PrerequisiteCall) -> Attempts | str:
        """A call that had been missing, ready to be made; or why it cannot be."""
        assert self._kit.tools is not None
        wrapped = self._kit.tools(before.tool)
        if wrapped is None:
            return f"the prerequisite {before.tool} is not a tool of this process"
        if wrapped.options.destructive or wrapped.is_stream or wrapped.is_async_stream:
            return f"the prerequisite {before.tool} is destructive or streams, so it is not called automatically"
        made: Attempts = wrapped.prepare_call(self._kit, self._run, (), before.arguments)
        made.is_answered = True  # it is announced with the call that needed it
        made.guarding.can_block = True  # nobody asked for it but us
        return made

    @contextlib.contextmanager
    def _following(self) -> Iterator[None]:
        """Inside it a call is made that a recipe asked for. If it fails, that is recorded, and told by `_came_out`."""
        token = self._kit.preparing.set(True)
        try:
            yield
        except Exception:  # noqa: BLE001 - whatever it is, it is that call's; the one that needed it is given up
            return
        finally:
            reset(self._kit.preparing, token)

    def _came_out(self, made: Attempts, before: PrerequisiteCall) -> str:
        if made.failure is not None:
            return f"the prerequisite {before.tool} failed"
        self.made.append(before)
        return ""
