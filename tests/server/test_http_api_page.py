"""Every request of docs/http-api.md is sent to a real server, in order, and answered as the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

from servers import served

PAGE = Path(__file__).parents[2] / "docs" / "http-api.md"
NOW = 1_794_700_300_000
EXCHANGE = re.compile(r"(GET|POST) (\S+)\n(.*?)\n?\n(\d{3})\n(.*?)(?=\n\n(?:GET|POST) |\Z)", re.DOTALL)


def read_exchanges():
    for block in re.findall(r"^```\n((?:GET|POST) .*?)\n```$", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        for method, path, sent, status, answer in EXCHANGE.findall(block):
            yield method, path, json.loads(sent) if sent.strip() else None, int(status), json.loads(answer)


def is_like(expected, actual):
    """Return whether the answer has all that the page shows. Three dots stand for any text."""
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(is_like(value, actual.get(name)) for name, value in expected.items())
    if isinstance(expected, list):
        return len(expected) == len(actual) and all(map(is_like, expected, actual))
    if isinstance(expected, str) and "..." in expected:
        return isinstance(actual, str) and actual.startswith(expected.partition("...")[0])
    return expected == actual


def test_the_page_about_the_api_shows_what_a_server_answers(tmp_path):
    exchanges = list(read_exchanges())
    assert len(exchanges) == PAGE.read_text().count("\nPOST /v1") + PAGE.read_text().count("\nGET /v1") > 15
    with served(tmp_path, clock=lambda: NOW) as running:
        admin, answer = running.holding("admin"), {}
        for method, path, sent, status, expected in exchanges:
            path = path.replace("{next}", str(answer.get("next")))
            path = path.replace("{id}", str((answer.get("patterns") or [{}])[0].get("id")))
            response = admin(method, path, sent)
            assert (response.status, is_like(expected, response.json)) == (status, True), (path, response.json)
            answer = response.json
