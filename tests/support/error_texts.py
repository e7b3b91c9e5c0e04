"""Files and pages that contain texts of errors: logs, fixtures, documentation, source, sites about errors."""

from __future__ import annotations

import json
from itertools import islice, product

CAUSES = (
    "connection refused",
    "invalid api key",
    "permission denied",
    "no such file or directory: /srv/queue",
    "429 Too Many Requests",
    "503 Service Unavailable",
    "the request timed out after 30 s",
    "command not found: kubectl",
    "unknown tool: pay",
    "rate limit exceeded, retry after 20 s",
)
FORMS = (
    "Error: {cause}\n",
    "Error: {cause}\nError: {cause}\nretrying in 2 s\n",
    "2026-01-04T10:00:00Z ERROR worker {cause}\n2026-01-04T10:00:02Z INFO worker is up\n",
    "ERROR:worker:{cause}\nINFO:worker:retry\n",
    'Traceback (most recent call last):\n  File "worker.py", line 4, in run\nConnectionError: {cause}\n',
    '{{"status": "error", "message": "{cause}"}}',
    '{{"error": {{"code": 401, "message": "{cause}"}}}}',
    '{{"isError": true, "content": [{{"type": "text", "text": "{cause}"}}]}}',
    '{{"success": false, "errors": ["{cause}"]}}',
    "Exit code: 1\n{cause}\n",
    "Output: {cause}\nExit Code: 2\n",
    "<tool_use_error>{cause}</tool_use_error>",
    '# When it says "{cause}"\n\nCheck the address first. Then the name.\n',
    "raise RuntimeError('Error: {cause}')  # seen in production\n",
    "<html><head><title>Error: {cause}</title></head><body><p>Three causes.</p></body></html>",
    "<html><head><title>503 Service Unavailable</title></head><body>{cause}</body></html>",
    "- case: refuses\n  expect: 'Error: {cause}'\n",
    "failed to start: {cause}\n",
    "mcp error -32603: {cause}",
    "npm ERR! {cause}\nnpm ERR! A complete log is in the cache.\n",
)


def build_error_texts(count: int) -> list[str]:
    """Return different texts of files and pages. All JSON among them is valid."""
    texts = [form.format(cause=cause) for cause, form in islice(product(CAUSES, FORMS), count)]
    for text in texts:
        if text.startswith("{"):
            json.loads(text)
    assert len(set(texts)) == count
    return texts
