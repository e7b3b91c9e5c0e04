"""An agent asks another program over HTTP: the run there names the one that asked, as a person sees it."""

from __future__ import annotations

import subprocess
import sys

CALLED = """
import http.server
import mulligan

class Desk(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with mulligan.run("called", traceparent=self.headers):
            pass
        mulligan.flush(10)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *about):
        pass

desk = http.server.HTTPServer(("127.0.0.1", 0), Desk)
print(desk.server_port, flush=True)
desk.handle_request()
"""
CALLER = """
import os, urllib.request
import mulligan

with mulligan.run("caller") as run:
    urllib.request.urlopen(urllib.request.Request(os.environ["ADDRESS"], headers=run.headers)).close()
"""


def test_a_run_in_another_program_names_the_run_that_asked_for_it(user):
    desk = [sys.executable, "-c", CALLED]
    with subprocess.Popen(desk, env=user.environment, stdout=subprocess.PIPE, text=True) as called:
        try:
            address = f"http://127.0.0.1:{called.stdout.readline().strip()}/"
            asked = user.runs_program(CALLER, ADDRESS=address)
            assert asked.returncode == 0, asked.stderr
            assert called.wait(60) == 0
        finally:
            called.kill()
    runs = {each["agent"]: each["id"] for each in user.sees("runs")}
    kept = user.sees("show", runs["called"])["run"]
    assert kept["parent"] == runs["caller"]
    assert kept["traceparent"] in user.types("show", runs["called"]).stdout
