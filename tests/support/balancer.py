"""A balancer on loopback before several servers: each connection goes to the next one that takes it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence

from ports import free_port

CHUNK_BYTES = 65_536


class Balancer:
    """Passes the bytes of each connection on to one of the servers at these ports, in turns.

    `ports` may be replaced while it runs. A connection for which no server is there is closed.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self.ports = list(ports)
        self.port = free_port()
        self.accepted: dict[int, int] = {}
        """How many connections each server has got."""
        self._turn = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="balancer", daemon=True)

    def __enter__(self) -> Balancer:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", self.port)

    async def _close(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass_on(self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        try:
            opened = await self._open_server()
            if opened is not None:
                server_reader, server_writer = opened
                await asyncio.gather(_copy(client_reader, server_writer), _copy(server_reader, client_writer))
        except asyncio.CancelledError:  # by `_close`; the streams of Python 3.11 would report it as an error
            pass
        finally:
            client_writer.close()

    async def _open_server(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        ports, self._turn = list(self.ports), self._turn + 1
        for place in range(len(ports)):
            port = ports[(self._turn + place) % len(ports)]
            try:
                opened = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            self.accepted[port] = self.accepted.get(port, 0) + 1
            return opened
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until one side ends, and then end the other."""
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()
