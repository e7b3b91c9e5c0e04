"""The demo's local HTTP service and MCP server, the tools for them, and a scripted agent that calls them.

Both are real, so the demo can count the payments that were repeated. The agent makes typical model mistakes and follows
the answers of its tools.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from mulligan.api import Mulligan
from mulligan.capture.tool_outcome import ToolOutcome
from mulligan.classify.declared_errors import AgentError
from mulligan.cli.demo_narration import Narrator
from mulligan.core.failure import TookEffect
from mulligan.core.records import Status
from mulligan.learn.session import Session

PAYMENT_TIMEOUT_SECONDS = 0.4
"""Shorter than the service takes to confirm a payment, so that every payment times out."""


class DemoService:
    """HTTP service of the demo. It records its payments."""

    def __init__(self) -> None:
        self.payments: list[str] = []
        self.busy_city = ""
        """The next weather request for this city is rejected with status 429."""
        self._release = threading.Event()
        service = self

        class RequestHandler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.answer(self)

            do_POST = do_GET  # noqa: N815 - the name is http.server's

            def log_message(self, format: str, *args: Any) -> None:
                """Print nothing: the demo prints its own narration."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), RequestHandler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urllib.parse.urlsplit(request.path)
        query = {name: values[0] for name, values in urllib.parse.parse_qs(url.query).items()}
        status, headers = 200, {}
        body: Any = {"error": "Not found"}
        match url.path:
            case "/weather" if query["city"] == self.busy_city:
                self.busy_city = ""
                status, body, headers = 429, {"error": "Too many requests"}, {"Retry-After": "1"}
            case "/weather":
                body = {"city": query["city"], "now": "rain, 4 degrees"}
            case "/forecast" if int(query["days"]) > 7:
                status, body = 400, {"error": "This range is not supported."}
            case "/forecast":
                body = {"city": query["city"], "days": int(query["days"]), "outlook": "brighter"}
            case "/payments" if request.command == "POST":
                self.payments.append(query["invoice"])  # the payment took effect; only its response is missing
                self._release.wait(3 * PAYMENT_TIMEOUT_SECONDS)
                return
            case "/payments":
                body = self.payments
            case _:
                status = 404
        data = json.dumps(body).encode()
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(data)

    def close(self) -> None:
        self._release.set()
        self._server.shutdown()
        self._server.server_close()

    def send_request(self, path: str, method: str = "GET", timeout: float = 30.0, **query: Any) -> Any:
        url = f"{self.address}{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=timeout) as reply:
                return json.loads(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                raise ServiceError(error.code, error.read().decode(), dict(error.headers)) from None


class ServiceError(Exception):
    """Error of the service's client, with status, body and headers like those of common HTTP clients."""

    def __init__(self, status_code: int, body: str, headers: dict[str, str]) -> None:
        super().__init__(body)
        self.status_code = status_code
        self.headers = headers


def build_tools(mulligan: Mulligan, service: DemoService) -> dict[str, Callable[..., Any]]:
    """Wrap the service's endpoints as tools of the agent."""
    send_request = service.send_request

    @mulligan.tool(effects="none")
    def search_docs(query: str, top_k: int = 5) -> list[str]:
        if top_k > 10:
            raise AgentError(f"top_k must be 10 or less, got {top_k}.", hint="Ask for 10, then page.")
        return [f"{query}, page {number}" for number in range(1, top_k + 1)]

    @mulligan.tool(effects="none")
    def weather(city: str) -> Any:
        return send_request("/weather", city=city)

    @mulligan.tool(effects="none")
    def forecast(city: str, days: int) -> Any:
        return send_request("/forecast", city=city, days=days)

    @mulligan.tool  # default effects="once": the tool has side effects
    def pay_invoice(invoice: str, amount: int) -> Any:
        return send_request("/payments", "POST", PAYMENT_TIMEOUT_SECONDS, invoice=invoice, amount=amount)

    @mulligan.tool(effects="none")
    def list_payments() -> Any:
        return send_request("/payments")

    return {tool.__name__: tool for tool in (search_docs, weather, forecast, pay_invoice, list_payments)}


class McpConnection:
    """MCP client of the agent. Between it and the ticket server is `mulligan proxy --repair`."""

    def __init__(self, store: str, folder: Path) -> None:
        proxy = [sys.executable, "-m", "mulligan", "proxy", "--name", "tickets", "--repair", "--store", store]
        server = [sys.executable, str(Path(__file__).with_name("demo_mcp_server.py"))]
        self._process = subprocess.Popen(
            [*proxy, "--timeout", "30", "--", *server],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env={**os.environ, "MULLIGAN_HOME": str(folder)},  # the definitions of its tools are not the user's
        )
        self._last_id = 0
        self._send_request(
            "initialize",
            protocolVersion="2025-11-25",
            capabilities={},
            clientInfo={"name": "demo-agent", "version": "1"},
        )
        self._send_request("tools/list")

    def call(self, session: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return self._send_request("tools/call", name=tool, arguments=arguments, _meta={"sessionId": session})

    def _send_request(self, method: str, **params: Any) -> dict[str, Any]:
        self._last_id += 1
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}) + "\n")
        stdin.flush()
        while line := stdout.readline():
            message = json.loads(line)
            if message.get("id") == self._last_id:
                result: dict[str, Any] = message["result"]
                return result
        raise ConnectionError(f"The proxy of the ticket server exited with code {self._process.wait()}.")

    def close(self) -> None:
        """End the proxy, which stores its records first."""
        self._process.communicate()


class UserRequest(NamedTuple):
    """Request of a simulated user. Each pass has a different one."""

    invoice: str
    city: str
    topic: str

    @property
    def text(self) -> str:
        return f"Pay {self.invoice}, tell me about {self.topic} and the weather in {self.city}, and answer ticket 7."


class PassResult(NamedTuple):
    run: str
    status: Status
    turns: int
    answer: str


class ScriptedAgent:
    """Agent without a model: an ordinary agent loop that plays a script. No pass remembers an earlier one."""

    def __init__(
        self, mulligan: Mulligan, tools: dict[str, Callable[..., Any]], tickets: McpConnection, narrator: Narrator
    ) -> None:
        self._mulligan = mulligan
        self._tools = tools
        self._tickets = tickets
        self._narrator = narrator
        self._messages: list[str] = []
        self._turns: Iterator[Any] = iter(())
        self._session: Session

        @mulligan.model(name="scripted-model")
        def think(messages: list[str], reply: str) -> str:
            return reply

        self._think = think

    def run(self, request_text: str, script: Callable[[], str]) -> PassResult:
        """Run one pass. The script makes its calls, one per turn, and returns the answer for the user."""
        self._messages = [request_text]
        with (
            self._mulligan.session() as self._session,
            self._mulligan.run("demo-agent", context=request_text, session=self._session) as run,
        ):
            self._turns = iter(self._mulligan.turns(limit=20))
            answer = script()
            turn = next(self._turns)
            self._think(self._messages, answer)
            self._turns = iter(())  # ends the last turn within the run
        return PassResult(run.id, run.status, turn.number, answer)

    def _call(self, headline: str, tool: str, failure_comment: str = "", /, **arguments: Any) -> ToolOutcome:
        turn = next(self._turns)
        self._think(self._messages, tool)
        self._narrator.announce_call(headline, tool, arguments)
        outcome: ToolOutcome = turn.call(self._tools, tool, arguments)
        self._narrator.narrate_outcome(outcome, failure_comment)
        self._messages.append(outcome.to_message()[:200])
        return outcome

    def _call_mcp(self, headline: str, tool: str, failure_comment: str = "", /, **arguments: Any) -> dict[str, Any]:
        next(self._turns)
        self._think(self._messages, tool)
        self._narrator.announce_call(headline, tool, arguments)
        result = self._tickets.call(self._session.id, tool, arguments)
        self._narrator.narrate_mcp_result(result, failure_comment)
        self._messages.append(str(result["content"])[:200])
        return result

    def handle_request(self, request: UserRequest) -> str:
        """Play the script of a pass."""
        invoice = request.invoice
        self._call("A rejected argument", "search_docs", query=request.topic, top_k=50)
        self._call("A rate limit with a Retry-After header", "weather", city=request.city)
        comment = "not retried: the payment may have executed. The model must check first"
        payment = self._call(
            "A timeout of a tool with side effects", "pay_invoice", comment, invoice=invoice, amount=120
        )
        paid = "paid"
        if payment.failure is not None and payment.failure.took_effect is TookEffect.UNKNOWN:
            payments = self._call("The model checks first", "list_payments").value
            paid = "paid once" if payments.count(invoice) == 1 else "not confirmed as paid"
        forecast = self._find_forecast(request.city)
        # Messages after which the agent compacts its conversation. Real agents count tokens.
        if is_long := len(self._messages) > 8:
            self._compact()
        self._repeat_forecast(request.city, is_compacted=is_long)
        self._call_mcp("A wrong type, at an MCP server behind mulligan proxy", "read_ticket", ticket="7")
        comment = "reported, not obeyed: the text is quoted as data and sanitized"
        result = self._call_mcp("A hostile error text of the MCP server", "close_ticket", comment, ticket=7)
        ticket = "ticket 7 could not be closed" if result["isError"] else "ticket 7 is closed"
        return f"{invoice} is {paid}, the outlook is {forecast}, {ticket}."

    def _find_forecast(self, city: str) -> str:
        name, days, headline = "get_forecast", 30, "A tool that does not exist"
        for guess in (14, 10, 7, 3):
            outcome = self._call(headline, name, city=city, days=days)
            if outcome.ok:
                return str(outcome.value["outlook"])
            suggestion_text = " ".join(outcome.notes)
            name_match = re.search(r"call (\w+) instead|Did you mean (\w+)\?", suggestion_text)
            days_match = re.search(r"days=(\d+)", suggestion_text)
            if name_match:
                name, headline = name_match[1] or name_match[2], "The message named the right tool"
            if days_match:
                days, headline = int(days_match[1]), "The message named what worked in earlier runs"
            elif not name_match:
                days, headline = guess, "The message named no number of days: the model guesses"
        return "unknown"

    def _compact(self) -> None:
        """Replace the conversation by a summary and the reminder, as agents do when it becomes too long."""
        message_count, chars = len(self._messages), sum(map(len, self._messages))
        summary = "The user asked for a payment, the weather and a ticket. The payment is done."
        self._session.mark_turn()
        self._session.mark_compacted(chars_before=chars, chars_after=len(summary))
        self._messages = [summary, self._session.reminder()]
        self._narrator.narrate_compaction(message_count, self._session.reminder())

    def _repeat_forecast(self, city: str, *, is_compacted: bool) -> None:
        """Ask for another place. Without the reminder, the model would make the same mistakes again."""
        name, days, headline = "forecast", 7, "Another place: the model still knows what worked"
        if is_compacted:
            headline = "The reminder says what worked, so the model does not repeat its mistakes"
            if not re.search(r"call forecast instead; days=7", self._messages[-1]):
                name, days, headline = "get_forecast", 30, "The model repeats its mistake"
        self._call(headline, name, city=f"{city} Airport", days=days)

    def search_with_lesson(self, lesson_text: str) -> str:
        """Play the first search only, with the argument that the lesson in the prompt recommends."""
        top_k = re.search(r"top_k=(\d+)", lesson_text)
        headline = "The prompt has no lesson about this"
        if top_k:
            headline = "The prompt contains the lesson, so the model follows it"
        outcome = self._call(headline, "search_docs", query="delivery times", top_k=int(top_k[1]) if top_k else 50)
        return f"{len(outcome.value)} pages were found."
