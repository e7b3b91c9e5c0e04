"""Servers of a group, one by one and together: names that collide, and the answer to the client's handshake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from mulligan.classify.declared_errors import UndeliveredError
from mulligan.proxy import ServerTarget, messages
from mulligan.proxy.messages import STATELESS_VERSION, Envelope, Id, build_message, decode_members
from mulligan.proxy.relay import ClientConnection, Relay
from mulligan.proxy.server import Pausable

COMPLETE_RESULT = {"resultType": "complete"}
"""Part of each result in protocol versions without handshake."""
LIST_RESULT = {**COMPLETE_RESULT, "ttlMs": 0, "cacheScope": "private"}
STATELESS_PREFIX = "io.modelcontextprotocol/"
SEPARATOR = "__"


class Route(NamedTuple):
    """Server of a name, and the name that the server uses."""

    server: str
    name: str


class AbsentServer:
    """Connection to a server that is not available: it fails each request with the reason."""

    has_ended = False

    def __init__(self, relay: Relay, name: str, reason: str) -> None:
        self._relay = relay
        self._error = UndeliveredError(
            f"Server {name} is not available: {reason}",
            "unavailable",
            hint="Continue without this tool, or try again later.",
            recoverable=False,
        )

    def write(self, line: bytes) -> None:
        id = messages.decode_envelope(line).id
        if id is not msgspec.UNSET:
            self._relay.loop.call_soon(self._relay.fail_request, id, self._error)

    def pause(self) -> None:
        """Nothing to do: there is no output."""

    def resume(self) -> None:
        """Nothing to do, as for `pause`."""

    def handle_output_closed(self) -> None:
        """Nothing to do, as for `pause`."""

    def end(self) -> None:
        """Nothing to do, as for `pause`."""

    async def stop(self) -> None:
        """Nothing to do, as for `pause`."""


class GroupMember:
    """One server of the group. It is the client of its relay."""

    def __init__(
        self, target: ServerTarget, client: ClientConnection, on_message: Callable[[GroupMember, bytes], None]
    ) -> None:
        self.target = target
        self.name = target.name
        self.source: Pausable | None = None
        self.relay: Relay
        self.result: dict[str, Any] | None = None
        """Result of the handshake or of `server/discover`. None before it."""
        self.is_stateless = False
        """Whether the server answered `server/discover`, so that it needs no handshake."""
        self.retry_at = 0.0
        self.answers: dict[Id, asyncio.Future[tuple[Envelope, bytes]]] = {}
        self._client = client
        self._on_message = on_message

    @property
    def is_running(self) -> bool:
        return not isinstance(self.relay.server, AbsentServer) and not self.relay.finished.done()

    def has(self, capability: str) -> bool:
        capabilities = (self.result or {}).get("capabilities")
        return self.is_running and isinstance(capabilities, dict) and capability in capabilities

    # As the relay uses its client

    def write(self, data: bytes) -> None:
        self._on_message(self, data)

    def pause(self) -> None:
        self._client.pause()

    def resume(self) -> None:
        self._client.resume()

    def close_input(self) -> None:
        """Nothing to do: the group reads from the client."""

    async def close(self) -> None:
        """Nothing to do: the group writes to the client."""


def to_session_request(line: bytes) -> bytes:
    """Remove what only servers without handshake understand."""
    members: dict[str, Any] = dict(decode_members(line))
    params: dict[str, Any] = dict(decode_members(members.get("params", b"{}")))
    meta = decode_members(params.get("_meta", b"{}"))
    params["_meta"] = {key: value for key, value in meta.items() if not key.startswith(STATELESS_PREFIX)}
    return messages.encode({**members, "params": params}) + b"\n"


def to_stateless_answer(id: Id, result: msgspec.Raw) -> bytes:
    """Add what clients without handshake expect in a result."""
    members = decode_members(result)
    return build_message(id=id, result={**(LIST_RESULT if "contents" in members else COMPLETE_RESULT), **members})


def choose_names(names: list[tuple[str, str]]) -> list[str]:
    """Choose the public name of each (server, name): `server__name` if two servers have the name."""
    servers_by_name: dict[str, set[str]] = {}
    for server, name in names:
        servers_by_name.setdefault(name, set()).add(server)
    public_names = []
    for server, name in names:
        public_name = name
        if len(servers_by_name[name]) > 1:
            public_name = f"{server}{SEPARATOR}{name}"
            while public_name in servers_by_name:  # a server has this as its own name
                public_name += "_"
        public_names.append(public_name)
    return public_names


def merge_handshakes(
    requested_version: str, results: Mapping[str, Mapping[str, Any]], absent_names: set[str]
) -> dict[str, Any]:
    """Merge the results of the handshakes: the oldest version, all capabilities, all instructions.

    Without `requested_version`, for a client without handshake. It gets no notifications about changed lists.
    """
    versions = [str(result.get("protocolVersion") or requested_version) for result in results.values()]
    changes: dict[str, Any] = {"listChanged": True} if requested_version else {}
    subscription = {"subscribe": True} if requested_version else {}
    capabilities = {"tools": changes, "prompts": changes, "resources": {**changes, **subscription}}
    instructions = []
    for name, result in results.items():
        server_capabilities = result.get("capabilities")
        for optional_name in ("logging", "completions"):
            if isinstance(server_capabilities, dict) and optional_name in server_capabilities:
                capabilities[optional_name] = {}
        if isinstance(result.get("instructions"), str) and result["instructions"]:
            instructions.append(f"Server {name}: {result['instructions']}")
    if absent_names:
        instructions.append(f"Not available now, so their tools are missing: {', '.join(sorted(absent_names))}.")
    merged: dict[str, Any] = {"capabilities": capabilities}
    if requested_version:
        merged["protocolVersion"] = min(versions, default=requested_version)
        merged["serverInfo"] = {"name": "mulligan", "version": "1"}
    else:
        merged |= {**LIST_RESULT, "supportedVersions": [STATELESS_VERSION]}
    return {**merged, "instructions": "\n\n".join(instructions)} if instructions else merged
