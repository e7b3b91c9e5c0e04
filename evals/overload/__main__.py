"""Compare success and load of failed calls with mulligan and with what it replaces.

python evals/overload                   all scenarios, a table, and exit code 1 if a goal is missed; some minutes
python evals/overload --only outage     scenarios whose name contains a text
python evals/overload --skip-sockets    the simulation alone

A third of the scenarios runs over real sockets with the real libraries (`sockets.py`), the others on a simulated clock.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ["MULLIGAN_HOME"] = tempfile.mkdtemp(prefix="mulligan-overload-")
sys.path.insert(0, str(Path(__file__).parent))

from clients import CONTENDERS, REPLACED, Client, MulliganTurn
from scenarios import LASTING_ERRORS, LOAD_LIMITS, SCENARIOS
from simulation import Result

logging.getLogger("mulligan").setLevel(logging.ERROR)


PROCESSES = 2


def find_misses(name: str, results: dict[str, Result]) -> list[str]:
    """Return the goals that mulligan misses in a scenario."""
    misses = []
    baseline = results[Client.name]
    for contender, result in results.items():
        if not contender.startswith("mulligan"):
            continue
        tolerance = 0.5 if name in LASTING_ERRORS else 0.0
        best = max(results[replaced.name].success for replaced in REPLACED)
        is_compared = name not in LOAD_LIMITS and not name.startswith("brown-out") and contender != MulliganTurn.name
        if is_compared and result.success < best - tolerance:
            misses.append(f"{name}: {contender} succeeds in {result.success:.1f} %, replaced {best:.1f} %")
        if name in LOAD_LIMITS and result.load and baseline.load and result.load > LOAD_LIMITS[name] * baseline.load:
            misses.append(f"{name}: {contender} has {result.load / baseline.load:.2f} times the load")
        if result.innocent is not None and result.innocent < 100:
            misses.append(f"{name}: {contender} harms {100 - result.innocent:.1f} % of the innocent calls")
        if name.startswith("brown-out") and result.recovery is not None and result.recovery > 100:
            misses.append(f"{name}: {contender} has not recovered {result.recovery:.0f} s after it")
    return misses


def describe(result: Result, baseline: Result) -> str:
    text = f"{result.success:.1f}" if result.innocent is None else f"{result.innocent:.1f}i"
    if result.load is not None and baseline.load:
        text += f" x{result.load / baseline.load:.2f}"
    return text


def simulate(name: str) -> tuple[dict[str, Result], float]:
    """Play a scenario with all contenders. Return their results, and the seconds that this took."""
    started = time.monotonic()
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    return {contender.name: scenario.run(contender) for contender in CONTENDERS}, time.monotonic() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="scenarios whose name contains this text")
    parser.add_argument("--skip-sockets", action="store_true", help="run the simulation alone")
    options = parser.parse_args()
    started = time.monotonic()
    names = [contender.name for contender in CONTENDERS]
    print("success in the end, %; i: of the innocent calls; x: load in the outage, of that without retries\n")
    print(f"{'scenario':26}" + "".join(f"{name:>18}" for name in names))
    misses: list[str] = []
    scenario_names = [scenario.name for scenario in SCENARIOS if options.only in scenario.name]
    with ProcessPoolExecutor(PROCESSES) as pool:
        for name, (results, seconds) in zip(scenario_names, pool.map(simulate, scenario_names), strict=True):
            baseline = results[Client.name]
            row = "".join(f"{describe(results[contender], baseline):>18}" for contender in names)
            print(f"{name:26}{row}  {seconds:4.0f} s", flush=True)
            misses += find_misses(name, results)
    if not options.skip_sockets:
        import sockets

        misses += sockets.compare(options.only)
    print(f"\n{time.monotonic() - started:.0f} s")
    print("\n" + ("\n".join(f"missed  {miss}" for miss in misses) or "All goals are met."))
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
