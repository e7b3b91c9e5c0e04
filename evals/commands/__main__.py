"""Which secrets in shell commands reach a store, an export, a reminder or the dashboard; what else is redacted.

    python evals/commands                      # all batches
    python evals/commands --batch b --list     # with each leak and each changed command
    python evals/commands --json

A batch is a file `batch_X.jsonl.gz`: ordinary commands, 300 with secrets and 1,000 without, some with the output of the
failed command. Its author has read neither the rules of mulligan nor other batches. The first count of a new batch is
written into README.md before any rule is changed for it.

Every command is the argument of a tool that fails with its output, in a session of its own with a compaction. Then
every file of the store, the export of all runs, each reminder and each run's page of the dashboard are searched for the
secrets. A command without secrets counts as changed if its export differs. Addresses of people are redacted on purpose
and counted apart. It exits with 1 if more than 2 % leak or more than 1 % are changed.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import html
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MAX_LEAK_SHARE = 0.02
MAX_CHANGED_SHARE = 0.01


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--batch", nargs="*", help="letters of batches; without it, all")
    options.add_argument("--list", action="store_true", help="print each leak and each changed command")
    options.add_argument("--json", action="store_true")
    arguments = options.parse_args()
    names = sorted(path.name.removesuffix(".jsonl.gz") for path in HERE.glob("batch_*.jsonl.gz"))
    if arguments.batch:
        unknown = [name for name in arguments.batch if f"batch_{name}" not in names]
        if unknown:
            options.error(f"There is no batch {unknown[0]!r}. Batches: {', '.join(n[-1] for n in names)}.")
        names = [f"batch_{name}" for name in arguments.batch]
    results = [measure(name) for name in names]
    if arguments.json:
        print(json.dumps(results, indent=2))
    else:
        print(
            f"{'':<10}{'secrets':>9}{'leaked':>8}{'share':>8}{'harmless':>10}{'changed':>9}{'share':>8}{'addresses':>11}"
        )
        for result in results:
            print(
                f"{result['batch']:<10}{result['secrets']:>9}{len(result['leaks']):>8}{result['leak_share']:>8.1%}"
                f"{result['harmless']:>10}{len(result['changed']):>9}{result['changed_share']:>8.1%}"
                f"{result['addresses']:>11}"
            )
            for line in result["leaks"] + result["changed"] if arguments.list else ():
                print("   ", line)
    is_met = all(r["leak_share"] <= MAX_LEAK_SHARE and r["changed_share"] <= MAX_CHANGED_SHARE for r in results)
    return 0 if is_met else 1


def measure(batch: str) -> dict[str, Any]:
    with gzip.open(HERE / f"{batch}.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        surfaces = record(rows, Path(folder), batch)
    secret_rows = [row for row in rows if row["secrets"]]
    harmless_rows = [row for row in rows if not row["secrets"]]
    leaks = {}
    for row in secret_rows:
        places = [
            name
            for name, text in surfaces[row["id"]].items()
            # The files hold all rows: a short secret may stand there by chance.
            if any(secret in text for secret in row["secrets"] if name != "files" or len(secret) >= 8)
        ]
        if places:
            leaks[row["id"]] = f"{', '.join(places)}: {row['command']}"
    changed_rows = [row for row in harmless_rows if "[redacted " in surfaces[row["id"]]["command"]]
    addresses = [row for row in changed_rows if _is_address_alone(surfaces[row["id"]]["command"])]
    changed = [surfaces[row["id"]]["command"] for row in changed_rows if row not in addresses]
    return {
        "batch": batch,
        "secrets": len(secret_rows),
        "leaks": list(leaks.values()),
        "leak_share": len(leaks) / max(1, len(secret_rows)),
        "harmless": len(harmless_rows),
        "changed": changed,
        "changed_share": len(changed) / max(1, len(harmless_rows)),
        "addresses": len(addresses),
    }


def _is_address_alone(text: str) -> bool:
    return text.count("[redacted ") == text.count("[redacted email]") + text.count("[redacted phone]")


def record(rows: list[dict[str, Any]], folder: Path, batch: str) -> dict[int, dict[str, str]]:
    """Record each command as a failed call. Return the texts of each row by where they were read."""
    os.environ["MULLIGAN_HOME"] = str(folder)
    import mulligan

    store = folder / "commands.db"
    app = mulligan.Mulligan(store=store, agent=batch)

    @app.tool(name="Bash", effects="once")
    def run_command(command: str, output: str) -> None:
        raise RuntimeError(output)

    surfaces: dict[int, dict[str, str]] = {}
    positions: dict[str, int] = {}
    for position, row in enumerate(rows):
        row["id"] = position
        with app.session(f"s{position}") as session, app.run("agent", session=session) as run:
            positions[run.id] = position
            output = row.get("error") or f"Command failed with exit code 1: {row['command']}"
            with contextlib.suppress(RuntimeError):
                run_command(row["command"], output)
            session.mark_compacted()
            surfaces[position] = {"reminder": session.reminder()}
    app.close()
    files = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file()).decode("utf-8", "replace")
    mulligan_command = [sys.executable, "-m", "mulligan"]
    export = folder / "export.jsonl"
    subprocess.run([*mulligan_command, "export", "--level", "local", "--store", store, "-o", export], check=True)
    for line in export.read_text(encoding="utf-8").splitlines()[1:]:
        history = json.loads(line)
        position = positions[history["run"]["id"]]
        call = history["steps"][0]["arguments"]
        surfaces[position] |= {"export": _unescape(line), "command": call["command"], "files": files}
    with _dashboard(mulligan_command, store) as address:
        for run_id, position in positions.items():
            if rows[position]["secrets"]:
                with urllib.request.urlopen(f"{address}/runs/{run_id}") as page:
                    surfaces[position]["dashboard"] = html.unescape(page.read().decode())
    return surfaces


def _unescape(line: str) -> str:
    """Return a line of JSON with the characters that it escapes."""
    return json.dumps(json.loads(line), ensure_ascii=False).replace('\\"', '"').replace("\\\\", "\\")


@contextlib.contextmanager
def _dashboard(mulligan_command: list[str], store: Path) -> Iterator[str]:
    """Run the server on a free port. Yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*mulligan_command, "serve", "--store", str(store), "--port", str(port), "--no-auth"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health"):
                break
            time.sleep(0.1)
        else:
            raise RuntimeError(
                "The server did not start: " + (process.stderr.read().decode() if process.stderr else "")
            )
        yield address
    finally:
        process.terminate()
        process.wait(10)


if __name__ == "__main__":
    sys.exit(main())
