"""Would a reminder have named the failure that came next? Recorded sessions, cut before a failure that repeats one.

    python evals/reminders.py            the table
    python evals/reminders.py --misses   and what was not named, by kind and tool, on the terminal only

Each call is one turn, since the recordings do not say which calls a model asked for together. Before each failure that
the same tool has met before in the session about the same file, address or program, by its fingerprint, the
conversation is compacted as if there: the reminder must name kind, tool and subject of what comes next. The sessions
are read from ../shared/data.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "calls-dev.jsonl.gz"
sys.path.insert(0, str(ROOT / "src"))

from mulligan.classify.classifier import classify  # noqa: E402
from mulligan.core.records import History, Step  # noqa: E402
from mulligan.learn import tracker  # noqa: E402
from mulligan.prompt.sanitizer import MAX_PATH_CHARS, estimate_prompt_tokens  # noqa: E402
from mulligan.redaction import sanitize  # noqa: E402
from mulligan.transcripts.log_lines import LogLines  # noqa: E402
from mulligan.transcripts.recorded_runs import read_calls  # noqa: E402
from mulligan.transcripts.run_builder import ReaderState  # noqa: E402

AIM = 0.95
ROUNDS = 2000


class Cut:
    """A moment just before a failure that repeats an earlier one."""

    def __init__(self, history: History, kind: str, tool: str, subject: str, is_miss: bool, said: str) -> None:
        self.session = history.run.id
        self.dataset = history.run.agent
        self.kind = kind
        self.tool = tool
        self.is_miss = is_miss
        label = f"- {kind} in {sanitize(tool, MAX_PATH_CHARS)}"
        self.subject = subject
        self.is_named = any(
            line.startswith((f"{label}:", f"{label},")) and subject in line for line in said.splitlines()
        )
        self.tokens = estimate_prompt_tokens(said)


def subject_of(step: Step) -> str:
    """The name of the file, the address or the first word after the program of the command, as the call has it."""
    arguments = step.arguments if isinstance(step.arguments, dict) else {}
    for name in ("file_path", "path", "absolute_path", "notebook_path", "target_file", "filename", "file"):
        if isinstance(path := arguments.get(name), str) and path.strip():
            return sanitize(path.rstrip("/").rpartition("/")[2], 60)
    if isinstance(url := arguments.get("url"), str):
        return sanitize(url.partition("://")[2].partition("?")[0], 30)
    for name in ("command", "cmd", "script", "code"):
        if isinstance(command := arguments.get(name), str) and command.strip():
            return sanitize(command.strip().split("&&")[-1].split()[0].rpartition("/")[2], 30)
    return ""


def cuts(history: History) -> list[Cut]:
    known = tracker.Tracker()
    met: set[tuple[str, str | None, str, str]] = set()
    found = []
    for step in history.steps:
        failure = step.failure
        if step.has_failed and failure is not None:
            subject = subject_of(step)
            what = step.name, step.server, failure.fingerprint, subject
            if what in met:
                here = tracker.from_json(tracker.to_json(known))
                here.compact()
                found.append(
                    Cut(history, str(failure.kind), step.name, subject, tracker.is_empty_lookup(step), here.reminder)
                )
            met.add(what)
        known.observe_step(step)
        known.mark_turn()
    return found


def interval(some: list[Cut]) -> tuple[float, float]:
    """95 % of what chance would give, had other sessions like these been recorded: whole sessions are drawn."""
    by_session: dict[str, list[bool]] = defaultdict(list)
    for cut in some:
        by_session[cut.session].append(cut.is_named)
    sessions = list(by_session.values())
    chance = random.Random(0)
    drawn = []
    for _ in range(ROUNDS):
        sample = [each for session in chance.choices(sessions, k=len(sessions)) for each in session]
        drawn.append(sum(sample) / len(sample))
    drawn.sort()
    return drawn[int(0.025 * ROUNDS)], drawn[int(0.975 * ROUNDS)]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--misses", action="store_true", help="show what was not named, on the terminal only")
    chosen = options.parse_args()
    if not DATA.exists():
        print(f"No data: {DATA} is absent, so there is nothing to measure on.")
        return 0
    found = [cut for history in read_calls(LogLines(DATA), ReaderState(classify)) for cut in cuts(history)]
    print("| repeats of | in sessions | before a repeated failure | named | share | 95 % |")
    print("| --- | --- | --- | --- | --- | --- |")
    parts = [("**all**", found), ("all but looks that found nothing", [cut for cut in found if not cut.is_miss])]
    parts += [(name, [cut for cut in found if cut.dataset == name]) for name in sorted({cut.dataset for cut in found})]
    for name, some in parts:
        named = sum(cut.is_named for cut in some)
        low, high = interval(some)
        sessions = len({cut.session for cut in some})
        print(f"| {name} | {sessions} | {len(some)} | {named} | {named / len(some):.1%} | {low:.1%} to {high:.1%} |")
    print(f"\nThe longest reminder: {max(cut.tokens for cut in found)} tokens.")
    if chosen.misses:
        for what, count in Counter(
            (cut.kind, cut.tool, cut.subject, cut.is_miss) for cut in found if not cut.is_named
        ).most_common():
            print(count, *what)
    return 0 if sum(cut.is_named for cut in found) >= AIM * len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
