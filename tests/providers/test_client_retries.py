"""Clients with retries of their own, in a wrapped call: one layer retries, the server gets at most `attempts` requests.

`tests/capture/test_retry_layers.py` has the same matrix for retry libraries.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import mulligan
from mulligan.testing import sandbox

tenacity = pytest.importorskip("tenacity")
LIMIT = 3
"""Requests of every client, and attempts of mulligan by default."""
HELLO: Any = [{"role": "user", "content": "hello"}]
Function = Callable[[], Any]
pytestmark = pytest.mark.filterwarnings("ignore")  # those of the clients are theirs


class BrokenServer:
    """A server that answers every request with 503, and counts them."""

    def __init__(self) -> None:
        self.requests = 0
        self._clients: list[Any] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                server.requests += 1
                self.rfile.read(int(self.headers.get("content-length", 0)))
                body = b'{"error": {"message": "The server is overloaded.", "type": "overloaded"}}'
                self.send_response(503)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.send_header("retry-after-ms", "1")
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST  # noqa: N815 - the server calls it by this name

            def log_message(self, *args: Any) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def closing(self, client: Any) -> Any:
        """Close a client with the server: open connections cause warnings."""
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[BrokenServer]:
    started_server = BrokenServer()
    yield started_server
    started_server.close()


# The clients. Each takes the server and returns a function that makes one call, with the client's retries.


def openai_client(server: BrokenServer, **options: Any) -> Any:
    openai = pytest.importorskip("openai")
    return server.closing(openai.OpenAI(base_url=server.url, api_key="key", **options))


def openai_call(server: BrokenServer) -> Function:
    client = openai_client(server, max_retries=2)
    return lambda: client.chat.completions.create(model="m", messages=HELLO)


def openai_call_with_default_retries(server: BrokenServer) -> Function:
    client = openai_client(server)
    return lambda: client.responses.create(model="m", input="hello")


def openai_async_call(server: BrokenServer) -> Function:
    openai = pytest.importorskip("openai")

    async def call() -> Any:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="key", max_retries=2) as client:
            return await client.chat.completions.create(model="m", messages=HELLO)

    return call


def anthropic_call(server: BrokenServer) -> Function:
    anthropic = pytest.importorskip("anthropic")
    client = server.closing(anthropic.Anthropic(base_url=server.url, api_key="key", max_retries=2))
    return lambda: client.messages.create(model="m", max_tokens=9, messages=HELLO)


def anthropic_async_call(server: BrokenServer) -> Function:
    anthropic = pytest.importorskip("anthropic")

    async def call() -> Any:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="key", max_retries=2) as client:
            return await client.messages.create(model="m", max_tokens=9, messages=HELLO)

    return call


def requests_call(server: BrokenServer, **options: Any) -> Function:
    requests = pytest.importorskip("requests")
    from urllib3.util import Retry

    session = server.closing(requests.Session())
    retry = Retry(total=2, status_forcelist=[503], backoff_factor=0, **options)
    session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retry))
    return lambda: session.get(server.url).raise_for_status()


def requests_call_that_returns_the_last_response(server: BrokenServer) -> Function:
    return requests_call(server, raise_on_status=False)


def botocore_call(server: BrokenServer) -> Function:
    boto3 = pytest.importorskip("boto3")
    from botocore.config import Config

    client = server.closing(
        boto3.client(
            "dynamodb",
            endpoint_url=server.url,
            region_name="eu-north-1",
            aws_access_key_id="id",
            aws_secret_access_key="key",
            config=Config(retries={"total_max_attempts": LIMIT, "mode": "standard"}),
        )
    )
    return lambda: client.list_tables()


CLIENTS = [
    openai_call, openai_call_with_default_retries, openai_async_call, anthropic_call, anthropic_async_call,
    requests_call, requests_call_that_returns_the_last_response, botocore_call,
]  # fmt: skip
WRAPPERS: dict[str, Callable[[Function], Function]] = {
    "tool": mulligan.tool(effects="none"),
    "model": mulligan.model,
}


def call_until_it_fails(function: Function) -> Exception:
    async def await_it() -> Any:
        return await function()

    with pytest.raises(Exception) as caught:  # noqa: PT011 - the client's own, whichever it is
        asyncio.run(await_it()) if inspect.iscoroutinefunction(function) else function()
    return caught.value


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("make_call", CLIENTS)
def test_a_client_that_retries_in_a_wrapped_call_is_the_only_layer(make_call, wrap, server, monkeypatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # botocore has no setting for its backoff
    with sandbox(attempts=LIMIT) as played:
        call_until_it_fails(wrap(make_call(server)))

    assert server.requests == LIMIT
    (step,) = played.steps
    assert step.stop is not None
    assert step.stop.reason.endswith("inside this call made 3 attempts, so mulligan makes no more")


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("max_retries", [0, 1, 2, 4])
def test_a_client_with_another_limit_makes_its_own_number_of_requests(max_retries, wrap, server) -> None:
    client = openai_client(server, max_retries=max_retries)
    with sandbox(attempts=LIMIT):
        call_until_it_fails(wrap(lambda: client.chat.completions.create(model="m", messages=HELLO)))

    assert server.requests == (max_retries + 1 if max_retries else LIMIT)


def test_a_wrapped_client_leaves_all_retries_to_mulligan(server) -> None:
    client = mulligan.wrap_client(openai_client(server, max_retries=2))
    with sandbox(attempts=LIMIT) as played:
        call_until_it_fails(lambda: client.chat.completions.create(model="m", messages=HELLO))

        assert (server.requests, len(played.steps)) == (LIMIT, LIMIT)


def test_a_copy_of_a_wrapped_client_does_not_retry_by_itself(server) -> None:
    client = mulligan.wrap_client(openai_client(server)).with_options(max_retries=5)
    with sandbox(attempts=LIMIT):
        call_until_it_fails(lambda: client.chat.completions.create(model="m", messages=HELLO))

    assert server.requests == LIMIT


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_wrapped_client_under_a_retry_library_makes_as_many_requests_as_that(is_async, server) -> None:
    openai = pytest.importorskip("openai")

    @tenacity.retry(stop=tenacity.stop_after_attempt(LIMIT))
    def ask() -> Any:
        client = mulligan.wrap_client(openai_client(server, max_retries=2))
        return client.chat.completions.create(model="m", messages=HELLO)

    @tenacity.retry(stop=tenacity.stop_after_attempt(LIMIT))
    async def aask() -> Any:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="key", max_retries=2) as client:
            return await mulligan.wrap_client(client).chat.completions.create(model="m", messages=HELLO)

    with sandbox(attempts=LIMIT):
        call_until_it_fails(aask if is_async else ask)

    assert server.requests == LIMIT


@pytest.mark.parametrize("is_transport_error", [True, False])
@pytest.mark.parametrize("package", ["openai", "anthropic"])
def test_a_wrapped_function_in_the_transport_of_a_client_is_retried_by_one_layer(
    package, is_transport_error, server, monkeypatch
) -> None:
    """The client retries after errors of its transport. After all others, mulligan does."""
    calls: list[int] = []
    base_client = pytest.importorskip(package)._base_client
    httpx = getattr(base_client, "httpx2", None) or base_client.httpx  # depends on the client's version

    @mulligan.tool(effects="none")
    def sign() -> str:
        calls.append(1)
        raise httpx.ConnectError("refused") if is_transport_error else ConnectionError

    class Transport(httpx.BaseTransport):  # type: ignore[misc, name-defined]
        def handle_request(self, request: Any) -> Any:
            sign()

    options = {"base_url": server.url, "api_key": "key", "max_retries": 2}
    http_client = server.closing(httpx.Client(transport=Transport()))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with sandbox(attempts=LIMIT):
        if package == "openai":
            client = pytest.importorskip("openai").OpenAI(http_client=http_client, **options)
            call_until_it_fails(lambda: client.chat.completions.create(model="m", messages=HELLO))
        else:
            client = pytest.importorskip("anthropic").Anthropic(http_client=http_client, **options)
            call_until_it_fails(lambda: client.messages.create(model="m", max_tokens=9, messages=HELLO))

    assert len(calls) == LIMIT


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_transport_that_repeats_connections_is_the_only_layer(is_async) -> None:
    httpx = pytest.importorskip("httpx")
    connections: list[str] = []

    def trace(name: str, details: Any) -> None:
        connections.extend([name] if name == "connection.connect_tcp.started" else [])

    async def atrace(name: str, details: Any) -> None:
        trace(name, details)

    @mulligan.tool(effects="none")
    def fetch() -> Any:
        with httpx.Client(transport=httpx.HTTPTransport(retries=2)) as client:
            return client.get("http://127.0.0.1:9", extensions={"trace": trace})

    @mulligan.tool(effects="none")
    async def afetch() -> Any:
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(retries=2)) as client:
            return await client.get("http://127.0.0.1:9", extensions={"trace": atrace})

    with sandbox(attempts=LIMIT):
        error = call_until_it_fails(afetch if is_async else fetch)

    assert len(connections) == LIMIT
    assert "the httpx transport inside this call made 3 attempts" in error.__notes__[0]
