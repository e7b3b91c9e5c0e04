"""Start the service on a free port and send it three requests. Then run: mulligan runs"""

import json
import socket
import threading
import time
import urllib.error
import urllib.request

import uvicorn
from app import app

import mulligan

listener = socket.create_server(("127.0.0.1", 0))
server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
thread.start()
while not server.started:
    time.sleep(0.01)


def send(path: str) -> None:
    try:
        response = urllib.request.urlopen(f"http://127.0.0.1:{listener.getsockname()[1]}{path}", timeout=30)
    except urllib.error.HTTPError as error:
        response = error
    body = json.load(response)
    print(
        path, response.status, f"{len(body)} orders" if isinstance(body, list) and len(body) > 5 else json.dumps(body)
    )


send("/orders/ann?limit=3")  # times out once, and is retried
send("/orders/ann?limit=50")  # rejected, and repaired to limit=10
send("/balance/eve")  # a person must act: 503, without internals

server.should_exit = True
thread.join(10)
mulligan.flush()
