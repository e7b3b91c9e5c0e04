"""Build the corpus: run the servers, libraries and programs, and store their responses.

python evals/response_corpus      # needs the dependency group `responses`; Node's packages are optional

Node's frameworks are used if they were installed before:
`npm install --prefix build/node express fastify koa @hapi/hapi @hapi/boom`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "evals"), str(ROOT / "src")]  # last: evals/responses.py must not hide a package of that name

from response_corpus import innocent, python_servers, services, tools  # noqa: E402
from response_corpus.rows import FILE, Row, write_rows  # noqa: E402


def serve_node() -> Iterator[Row]:
    """Yield the bodies of Node's web frameworks, where they are installed under `build/node`."""
    folder = ROOT / "build" / "node"
    script = folder / "node_servers.mjs"
    if not folder.exists() or shutil.which("node") is None:
        raise ImportError("build/node is absent")
    shutil.copy(Path(__file__).parent / "node_servers.mjs", script)  # modules are found beside the script
    output = subprocess.run(["node", script], capture_output=True, text=True, timeout=60, cwd=folder)
    print(output.stderr, end="", file=sys.stderr)
    for source, case, status, body in map(json.loads, output.stdout.splitlines()):
        yield from python_servers.read_body(source, case, status, body)


PRODUCERS = (
    *python_servers.SERVERS, serve_node, *services.PRODUCERS, tools.return_errors, tools.run_commands,
    *innocent.PRODUCERS,
)  # fmt: skip


def main() -> int:
    rows: list[Row] = []
    for produce in PRODUCERS:
        before = len(rows)
        try:
            rows.extend(produce())
        except ImportError as error:
            print(f"{produce.__name__}: skipped, {error}", file=sys.stderr)
        print(f"{produce.__name__:22} {len(rows) - before:5} rows")
    stored = write_rows(rows)
    counts = Counter(row.is_error for row in rows)
    print(f"{stored} different rows in {FILE.name} of {counts[True]} errors and {counts[False]} successes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
