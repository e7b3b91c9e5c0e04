"""What a hook of a coding agent costs, beside `python -c pass`: with and without something to store, and a mean.

    python benchmarks/hook.py              25 rounds
    python benchmarks/hook.py --rounds 50

Each case is a fresh process, as an agent starts it. Cases alternate, so that a busy machine slows all of them alike;
byte code is compiled beforehand, as an installer would have done. The mix is that of the sessions in ../shared/data,
played through the early exit, with a store that fills as it would; where they are absent, the shares that were found
there are used. Exit 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import compileall
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "calls-dev.jsonl.gz"
SOURCE = ROOT / "src"
sys.path.insert(0, str(SOURCE))

FOUND, FOUND_SPOOLED = 0.05, 0.1
"""The shares of events that opened the store and that were spooled, where they cannot be counted here."""
EARLY, SPOOLED, STORED, SLOWEST, MEAN = 1.5, 5.0, 8.0, 1000.0, 2.0
"""Targets: times `python -c pass` in CPU; the fourth in milliseconds by the clock."""


@dataclass
class Mix:
    """Events of recorded sessions by what they need: nothing, the file of successes after a failure, or the store."""

    early: list[bytes] = field(default_factory=list)
    spooled: list[bytes] = field(default_factory=list)
    stored: list[bytes] = field(default_factory=list)

    @property
    def total(self) -> int:
        return len(self.early) + len(self.spooled) + len(self.stored)


def events() -> Iterator[bytes]:
    """What Claude Code would have told its hooks: each call a batch of its own, failures once more by themselves."""
    session = ""
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        for line in lines:
            call = json.loads(line)
            if call["dataset"] != "claude-code-sessions":
                continue
            if call["run_id"] != session:
                if session:
                    yield _event(session, "SessionEnd", reason="other")
                session = call["run_id"]
            id = f"toolu_{call['seq']}"
            about = {"tool_name": call["tool"], "tool_input": call["parameters"], "tool_use_id": id}
            said = call["error"] or call["result_excerpt"] or ""
            if call["outcome"] == "failure" and "<tool_use_error>" not in said:
                yield _event(session, "PostToolUseFailure", **about, error=said, is_interrupt=False)
            yield _event(session, "PostToolBatch", tool_calls=[{**about, "tool_response": said}])
    yield _event(session, "SessionEnd", reason="other")


def _event(session: str, name: str, **fields: Any) -> bytes:
    about = {"session_id": session.replace(":", "-"), "cwd": "/src/shop", "hook_event_name": name}
    return json.dumps({**about, **fields}, separators=(",", ":")).encode()


def played(home: Path) -> Mix:
    """The whole mix, played in this process: whether an event needs the store depends on earlier ones."""
    os.environ["MULLIGAN_HOME"] = str(home)
    from mulligan.hooks import event_processing
    from mulligan.hooks.main import has_only_successes, should_process
    from mulligan.hooks.success_spool import spool_successes

    mix = Mix()
    for event in events():
        if not should_process("claude-code", event):
            mix.early.append(event)
        elif has_only_successes("claude-code", event) and spool_successes("claude-code", event):
            mix.spooled.append(event)
        else:
            event_processing.process_event("claude-code", event)
            mix.stored.append(event)
    return mix


def made_up() -> Mix:
    """The same without recordings."""
    mix = Mix()
    for number in range(20):
        about = {"tool_input": {"command": f"make part{number}"}, "tool_use_id": f"toolu_{number}"}
        said = f"Exit code 2\nmake: *** [part{number}] Error 2"
        mix.early.append(_event("a", "PostToolBatch", tool_calls=[{"tool_name": "Read", **about, "tool_response": ""}]))
        mix.stored.append(_event("b", "PostToolUseFailure", tool_name="Bash", **about, error=said))
        mix.spooled.append(
            _event("b", "PostToolBatch", tool_calls=[{"tool_name": "Bash", **about, "tool_response": ""}])
        )
    return mix


def installed(home: Path) -> Path:
    """A folder as pip leaves it, with mulligan next to its dependency: an editable install would start `site` first."""
    folder = home / "site-packages"
    folder.mkdir()
    (folder / "mulligan").symlink_to(SOURCE / "mulligan")
    (folder / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    return folder


def cost(command: list[str], given: bytes, home: Path) -> tuple[float, float]:
    """CPU and wall milliseconds of one process."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "MULLIGAN_HOME": str(home)}
    started = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.write(given)
    process.stdin.close()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return 1000 * (usage.ru_utime + usage.ru_stime), 1000 * wall


def spread(some: list[bytes], count: int) -> list[bytes]:
    """So many of them, from all over."""
    return [some[len(some) * number // count] for number in range(count)]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=25)
    rounds = options.parse_args().rounds
    compileall.compile_dir(SOURCE, quiet=2)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        mix = played(home) if DATA.exists() else made_up()
        hook = [sys.executable, "-ESP", str(installed(home) / "mulligan" / "hooks" / "start.py"), "claude-code"]
        bare: list[float] = []
        first: list[float] = []
        spooled: list[float] = []
        second: list[tuple[float, float]] = []
        # Only failures: an end of a session whose files are removed already would exit early.
        failures = [event for event in mix.stored if b"PostToolUseFailure" in event]
        samples = zip(*(spread(each, rounds) for each in (mix.early, mix.spooled, failures)), strict=True)
        for number, (easy, success, hard) in enumerate(samples):
            fresh = hard.replace(b'"toolu_', f'"toolu_{number}_'.encode())  # or it would be known already
            bare.append(cost([sys.executable, "-c", "pass"], b"", home)[0])
            first.append(cost(hook, easy, home)[0])
            second.append(cost(hook, fresh, home))
            # A success of the session and the tool that have just failed.
            again = json.loads(success)
            for call in again["tool_calls"]:
                call |= {"tool_name": json.loads(hard)["tool_name"], "tool_use_id": f"toolu_{number}_again"}
            again["session_id"] = json.loads(hard)["session_id"]
            spooled.append(cost(hook, json.dumps(again).encode(), home)[0])
        faults = home / "hooks" / "faults"
        if faults.exists():
            print(f"error: the hook failed: {faults.read_text().splitlines()[-1]}", file=sys.stderr)
            return 2
    unit = statistics.median(bare)
    easy_cpu, hard_cpu = statistics.median(first), statistics.median(cpu for cpu, _ in second)
    spooled_cpu = statistics.median(spooled)
    share, waiting = FOUND, FOUND_SPOOLED
    if DATA.exists():
        share, waiting = len(mix.stored) / mix.total, len(mix.spooled) / mix.total
    mean = (1 - share - waiting) * statistics.mean(first) + waiting * statistics.mean(spooled)
    mean += share * statistics.mean(cpu for cpu, _ in second)
    slowest = max(wall for _, wall in second)
    print("| | CPU ms | times `python -c pass` | target |")
    print("| --- | --- | --- | --- |")
    print(f"| python -c pass | {unit:.1f} | 1.00 | |")
    print(f"| nothing to store | {easy_cpu:.1f} | {easy_cpu / unit:.2f} | {EARLY} |")
    print(f"| a success after a failure | {spooled_cpu:.1f} | {spooled_cpu / unit:.2f} | {SPOOLED} |")
    print(f"| something to store | {hard_cpu:.1f} | {hard_cpu / unit:.2f} | {STORED} |")
    print(f"| mean of the mix | {mean:.1f} | {mean / statistics.mean(bare):.2f} | {MEAN} |")
    print(f"\n{share:.1%} of the events open the store, {waiting:.1%} are successes after a failure.")
    print(f"The slowest took {slowest:.0f} ms by the clock.")
    is_met = (
        easy_cpu <= EARLY * unit
        and spooled_cpu <= SPOOLED * unit
        and hard_cpu <= STORED * unit
        and mean <= MEAN * statistics.mean(bare)
        and slowest < SLOWEST
    )
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
