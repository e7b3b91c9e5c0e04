"""Several servers behind one client: merged lists, routed requests, and servers that come and go.

Each server has a relay of its own. A name keeps its form unless two servers have it: then it is `server__name`.
A client without handshake can use servers that need one: the group makes it, and adapts requests and results.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from mulligan.build import Components
from mulligan.core.failure import SettingsError
from mulligan.hooks import session_files
from mulligan.proxy import ServerTarget, messages
from mulligan.proxy.config import read_file_state
from mulligan.proxy.group_members import (
    COMPLETE_RESULT,
    LIST_RESULT,
    AbsentServer,
    GroupMember,
    Route,
    choose_names,
    merge_handshakes,
    to_session_request,
    to_stateless_answer,
)
from mulligan.proxy.messages import STATELESS_VERSION, Envelope, Id, build_error, build_message, decode_members
from mulligan.proxy.relay import ClientConnection, ProxyOptions, Relay, ServerConnection
from mulligan.proxy.tool_calls import MAX_ANNOUNCED_TOOLS, ToolCallRelay
from mulligan.recover.names import (
    nearest_tool_names,
)

UNSET = msgspec.UNSET
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
HANDSHAKE_VERSION = "2025-11-25"
"""Protocol version for servers that need a handshake if the client makes none."""
HANDSHAKE_LINE = build_message(method="notifications/initialized")
DISCOVERY_SECONDS = 6.0
"""The same for `server/discover`, for which clients wait less. Also the time for one server to answer it."""
LIST_SECONDS = 30.0
"""Time for a server to list its tools."""
MAX_PAGES = 1000
RETRY_SECONDS = 30.0
"""Delay before a server that ended is started again."""
LISTS = {
    "tools/list": ("tools", "tools", "name"),
    "prompts/list": ("prompts", "prompts", "name"),
    "resources/list": ("resources", "resources", "uri"),
    "resources/templates/list": ("resources", "resourceTemplates", "uriTemplate"),
}
"""Methods with the capability, the member of the result and the key of an item."""
NAMED_REQUESTS = {"tools/call": "tools/list", "prompts/get": "prompts/list"}
URI_REQUESTS = frozenset({"resources/read", "resources/subscribe", "resources/unsubscribe"})
LIST_CHANGES = ("tools", "prompts", "resources")


class ServerGroup:
    """Servers of one client. `read_targets` reads them from the file, which is checked for changes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: ProxyOptions,
        components: Components,
        client: ClientConnection,
        path: Path,
        read_targets: Callable[[], Mapping[str, ServerTarget]],
        build_connect: Callable[[ServerTarget], Callable[[Relay], ServerConnection]],
    ) -> None:
        self.loop = loop
        self.client = client
        self.finished: asyncio.Future[int] = loop.create_future()
        self._options = options
        self._components = components
        self._path = path
        self._read_targets = read_targets
        self._build_connect = build_connect
        self._members: dict[str, GroupMember] = {}
        self._tables: dict[str, dict[str, Route]] = {}
        """Names as the client saw them last, by method of the list."""
        self._routes: dict[Id, GroupMember] = {}
        """Servers of requests that wait for an answer."""
        self._server_requests: dict[str, tuple[GroupMember, Id]] = {}
        self._opening: msgspec.Raw | None = None
        """Parameters of the client's `initialize`, or of its first request if it makes no handshake."""
        self._opening_task: asyncio.Task[dict[str, Any]] | None = None
        self._slow_tasks: set[asyncio.Task[None]] = set()
        """Servers that were not ready when the client was answered."""
        self._is_stateless = False
        """Whether the client makes no handshake."""
        self._initialized_line: bytes | None = None
        self._announced_tools: set[tuple[str, str]] = set()
        """Sessions and tools whose calls hooks leave to the proxy."""
        self._id_count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        client.source = self
        for target in read_targets().values():
            self._add_member(target)
        self._start(self._watch())

    def pause(self) -> None:
        for member in self._members.values():
            if member.source is not None:
                member.source.pause()

    def resume(self) -> None:
        for member in self._members.values():
            if member.source is not None:
                member.source.resume()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _new_id(self) -> str:
        self._id_count += 1
        return f"mulligan-group-{self._id_count}"

    def print_message(self, message: str) -> None:
        print(f"mulligan: {message}", file=sys.stderr, flush=True)

    # Servers

    def _add_member(self, target: ServerTarget) -> GroupMember:
        member = self._members[target.name] = GroupMember(target, self.client, self.from_member)
        self._start_member(member)
        return member

    def _start_member(self, member: GroupMember) -> None:
        """Connect to a server. A server that cannot be started is absent until it can."""
        try:
            relay = self._connect_member(member, self._build_connect(member.target))
        except OSError as error:
            self._mark_absent(member, f"it cannot be started: {(error.strerror or str(error)).lower()}")
            return
        relay.finished.add_done_callback(lambda _: self._handle_end(member, relay))

    def _connect_member(self, member: GroupMember, connect: Callable[[Relay], ServerConnection]) -> Relay:
        member.retry_at = self.loop.time() + RETRY_SECONDS
        member.relay = Relay(self.loop, replace(self._options, name=member.name), member, connect)
        member.relay.calls = ToolCallRelay(member.relay, self._components)
        return member.relay

    def _mark_absent(self, member: GroupMember, reason: str) -> None:
        """Fail the calls of a server, with a record, until it is available again."""
        member.result = None
        self._connect_member(member, lambda relay: AbsentServer(relay, member.name, reason))
        self.print_message(f"server {member.name} is not available: {reason}")

    def _handle_end(self, member: GroupMember, relay: Relay) -> None:
        if self.finished.done() or self._members.get(member.name) is not member:
            return
        self._mark_absent(member, relay.end_reason or "it ended")
        self._start(relay.close())
        self._announce_changes()

    async def _open_member(self, member: GroupMember) -> None:
        """Make the handshake of the client with one server, or ask a server that needs none what it can do."""
        if self._opening is None or not member.is_running:
            return
        member.is_stateless = self._is_stateless
        method, seconds = ("server/discover", DISCOVERY_SECONDS) if self._is_stateless else ("initialize", 0.0)
        envelope, _ = await self._ask(member, method, None if self._is_stateless else self._opening, seconds)
        result = messages.decode(messages.object_decoder, envelope.result, {})
        if self._is_stateless and STATELESS_VERSION not in (result.get("supportedVersions") or ()):
            member.is_stateless = False
            client = messages.decode_params(self._opening).meta or {}
            handshake = {"protocolVersion": HANDSHAKE_VERSION, "capabilities": {}}
            handshake["clientInfo"] = client.get(messages.CLIENT_INFO_KEY) or {"name": "mulligan", "version": "1"}
            envelope, _ = await self._ask(member, "initialize", handshake)
            result = messages.decode(messages.object_decoder, envelope.result, {})
        if envelope.error != messages.EMPTY_RAW:
            reason = messages.decode_error(envelope.error).message.removeprefix("initialize: ")
            if member.is_running:
                self.print_message(f"server {member.name} is not available: {reason}")
            return
        member.result = result
        if not member.is_stateless:
            line = HANDSHAKE_LINE if self._is_stateless else self._initialized_line
            if line is not None:
                member.relay.from_client(line)

    def _announce_changes(self) -> None:
        if self._initialized_line is not None:  # A client without handshake lists again when it needs to.
            for name in LIST_CHANGES:
                self.client.write(build_message(method=f"notifications/{name}/list_changed"))

    async def _watch(self) -> None:
        """Reload the file when it changes, and start servers again that have ended."""
        state = read_file_state(self._path)
        while not self.finished.done():
            # Interval at which the file is checked
            await asyncio.sleep(1.0)
            current_state = read_file_state(self._path)
            if current_state != state:
                state = current_state
                await self._reload()
            for member in tuple(self._members.values()):
                if (not member.is_running or (member.result is None and member.target.url)) and (
                    self.loop.time() >= member.retry_at and self._opening is not None
                ):
                    if not member.is_running:
                        self._start(member.relay.close())
                        self._start_member(member)
                    member.retry_at = self.loop.time() + RETRY_SECONDS
                    self._start(self._open_late_member(member))

    async def _open_late_member(self, member: GroupMember) -> None:
        await self._open_member(member)
        if member.result is not None:
            self._announce_changes()

    async def _reload(self) -> None:
        try:
            targets = await asyncio.to_thread(self._read_targets)
        except SettingsError as error:
            self.print_message(f"{error} The servers stay as they were.")
            return
        changed_names = [name for name, member in self._members.items() if targets.get(name) != member.target]
        added_targets = [
            target for name, target in targets.items() if name not in self._members or name in changed_names
        ]
        if not changed_names and not added_targets:
            return
        self.print_message(f"{self._path.name} has changed; {len(targets)} servers now")
        for name in changed_names:
            member = self._members.pop(name)
            member.relay.finish(0, f"server {name} was removed or changed")
            self._start(member.relay.close())
        added_members = [self._add_member(target) for target in added_targets]
        await asyncio.gather(*(self._open_member(member) for member in added_members))
        self._announce_changes()

    # From the client

    def from_client(self, line: bytes) -> None:
        try:
            envelope = messages.decode_envelope(line)
        except msgspec.DecodeError:
            self.client.write(build_error(messages.find_id(line), "Invalid message, or a batch", -32600))
            return
        method, id = envelope.method, None if envelope.id is UNSET else envelope.id
        if method is UNSET:
            member, original_id = self._server_requests.pop(str(id), (None, None))
            if member is not None:
                member.relay.from_client(messages.replace_id(line, original_id))
        elif envelope.id is UNSET:
            self._forward_notification(method, envelope, line)
        else:
            self._start(self._answer_request(id, method, envelope, line))

    def _forward_notification(self, method: str, envelope: Envelope, line: bytes) -> None:
        members: Iterable[GroupMember] = tuple(self._members.values())
        if method == "notifications/cancelled":
            routed_member = self._routes.pop(messages.decode_params(envelope.params).request, None)
            members = [] if routed_member is None else [routed_member]
        elif method == "notifications/initialized":
            self._initialized_line = line
        for member in members:
            if member.is_running and member.result is not None:
                member.relay.from_client(line)

    async def _answer_request(self, id: Id, method: str, envelope: Envelope, line: bytes) -> None:
        try:
            await self._route_request(id, method, envelope, line)
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            self.client.write(build_error(id, f"{method}: invalid parameters: {error}", INVALID_PARAMS))

    async def _route_request(self, id: Id, method: str, envelope: Envelope, line: bytes) -> None:
        version = messages.decode_params(envelope.params).stateless_version
        is_handshake = method == "initialize"
        if (is_handshake and self._is_stateless) or (version and version != STATELESS_VERSION):
            data = {"supported": [STATELESS_VERSION], "requested": version}
            self.client.write(build_error(id, "Unsupported protocol version", -32022, data))
            return
        if self._opening is None and (is_handshake or version):
            self._opening, self._is_stateless = envelope.params, not is_handshake
            self._opening_task = self.loop.create_task(self._open_all())
        if self._opening_task is not None and not self._opening_task.done() and version:
            await asyncio.wait((self._opening_task,))
        if self._opening_task is not None and method in ("initialize", "server/discover"):
            self.client.write(build_message(id=id, result=await self._opening_task))
        elif method == "ping":
            self.client.write(build_message(id=id, result=COMPLETE_RESULT if version else {}))
        elif method in LISTS:
            self.client.write(build_message(id=id, result=await self._list(method)))
        elif method in NAMED_REQUESTS:
            await self._route_by_name(id, method, envelope, line)
        elif method in URI_REQUESTS:
            uri = decode_members(envelope.params)["uri"] if envelope.params != messages.EMPTY_RAW else b'""'
            await self._route_by_uri(id, method, msgspec.json.decode(uri, type=str), envelope, line)
        elif method == "completion/complete":
            await self._route_completion(id, envelope, line)
        elif method == "logging/setLevel":
            members = [member for member in self._members.values() if member.has("logging")]
            await asyncio.gather(*(self._ask(member, method, envelope.params) for member in members))
            self.client.write(build_message(id=id, result={}))
        else:
            message = f"{method} is not supported by a proxy for several servers"
            self.client.write(build_error(id, message, METHOD_NOT_FOUND))

    async def _open_all(self) -> dict[str, Any]:
        """Make the handshake with all servers. Those that are slow follow later."""
        tasks = {self.loop.create_task(self._open_member(member)): member for member in self._members.values()}
        if tasks:
            # Time for all servers to start before the client is answered without the slow ones
            limit = DISCOVERY_SECONDS if self._is_stateless else 20.0
            _, slow_tasks = await asyncio.wait(tasks, timeout=limit)
            if not any(member.result is not None for member in self._members.values()) and slow_tasks:
                await asyncio.wait(slow_tasks, return_when=asyncio.FIRST_COMPLETED)
            self._slow_tasks = slow_tasks
            for task in slow_tasks:
                task.add_done_callback(lambda _: self._announce_changes())
        results = {name: member.result for name, member in self._members.items() if member.result is not None}
        params = messages.decode(messages.object_decoder, self._opening or b"{}", {})
        version = "" if self._is_stateless else str(params.get("protocolVersion", "2025-06-18"))
        return merge_handshakes(version, results, set(self._members) - set(results))

    async def _ask(self, member: GroupMember, method: str, params: Any, timeout: float = 0.0) -> tuple[Envelope, bytes]:
        """Send a request of the group to one server and return the answer. A timeout is an error answer."""
        id = self._new_id()
        answer: asyncio.Future[tuple[Envelope, bytes]] = self.loop.create_future()
        member.answers[id] = answer
        if member.is_stateless and self._opening is not None and isinstance(params, dict | None):
            params = {**(params or {}), "_meta": decode_members(self._opening)["_meta"]}
        members = {} if params is None or params == messages.EMPTY_RAW else {"params": params}
        self._send(member, build_message(id=id, method=method, **members))
        try:
            async with asyncio.timeout(timeout or None):
                return await answer
        except TimeoutError:
            line = build_error(id, f"server {member.name} did not answer {method} in {timeout:g} s")
            return messages.decode_envelope(line), line
        finally:
            del member.answers[id]

    def _send(self, member: GroupMember, line: bytes) -> None:
        """Send a request to a server, without what only servers without handshake understand."""
        if self._is_stateless and not member.is_stateless:
            line = to_session_request(line)
        member.relay.from_client(line)

    # Lists and names

    async def _list(self, method: str) -> dict[str, Any]:
        """Merge the lists of all servers, and remember which name belongs to which server."""
        if self._is_stateless and self._slow_tasks:  # Such a client is not told when they are ready.
            await asyncio.wait(self._slow_tasks, timeout=LIST_SECONDS)
        capability, key, item_key = LISTS[method]
        members = [member for member in self._members.values() if member.has(capability)]
        lists = await asyncio.gather(*(self._list_member(member, method, key) for member in members))
        items = [
            (member.name, item, str(msgspec.json.decode(item.get(item_key, b'""'))))
            for member, member_items in zip(members, lists, strict=True)
            for item in member_items
        ]
        is_named = item_key == "name"
        public_names = choose_names([(server, name) for server, _, name in items]) if is_named else None
        table: dict[str, Route] = {}
        merged_items: list[Any] = []
        for index, (server, item, name) in enumerate(items):
            public_name = public_names[index] if public_names is not None else name
            if public_name in table:
                continue  # the same name twice on one server, or a resource of two servers
            table[public_name] = Route(server, name)
            renamed_item: dict[str, Any] = {**item, item_key: public_name}
            merged_items.append(renamed_item if public_name != name else item)
        self._tables[method] = table
        return {key: merged_items, **(LIST_RESULT if self._is_stateless else {})}

    async def _list_member(self, member: GroupMember, method: str, key: str) -> list[dict[str, msgspec.Raw]]:
        items: list[dict[str, msgspec.Raw]] = []
        params: dict[str, Any] | None = None
        for _ in range(MAX_PAGES):
            envelope, _ = await self._ask(member, method, params, LIST_SECONDS)
            if envelope.error != messages.EMPTY_RAW:
                if messages.decode_error(envelope.error).code != METHOD_NOT_FOUND:
                    error = messages.decode_error(envelope.error).message
                    self.print_message(f"server {member.name} did not answer {method}: {error[:200]}")
                break
            result = decode_members(envelope.result)
            items += [decode_members(item) for item in messages.decode_items(result.get(key, b"[]"))]
            cursor = msgspec.json.decode(result.get("nextCursor", b"null"))
            if not cursor:
                break
            params = {"cursor": cursor}
        return items

    async def _find_route(self, list_method: str, name: str) -> Route | None:
        if list_method not in self._tables:
            await self._list(list_method)  # the client calls without having listed
        return self._tables[list_method].get(name)

    async def _route_by_name(self, id: Id, method: str, envelope: Envelope, line: bytes) -> None:
        params = decode_members(envelope.params)
        name = msgspec.json.decode(params["name"], type=str) if "name" in params else ""
        list_method = NAMED_REQUESTS[method]
        route = await self._find_route(list_method, name)
        server, separator, own_name = name.partition("__")
        if route is None and separator and (member := self._members.get(server)) and not member.is_running:
            route = Route(server, own_name)  # it answers why it is away
        if route is None:
            names = list(self._tables[list_method])
            near_names = [other for other in names if other.endswith(f"__{name}")] or nearest_tool_names(name, names)
            hint = f" Similar names: {', '.join(near_names)}." if near_names else ""
            self.client.write(build_error(id, f"No server has {name[:200]!r}.{hint}", INVALID_PARAMS))
            return
        if method == "tools/call":
            self._announce_to_hooks(envelope, name)
        if route.name != name:
            line = build_message(id=id, method=method, params={**params, "name": route.name})
        self._forward(id, route, line)

    def _announce_to_hooks(self, envelope: Envelope, tool: str) -> None:
        """Tell hooks that a tool's calls are recorded here: by the name of this proxy in the client, if it is known."""
        tool_call = messages.decode_tool_call(envelope.params)
        if not self._options.name or tool_call is None or self._components.capture.record == "off":
            return
        announced = (self._options.session or messages.find_session_id(tool_call), tool)
        if announced not in self._announced_tools and len(self._announced_tools) < MAX_ANNOUNCED_TOOLS:
            self._announced_tools.add(announced)
            with self._components.capture.guard("announcing the proxy to hooks"):
                session_files.add_proxied_tool(announced[0], self._options.name, tool)

    def _forward(self, id: Id, route: Route, line: bytes) -> None:
        member = self._members.get(route.server)
        if member is None:
            self.client.write(build_error(id, f"Server {route.server} is not available: it was removed"))
            return
        self._routes[id] = member
        self._send(member, line)

    async def _route_by_uri(self, id: Id, method: str, uri: str, envelope: Envelope, line: bytes) -> None:
        route = self._tables.get("resources/list", {}).get(uri)
        if route is not None:
            self._forward(id, route, line)
            return
        # A resource of a template, or one that was never listed: the first server that has it answers.
        answer = build_error(id, f"No server has the resource {uri[:200]!r}.", -32002)
        for member in tuple(self._members.values()):
            if member.has("resources"):
                member_envelope, member_line = await self._ask(member, method, envelope.params)
                answer = messages.replace_id(member_line, id)
                if member_envelope.error == messages.EMPTY_RAW:
                    break
        self.client.write(answer)

    async def _route_completion(self, id: Id, envelope: Envelope, line: bytes) -> None:
        params = decode_members(envelope.params)
        reference = msgspec.json.decode(params.get("ref", b"{}"), type=dict[str, Any])
        is_prompt = "name" in reference
        list_method = "prompts/list" if is_prompt else "resources/templates/list"
        route = await self._find_route(list_method, str(reference.get("name" if is_prompt else "uri")))
        if route is None:
            self.client.write(build_message(id=id, result={"completion": {"values": []}}))
            return
        if is_prompt and route.name != reference["name"]:
            changed_params: dict[str, Any] = {**params, "ref": {**reference, "name": route.name}}
            line = build_message(id=id, method="completion/complete", params=changed_params)
        self._forward(id, route, line)

    # From the servers

    def from_member(self, member: GroupMember, line: bytes) -> None:
        try:
            envelope = messages.decode_envelope(line)
        except msgspec.DecodeError:
            return  # the relay forwards only batches of answers in this form, and the group sends no batches
        id = None if envelope.id is UNSET else envelope.id
        needs_adaptation = self._is_stateless and not member.is_stateless
        if envelope.method is not UNSET:
            if needs_adaptation and envelope.method != "notifications/progress":
                if envelope.id is not UNSET:
                    member.relay.from_client(build_error(id, "The client accepts no requests", METHOD_NOT_FOUND))
                return
            if envelope.id is not UNSET:
                public_id = f"{member.name}-{self._new_id()}"
                self._server_requests[public_id] = member, id
                line = messages.replace_id(line, public_id)
            self.client.write(line)
            return
        if needs_adaptation and envelope.result != messages.EMPTY_RAW:
            line = to_stateless_answer(id, envelope.result)
        if id in member.answers:
            answer = member.answers[id]
            if not answer.done():
                answer.set_result((envelope, line))
        else:
            self._routes.pop(id, None)
            self.client.write(line)

    def finish(self, code: int) -> None:
        if not self.finished.done():
            self.finished.set_result(code)

    async def close(self) -> None:
        """Stop all servers, then write what the client has not read yet."""
        self.client.close_input()
        for task in tuple(self._tasks):
            task.cancel()
        relays = [member.relay for member in self._members.values()]
        for relay in relays:
            relay.finish(0)
        await asyncio.gather(*(relay.close() for relay in relays))
        await self.client.close()
