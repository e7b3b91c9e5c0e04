"""Compare success and load of failed calls with mulligan and with what it replaces.

python evals/overload                   all scenarios, tables, and exit code 1 if a goal is missed; about 8 minutes
python evals/overload --only outage     scenarios whose name contains a text
python evals/overload --skip-sockets    the simulation alone

All scenarios run on a simulated clock. A third of them, marked `s`, also runs over real sockets in real time, with the
real libraries (`sockets.py`).
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

from clients import CONTENDERS, REPLACED, Client, MulliganClient, MulliganTurn, ProviderClient, SparseClient, Stamina
from scenarios import CONTRADICTIONS, LASTING_ERRORS, LOAD_LIMITS, OVER_SOCKETS, RARE_CALLS, SCENARIOS
from simulation import Result, Scenario

logging.getLogger("mulligan").setLevel(logging.ERROR)


PROCESSES = 2


def find_misses(scenario: Scenario, results: dict[str, Result]) -> list[str]:
    """Return the goals that mulligan misses in a scenario."""
    name, misses = scenario.name, []
    baseline = results[Client.name]
    for contender, result in results.items():
        if not contender.startswith("mulligan"):
            continue
        tolerance = 0.5 if name in LASTING_ERRORS else 0.0
        best = max(results[replaced.name].success for replaced in REPLACED)
        is_compared = scenario.is_short and not name.startswith("brown-out") and contender != MulliganTurn.name
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


def print_rare_calls() -> None:
    """Print what a lower load in a process that calls once a minute would cost: a later answer after each outage."""
    contenders = (Client, ProviderClient, Stamina, MulliganClient, SparseClient)
    print("\nRare calls: success, load, and seconds from the end of the outage to the answer")
    print(f"{'scenario':28}" + "".join(f"{contender.name:>22}" for contender in contenders))
    for scenario in RARE_CALLS:
        results = [scenario.run(contender) for contender in contenders]
        cells = [f"{describe(result, results[0])} {result.delay:.1f} s" for result in results]
        print(f"{scenario.name:28}" + "".join(f"{cell:>22}" for cell in cells), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="scenarios whose name contains this text")
    parser.add_argument("--skip-sockets", action="store_true", help="run the simulation alone")
    options = parser.parse_args()
    started = time.monotonic()
    names = [contender.name for contender in CONTENDERS]
    print("success in the end, %; i: of the innocent calls; x: load in the outage, of that without retries")
    print("(s): also over sockets\n")
    print(f"{'scenario':28}" + "".join(f"{name:>18}" for name in names))
    misses: list[str] = []
    contradictions: list[str] = []
    scenarios = [scenario for scenario in SCENARIOS if options.only in scenario.name]
    with ProcessPoolExecutor(PROCESSES) as pool:
        played = pool.map(simulate, [scenario.name for scenario in scenarios])
        for scenario, (results, seconds) in zip(scenarios, played, strict=True):
            baseline = results[Client.name]
            row = "".join(f"{describe(results[contender], baseline):>18}" for contender in names)
            name = f"{scenario.name}{' (s)' if scenario.name in OVER_SOCKETS else ''}"
            print(f"{name:28}{row}  {seconds:4.0f} s", flush=True)
            found = find_misses(scenario, results)
            if reason := CONTRADICTIONS.get(scenario.name):
                contradictions += [f"{miss}\n    {reason}" for miss in found]
            else:
                misses += found
    if any(options.only in scenario.name for scenario in RARE_CALLS):
        print_rare_calls()
    if not options.skip_sockets:
        import sockets

        misses += sockets.compare(options.only)
    print(f"\n{time.monotonic() - started:.0f} s")
    print("\n" + ("\n".join(f"missed  {miss}" for miss in misses) or "All goals are met that the rule allows."))
    print("\n".join(f"excluded by the rule  {miss}" for miss in contradictions))
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
