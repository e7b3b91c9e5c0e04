"""Produces the error texts of the seeds by running the programs: what a seed says is what the program says.

    python scripts/seeds                    every case that can be run here, and which seed speaks of it
    python scripts/seeds git-push --show    those whose name begins so, with the text
    python scripts/seeds --record           writes the texts to tests/learn/seed_texts.json

What is not installed here is passed over, with its name. $PY is the Python whose packages are used (requests, pytest,
chromadb ...), $TSC the TypeScript compiler, $SERVERS where `scripts/mcp_servers` has put MCP servers. Nothing leaves
this machine; a case that would ask a registry is asked to work offline.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TEXTS = ROOT / "tests" / "learn" / "seed_texts.json"
sys.path[:0] = [str(HERE), str(ROOT / "src")]

import coding_tools  # noqa: E402
import places  # noqa: E402
import tool_servers  # noqa: E402

from mulligan.classify.classifier import classify  # noqa: E402
from mulligan.learn.seeds import load_seeds, match_seeds  # noqa: E402


class Absent(Exception):
    """Something that a case needs is not installed here."""


class Said(NamedTuple):
    """What a program said, and with which exit code it ended; of a tool's answer None."""

    tool: str
    text: str
    code: int | None = None

    def as_told(self) -> str:
        """As a coding agent hands it to its model."""
        return f"Exit code {self.code}\n{self.text}" if self.code else self.text


def main() -> None:
    asked = argparse.ArgumentParser(description="Produces the error texts of the seeds.")
    asked.add_argument("names", nargs="*", help="cases, by the beginning of their names")
    asked.add_argument("--show", action="store_true", help="print the texts")
    asked.add_argument("--record", action="store_true", help="write the texts into the tests")
    given = asked.parse_args()
    cases = tomllib.loads((HERE / "cases.toml").read_text())
    recorded = json.loads(TEXTS.read_text()) if TEXTS.exists() else {}
    known = {lesson.id: name for name, lesson in load_seeds().items()}
    bad = 0
    with places.Services() as services:
        for name, case in cases.items():
            if given.names and not name.startswith(tuple(given.names)):
                continue
            try:
                said = _said(case, services)
            except Absent as absent:
                print(f"  passed over  {name}: {absent} is not here")
                continue
            failure = classify(source="tool", tool=said.tool, text=said.as_told(), is_error=True)
            found = match_seeds(load_seeds().values(), said.tool, failure)
            wanted = case.get("seed", name)
            is_right = bool(found) and known[found[0].id] == wanted
            bad += not is_right
            told = known[found[0].id] if found else "none"
            print(f"  {'ok         ' if is_right else 'DIFFERENT  '}  {name}: {failure.kind}, {told}")
            if given.show or not is_right:
                print("\n".join(f"      {line[:200]}" for line in said.text.splitlines()[:30]))
            recorded[name] = {"seed": wanted, "tool": said.tool, "text": said.as_told()}
    if given.record:
        kept = {name: recorded[name] for name in cases if name in recorded}
        TEXTS.write_text(json.dumps(kept, indent=1, ensure_ascii=True) + "\n")
    print(f"{bad} of the cases are not as their seeds say." if bad else "Every case is as its seed says.")
    sys.exit(1 if bad else 0)


def _said(case: Mapping[str, Any], services: places.Services) -> Said:
    if "server" in case:
        with places.folder() as folder:
            text = tool_servers.answer(case["server"], case["tool"], case["arguments"], folder)
            if text is None:
                raise Absent(f"the MCP server {case['server']}")
            return Said(f"{case['server']}.{case['tool']}", places.neutral(text, folder))
    if "agent" in case:
        text = coding_tools.answer(case["agent"], case["calls"])
        if text is None:
            raise Absent(case["agent"])
        return Said(case["calls"][-1][0], text)
    for missing in _missing(case):
        raise Absent(missing)
    return _run(case, services)


def _missing(case: Mapping[str, Any]) -> Iterator[str]:
    for program in case.get("needs", ()):
        if shutil.which(os.path.expandvars(program)) is None:
            yield program
    module = case.get("module")
    if module and subprocess.run([places.PYTHON, "-c", f"import {module}"], capture_output=True).returncode:
        yield f"the Python package {module}"
    if case.get("root") and os.geteuid() != 0:
        yield "root"


def _run(case: Mapping[str, Any], services: places.Services) -> Said:
    with places.folder() as folder, tempfile.TemporaryDirectory() as home:
        environment = places.environment(Path(home))
        if case.get("postgres"):
            found = services.postgres()
            if found is None:
                raise Absent("PostgreSQL")
            environment |= found
        with services.answering(case.get("http"), bool(case.get("https"))) as port:
            environment["PORT"] = str(port)
            places.shell(places.HELPERS + case.get("before", ":"), folder, environment)
            done = places.shell(case["run"], folder, environment)
        text = places.neutral(done.stdout, folder).replace(home, "/home/dev")
        return Said("Bash", text, done.returncode)


if __name__ == "__main__":
    main()
