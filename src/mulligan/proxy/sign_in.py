"""Sign-in to remote servers with OAuth: the client of the `mcp` package, and a file for its tokens.

Tokens are neither recorded nor printed. Their file has mode 0600 in a folder of its own below the data folder.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
import sys
import time
import webbrowser
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from mulligan.proxy import ServerTarget
from mulligan.proxy.http_transport import HttpAnswerError, build_http_clients, hide_secrets

# isort: split
import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)

SIGN_IN_SECONDS = 300.0
"""Time for a person to sign in."""
MAX_REQUEST_BYTES = 65_536
PAGE = b"""HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n%s\n"""


class TokenFile:
    """Tokens, registration and metadata of one server. Several proxies may share it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = hide_secrets(url)
        self.path = folder / "mcp-tokens" / f"{hashlib.sha256(self.url.encode()).hexdigest()[:24]}.json"
        self.provider: TokenProvider

    def read(self) -> dict[str, Any]:
        """Return the content, empty if there is none or it is unreadable."""
        try:
            content = msgspec.json.decode(self.path.read_bytes())
        except (OSError, msgspec.DecodeError):
            return {}
        return content if isinstance(content, dict) else {}

    @property
    def changed_at(self) -> int:
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    def write(self, **members: Any) -> None:
        """Replace members of the content. The file is complete at any time, and readable by its owner only."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial_path = self.path.with_suffix(f".{os.getpid()}.{os.urandom(4).hex()}")
        file = os.open(partial_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(file, "wb") as opened_file:
            opened_file.write(msgspec.json.encode({**self.read(), "url": self.url, **members}))
        os.replace(partial_path, self.path)

    # As the client of the mcp package uses it

    async def get_tokens(self) -> OAuthToken | None:
        return parse_model(OAuthToken, self.read().get("tokens"))

    async def set_tokens(self, tokens: OAuthToken) -> None:
        context = self.provider.context
        self.write(
            tokens=dump_model(tokens),
            expires_at=None if tokens.expires_in is None else time.time() + tokens.expires_in,
            metadata=dump_model(context.oauth_metadata),
            resource_metadata=dump_model(context.protected_resource_metadata),
            authorization_server=context.auth_server_url,
        )

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return parse_model(OAuthClientInformationFull, self.read().get("client"))

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.write(client=dump_model(client_info))


def dump_model(model: Any) -> Any:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)


def parse_model(model_type: Any, content: Any) -> Any:
    """Parse a part of the file, or return None if it is missing or of another version."""
    try:
        return None if content is None else model_type.model_validate(content)
    except ValueError:
        return None


class TokenProvider(OAuthClientProvider):  # type: ignore[misc]
    """OAuth client that shares tokens with other processes and does not serialize requests."""

    def __init__(self, target: ServerTarget, tokens: TokenFile) -> None:
        self._tokens = tokens
        self._loaded_at = -1
        self._callback: asyncio.Future[AuthorizationCodeResult] | None = None
        redirect_url = self._find_redirect_url()
        metadata = OAuthClientMetadata.model_validate(
            {"client_name": "mulligan proxy", "redirect_uris": [redirect_url]}
        )
        super().__init__(target.url, metadata, tokens, self._ask_user, self._wait_for_user)
        tokens.provider = self

    def _find_redirect_url(self) -> str:
        """Return the URL that was registered, if its port is free, else one with a free port."""
        registered_urls = (self._tokens.read().get("client") or {}).get("redirect_uris") or [""]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", urlsplit(str(registered_urls[0])).port or 0))
                return f"http://127.0.0.1:{probe.getsockname()[1]}/callback"
            except (OSError, ValueError):
                pass
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return f"http://127.0.0.1:{probe.getsockname()[1]}/callback"

    async def _initialize(self) -> None:
        """Load the file, with the expiry and the metadata that a refresh needs."""
        context, content = self.context, self._tokens.read()
        await super()._initialize()
        self._loaded_at = self._tokens.changed_at
        expires_at = content.get("expires_at")
        # Tokens are refreshed this long before they expire
        context.token_expiry_time = expires_at - 30.0 if isinstance(expires_at, int | float) else None
        context.oauth_metadata = parse_model(OAuthMetadata, content.get("metadata"))
        context.protected_resource_metadata = parse_model(ProtectedResourceMetadata, content.get("resource_metadata"))
        context.auth_server_url = content.get("authorization_server")
        redirect_urls = context.client_metadata.redirect_uris or []
        registered_urls = context.client_info.redirect_uris if context.client_info is not None else redirect_urls
        if not context.current_tokens and registered_urls != redirect_urls:
            context.client_info = None  # its port is in use: register another

    async def async_auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:
        """Add the token. Only a sign-in or a refresh takes the lock, so that calls do not wait for each other."""
        if self._tokens.changed_at != self._loaded_at:
            async with self.context.lock:
                await self._initialize()
        token = self.context.current_tokens
        if token is not None and self.context.is_token_valid():
            self._add_auth_header(request)
            response = yield request
            is_refused = response.status_code == 401
            if not is_refused and "insufficient_scope" not in response.headers.get("www-authenticate", ""):
                return
            if is_refused and self.context.current_tokens is token:
                self.context.token_expiry_time = 1.0  # refused before its time: refresh it
        flow = super().async_auth_flow(request)
        try:
            next_request = await anext(flow)
            while True:
                response = yield next_request
                next_request = await flow.asend(response)
        except StopAsyncIteration:
            self._loaded_at = self._tokens.changed_at
        except ValueError as error:
            raise OAuthFlowError(f"Invalid answer of the authorization server: {error}") from None
        finally:
            await flow.aclose()

    async def _ask_user(self, url: str) -> None:
        """Open the sign-in page, and wait for its redirect on a loopback port."""
        redirect_urls = self.context.client_metadata.redirect_uris or []
        self._callback = asyncio.get_running_loop().create_future()
        self._listener = await asyncio.start_server(
            self._handle_redirect, "127.0.0.1", urlsplit(str(redirect_urls[0])).port
        )
        print(f"mulligan: {self._tokens.url} needs a sign-in. Open: {url}", file=sys.stderr, flush=True)
        await asyncio.to_thread(webbrowser.open, url)

    async def _handle_redirect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = (await reader.readuntil(b"\r\n"))[:MAX_REQUEST_BYTES].decode("latin-1")
            path, _, query = line.split(" ")[1].partition("?")
            values = {name: texts[0] for name, texts in parse_qs(query).items()}
            if path != "/callback" or self._callback is None or self._callback.done():
                writer.write(PAGE.replace(b"200 OK", b"404 Not Found") % b"There is nothing here.")
            elif "code" in values:
                result = AuthorizationCodeResult(code=values["code"], state=values.get("state"), iss=values.get("iss"))
                self._callback.set_result(result)
                writer.write(PAGE % b"You are signed in. You can close this page.")
            else:
                self._callback.set_exception(OAuthFlowError("The sign-in was refused"))
                writer.write(PAGE % b"The sign-in was refused. You can close this page.")
            await writer.drain()
        except (OSError, ValueError, IndexError, asyncio.IncompleteReadError):
            pass  # Not a browser with a redirect: the sign-in continues.
        finally:
            writer.close()

    async def _wait_for_user(self) -> AuthorizationCodeResult:
        assert self._callback is not None
        try:
            async with asyncio.timeout(SIGN_IN_SECONDS):
                return await self._callback
        except TimeoutError:
            raise OAuthFlowError(f"There was no sign-in within {SIGN_IN_SECONDS:g} s") from None
        finally:
            self._listener.close()


def build_auth(target: ServerTarget, folder: Path) -> TokenProvider | None:
    """Return the OAuth client of a server, or None if the user passes a token in a header."""
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # its messages repeat what our answers say
    if any(name.lower() == "authorization" for name in target.headers):
        return None
    return TokenProvider(target, TokenFile(folder, target.url))


async def sign_in(target: ServerTarget, folder: Path) -> bool:
    """Sign in to a server. Return whether it has asked for that. Raise `OAuthFlowError` or `HttpAnswerError`."""
    auth = build_auth(target, folder)
    client, other_client = build_http_clients(target, auth)
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "mulligan", "version": "1"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    headers = {"accept": "application/json, text/event-stream"}
    async with client, other_client, client.stream("POST", target.url, json=message, headers=headers) as response:
        if response.status_code >= 400:
            raise HttpAnswerError(response)
    return auth is not None and auth.context.current_tokens is not None


SIGN_IN_ERRORS = (OAuthFlowError, HttpAnswerError, httpx2.TransportError)
