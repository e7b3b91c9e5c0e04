"""What learning is worth, and whether it does harm: ordinary programs against what is known to be true of them.

    python evals/learning                     # all programs, 50 runs over 14 simulated days, on 2 processes
    python evals/learning --only months       # those whose name contains this
    python evals/learning --examples          # with the first cases of everything that went wrong

Every program is played in three modes side by side. *full* has one store for all runs, *empty* a new store for every
run, *off* plain functions. The clock is simulated, and nothing waits. The tools of a program live in a small world of
its own, which is the same in all modes. Beside a tool stands what is true of its failures: which other call, if any,
would have been the same thing done right.

The judge sees what a user sees: results, `run.status`, the answers that a model reads, notes on exceptions,
`mulligan.drain_notes()` and `Mulligan.suggest`. It counts:

- wrong results: a call returned the result of other arguments, and these are no correction of it;
- regressions: a call that is repaired with an empty memory fails with a full one;
- harm: a call fails, or is refused, that works or is made with an empty memory or without mulligan. The same for runs;
- false recovered: a run is reported as `recovered`, or as `success`, although a failed call never got done;
- wrong advice: concrete advice, at least 50 % sure, that would not have helped. So is what memory tells of privileged
  arguments, and of values that belong to another run;
- real corrections: failures that were corrected in two earlier runs at least, by a correction that the rules of
  learning let be told. How many of them were told that correction, or were repaired? Others are listed by rule;
- how calls and runs ended in the first and in the second week.

Some figures are information and no goals: values executed that only memory knew, lessons that are true of no failure,
and runs that really recovered but are reported as partial.

It exits with 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from learning import programs as programs
from learning.judge import GOALS, Verdicts, add_verdicts
from learning.player import PROGRAMS, Job, play_job
from learning.stage import MODES


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", default="", metavar="NAME", help="programs whose name contains this")
    options.add_argument("--runs", type=int, default=50)
    options.add_argument("--days", type=float, default=14.0)
    options.add_argument("--jobs", type=int, default=2, help="processes")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--json", type=Path, metavar="FILE", help="write all that was counted, with examples")
    options.add_argument("--examples", action="store_true", help="show cases of what went wrong")
    options.add_argument("--list", action="store_true", help="name the programs, and play none")
    choices = options.parse_args()
    names = [name for name in PROGRAMS if choices.only in name]
    if not names:
        sys.exit(f"No program's name contains {choices.only!r}. --list names them.")
    if choices.list:
        for name in names:
            print(f"{name:31} {(PROGRAMS[name].__doc__ or '').splitlines()[0]}")
        return
    began = time.perf_counter()
    verdicts = play_programs(
        [(name, choices.runs, choices.days, choices.seed) for name in names], choices.jobs, choices.examples
    )
    whole = add_verdicts(list(verdicts.values()))
    print_totals(whole)
    seconds = time.perf_counter() - began
    print(f"\n{len(names)} programs, {choices.runs} runs each in {len(MODES)} modes: {seconds:.0f} s")
    if choices.json:
        by_name = {name: one.make_json() for name, one in verdicts.items()}
        data = {"total": whole.make_json(), "missed": whole.list_missed_goals(), "programs": by_name}
        choices.json.write_text(json.dumps(data, indent=1, default=str))
    sys.exit(1 if whole.list_missed_goals() else 0)


def play_programs(jobs: list[Job], processes: int, has_examples: bool) -> dict[str, Verdicts]:
    """Play all programs, and print a line for each as it is done."""
    print(f"{'':31} {'wrong':>6} {'regres':>6} {'':5} {'false':>8} {'wrong':>10} {'corrections':>12} {'runs done':>14}")
    print(
        f"{'program':31} {'result':>6} {'sions':>6} {'harm':>5} {'recov.':>8} {'advice':>10} {'told, due':>12}"
        f" {'full':>5} {'empty':>5} {'off':>5}"
    )
    verdicts: dict[str, Verdicts] = {}
    # Processes that begin anew: nothing of one program is in the memory of the next but what Python has loaded.
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for (name, *_), one in zip(jobs, pool.map(play_job, jobs), strict=True):
            verdicts[name] = one
            print_line(name, one)
            for sort, cases in one.examples.items() if has_examples else ():
                for case in cases:
                    print(f"    {sort}: {case[:200]}")
    return verdicts


def print_line(name: str, one: Verdicts) -> None:
    shares = [
        sum(week.runs_done for week in one.weeks[mode]) / sum(week.runs for week in one.weeks[mode]) for mode in MODES
    ]
    print(
        f"{name:31} {one.wrong_results:6} {one.regressions:6} {one.harm:5}"
        f" {one.false_recovered:3}/{one.runs_with_loss:<4} {one.wrong_advice:5}/{one.advice:<4}"
        f" {one.corrections_met:6}/{one.corrections:<5} {shares[0]:5.0%} {shares[1]:5.0%} {shares[2]:5.0%}",
        flush=True,
    )


def print_totals(whole: Verdicts) -> None:
    shares = {
        "false_recovered": (whole.false_recovered, whole.runs_with_loss),
        "wrong_advice": (whole.wrong_advice, whole.advice),
        "corrections": (whole.corrections_met, whole.corrections),
    }
    missed_goals = whole.list_missed_goals()
    print()
    for name, title, goal in GOALS:
        if name in shares:
            part, all_of_it = shares[name]
            text = f"{part} of {all_of_it}, {part / all_of_it:.1%}" if all_of_it else "none"
        else:
            text = str(getattr(whole, name))
        print(f"{'MISSED' if name in missed_goals else 'ok':8} {title:40} {text:22} goal: {goal}")
    print("\nCorrections from the third occurrence on, told or repaired, by rule:")
    for rule, (due, met) in sorted(whole.by_rule.items()):
        print(f"  {rule:30} {met:5} of {due}")
    print(
        f"\nRuns that really recovered: {whole.runs_recovered}, of which reported otherwise: {whole.unseen_recovered}"
    )
    for pair, count in whole.statuses.most_common():
        print(f"  expected {pair.replace(', ', ', reported ')}: {count}")
    print(f"Values executed that only memory knew, of which the rules allow none: {whole.values_executed}")
    print(f"Lessons made of all runs: {whole.lessons}, of which true of no failure: {whole.wrong_lessons}")
    print(f"Warnings that mulligan logged: {whole.warnings}")
    print(f"\n{'ended well':12} {'calls, week 1':>14} {'week 2':>8} {'runs, week 1':>14} {'week 2':>8}")
    for mode in MODES:
        first, second = whole.weeks[mode]
        print(
            f"{mode:12} {first.calls_done / max(1, first.calls):14.1%} {second.calls_done / max(1, second.calls):8.1%}"
            f" {first.runs_done / max(1, first.runs):14.1%} {second.runs_done / max(1, second.runs):8.1%}"
        )


if __name__ == "__main__":
    main()
