"""An MCP server over HTTP, for what no decent server does. Its tools are the methods `call_...` of `Handler`."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlencode

from changing_mcp import NOTIFICATIONS, REQUESTS

NAMES = (
    "echo html forbidden unauthorized overloaded limited moved astray stays broken big big_event dropped lost hang "
    "ask reset nothing bare env tell"
).split()


def list_messages():
    """Return all that a server may send unasked, as it sends it."""
    notifications = [{"method": method, "params": params} for method, params in NOTIFICATIONS]
    requests = [
        {"id": f"s-{index}", "method": method, "params": params} for index, (method, params) in enumerate(REQUESTS)
    ]
    return [{"jsonrpc": "2.0", **message} for message in notifications + requests]


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: FakeHttpServer

    def lower_headers(self):
        return {name.lower(): value for name, value in self.headers.items()}

    def log_message(self, *words):
        pass

    def answer(self, status, body=b"", content_type="application/json", **headers):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def result(self, **result):
        self.answer(200, json.dumps({"jsonrpc": "2.0", "id": self.message["id"], "result": result}, indent=1).encode())

    def begin_events(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def event(self, message, id=None):
        prefix = f"id: {id}\nretry: 10\n" if id else ""
        self.wfile.write(f"{prefix}event: message\ndata: {json.dumps(message)}\n\n".encode())
        self.wfile.flush()

    def text(self, text):
        return {"jsonrpc": "2.0", "id": self.message["id"], "result": {"content": [{"type": "text", "text": text}]}}

    def answer_sign_in(self, body=b""):
        """Play the authorization server. Return whether the request was one for it, or has no valid token."""
        server, origin = self.server, f"http://127.0.0.1:{self.server.server_port}"
        path, _, query = self.path.partition("?")
        values = dict(parse_qsl(query or body.decode("latin-1")))
        if path.startswith("/.well-known/oauth-protected-resource"):
            self.answer(200, json.dumps({"resource": server.url, "authorization_servers": [origin + "/"]}).encode())
        elif path == "/.well-known/oauth-authorization-server":
            endpoints = {name: f"{origin}/{name.split('_')[0]}" for name in
                         ("authorization_endpoint", "token_endpoint", "registration_endpoint")}  # fmt: skip
            abilities = {"response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]}
            self.answer(200, json.dumps({"issuer": origin + "/", **endpoints, **abilities}).encode())
        elif path == "/registration":
            asked = json.loads(body)
            self.answer(201, json.dumps({**asked, "client_id": "us", "token_endpoint_auth_method": "none"}).encode())
        elif path == "/authorization":
            server.sign_ins += 1
            back = urlencode({"code": "c0de-abc", "state": values["state"]})
            self.answer(302, Location=f"{values['redirect_uri']}?{back}")
        elif path == "/token":
            server.grants.append(values["grant_type"])
            server.token = f"acc3ss-{len(server.grants)}"
            refresh = f"r3fresh-{len(server.grants)}"
            reply = {"access_token": server.token, "token_type": "Bearer", "expires_in": 3600, "refresh_token": refresh}
            self.answer(200, json.dumps(reply).encode())
        elif self.headers.get("Authorization") != f"Bearer {server.token}":
            self.answer(401, WWW_Authenticate="Bearer")
        else:
            return False
        return True

    def do_POST(self):
        server = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if server.needs_sign_in and self.answer_sign_in(body):
            return
        self.message = message = json.loads(body)
        server.requests.append((self.path, self.lower_headers(), message))
        if server.answer_everything is not None:
            server.answer_everything(self)
            return
        session = self.headers.get("Mcp-Session-Id")
        method = message.get("method")
        if method == "initialize":
            session = f"session-{len(server.sessions) + 1}"
            server.sessions.append(session)
            result = {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "fake", "version": "1"},
            }
            reply = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
            self.answer(200, reply, Mcp_Session_Id=session)
        elif session not in server.sessions:
            self.answer(404, b"no such session", "text/plain")
        elif "id" not in message or method is None:
            self.answer(202)
            server.answers.append(message)
            if method is None:
                server.has_heard.set()
        elif method == "tools/list":
            schema = {"type": "object", "properties": {"text": {"type": "string"}}}
            self.result(tools=[{"name": name, "inputSchema": schema} for name in NAMES])
        elif method == "tools/call":
            getattr(self, f"call_{message['params']['name']}")(**message["params"].get("arguments") or {})
        else:
            self.result(heard=method)

    def do_GET(self):
        if self.server.needs_sign_in and self.answer_sign_in():
            return
        self.server.requests.append((self.path, self.lower_headers(), None))
        if last := self.headers.get("Last-Event-ID"):
            self.begin_events()
            self.message = self.server.unfinished[last]
            self.event(self.text("after the drop"), id="3")
        elif self.headers.get("Mcp-Session-Id") in self.server.sessions:
            self.begin_events()
            self.event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            self.server.is_closing.wait(60)
        else:
            self.answer(405)

    def do_DELETE(self):
        self.server.requests.append((f"DELETE {self.path}", self.lower_headers(), None))
        self.answer(200)

    def call_echo(self, text=""):
        self.result(content=[{"type": "text", "text": text}])

    def call_tell(self):
        """Send every notification and every request of a server before the answer."""
        self.begin_events()
        for message in list_messages():
            self.event(message)
        self.event(self.text("told"))

    def call_html(self):
        self.answer(200, b"<html><title>Welcome</title><script>alert(1)</script></html>", "text/html; charset=utf-8")

    def call_forbidden(self):
        self.answer(403, b"no", "text/plain")

    def call_unauthorized(self):
        self.answer(401)

    def call_overloaded(self):
        self.answer(503, b"<html>nginx</html>", "text/html")

    def call_limited(self):
        self.server.limits += 1
        if self.server.limits == 1:
            self.answer(429, b"slow down", "text/plain", Retry_After="0")
        else:
            self.call_echo("served")

    def call_astray(self):
        self.answer(307, Location="http://[:99999")

    def call_moved(self):
        self.answer(307, Location=self.server.other_url)

    def call_stays(self):
        if self.path == "/mcp/":
            self.call_echo("here")
        else:
            self.answer(307, Location="/mcp/")

    def call_broken(self):
        self.answer(200, b'{"jsonrpc": "2.0", "id": ')

    def call_bare(self):
        self.answer(200, json.dumps({"jsonrpc": "2.0", "id": self.message["id"]}).encode())

    def call_nothing(self):
        self.answer(202)

    def call_big(self):
        self.call_echo("x" * 10_000_000)

    def call_big_event(self):
        self.begin_events()
        self.event(self.text("x" * 10_000_000))

    def call_dropped(self):
        self.begin_events()
        self.server.unfinished["2"] = self.message
        progress = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "half"}}
        self.event(progress, id="2")

    def call_lost(self):
        self.begin_events()

    def call_reset(self):
        self.close_connection = True
        self.connection.close()

    def call_hang(self):
        self.begin_events()
        self.server.is_closing.wait(60)

    def call_ask(self):
        self.begin_events()
        self.event({"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage", "params": {}})
        self.server.has_heard.wait(30)
        self.event(self.text(json.dumps(self.server.answers[-1])))


class FakeHttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 500

    def __init__(self, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/mcp"
        self.requests = []
        """Path, headers and message of each request."""
        self.sessions = []
        self.answers = []
        self.unfinished = {}
        self.limits = 0
        self.other_url = ""
        self.answer_everything = None
        self.needs_sign_in = False
        self.token = None
        self.sign_ins = 0
        self.grants = []
        self.has_heard = threading.Event()
        self.is_closing = threading.Event()
        self.connections = []

    def process_request(self, request, client_address):
        self.connections.append(request)
        super().process_request(request, client_address)

    def close_connections(self):
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address):
        pass  # the proxy hung up, as some tests want it to


@contextlib.contextmanager
def fake_http_server(port=0):
    server = FakeHttpServer(port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.is_closing.set()
        server.shutdown()
        server.server_close()
        server.close_connections()
