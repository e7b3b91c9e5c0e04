"""Play small worlds with a scripted agent and with what people use today against failures, and print a table.

python evals/peers                      all worlds, 2 seeds; the first half minute imports the contenders
python evals/peers --only outage        worlds whose name or group contains a text
python evals/peers --contender lang     contenders whose name contains a text
python evals/peers --seeds 4            more seeds; every second one has the cautious model
python evals/peers --json               every figure of every world, as JSON

Waiting is simulated: README.md says how, and what the scripted model does.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import json
import logging
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["MULLIGAN_HOME"] = tempfile.mkdtemp(prefix="mulligan-peers-")
os.environ.pop("MULLIGAN_STORE", None)
sys.path.insert(0, str(Path(__file__).parent))

from simulated_clock import clock, read_real_clock  # installs the clock: before contenders are imported

# isort: split
from contenders import CONTENDERS, VERSIONS, Contender
from model_server import ModelServer, start_model_server
from results import Result, judge, print_totals, print_worlds
from scripted_model import ScriptedModel
from service import FaultScript, Service, bind_tools
from worlds import DAY_SECONDS, WORLDS, World

PROCESSES = 2
DEFAULT_SEEDS = 2
COMPACTED = "Summary of the conversation so far: the first part of the task was worked on. Go on with the second part."


def play(world: World, contender: type[Contender], seed: int, server: ModelServer) -> Result:
    """Play all conversations of a world with one contender."""
    random.seed(seed)
    result = Result()
    server.reset_counts()
    server.faults = FaultScript(world.faults, seed)
    server.window = world.window
    slept_before = clock.slept
    every_goal = tuple(goal for goals in world.conversations for goal in goals)
    service = Service(every_goal, server.faults, has_inner_retries=world.has_inner_retries)
    agent = contender(server.url, bind_tools(service), needs_json=bool(world.answer))
    try:
        for number, goals in enumerate(world.conversations):
            server.model = ScriptedModel(goals, bool(seed % 2), world.is_parallel, world.answer, world.right_answer)
            is_compacted = bool(world.later_goals and number)
            if number:
                clock.advance(60.0 if is_compacted else DAY_SECONDS)
            try:
                text = agent.converse(COMPACTED if is_compacted else "Do the task.", is_compacted=is_compacted)
            except Exception as error:  # noqa: BLE001 - the program of the contender ends with an error of any type
                text = None
                result.errors.append(f"{type(error).__name__}: {str(error)[:200]}")
            result.texts.append(text)
    finally:
        agent.close()
    judge(world, result, service)
    result.turns, result.tokens, result.requests = server.turns, server.tokens, server.requests
    result.waited = clock.slept - slept_before
    return result


def play_world(name: str, contenders: Sequence[str], seeds: int) -> dict[str, Result]:
    """Play a world with contenders, in a process of the pool. Return the sums over the seeds."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    server = _serve_once()
    world = next(world for world in WORLDS if world.name == name)
    played = [contender for contender in CONTENDERS if contender.name in contenders]
    return {
        contender.name: sum((play(world, contender, seed, server) for seed in range(seeds)), Result())
        for contender in played
    }


@functools.cache
def _serve_once() -> ModelServer:
    return start_model_server()


def select(only: str, texts: Iterable[str]) -> bool:
    return any(only.lower() in text.lower() for text in texts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="worlds whose name or group contains this text")
    parser.add_argument("--contender", default="", help="contenders whose name contains this text")
    parser.add_argument(
        "--seeds", type=int, default=DEFAULT_SEEDS, help=f"plays of each world (default {DEFAULT_SEEDS})"
    )
    parser.add_argument("--processes", type=int, default=PROCESSES, help=f"processes to play in (default {PROCESSES})")
    parser.add_argument("--json", action="store_true", help="print every figure as JSON")
    options = parser.parse_args()
    worlds = [world for world in WORLDS if select(options.only, (world.name, world.group))]
    names = [contender.name for contender in CONTENDERS if select(options.contender, [contender.name])]
    if not worlds or not names:
        parser.error("no world or no contender has this text")
    started = read_real_clock()
    results: dict[str, dict[str, Result]] = {}
    with concurrent.futures.ProcessPoolExecutor(min(options.processes, len(worlds))) as pool:
        futures = [pool.submit(play_world, world.name, names, options.seeds) for world in worlds]
        for number, (world, future) in enumerate(zip(worlds, futures, strict=True), start=1):
            results[world.name] = future.result()
            seconds = read_real_clock() - started
            print(f"{number}/{len(worlds)}  {seconds:4.0f} s  {world.group}: {world.name}", file=sys.stderr, flush=True)
    if options.json:
        rows: list[dict[str, Any]] = [
            {"world": world.name, "group": world.group, "contender": name, **result.to_json()}
            for world in worlds
            for name, result in results[world.name].items()
        ]
        print(json.dumps(rows, indent=1))
        return 0
    print(f"{len(worlds)} worlds, {options.seeds} seeds; " + ", ".join(f"{name} {version(name)}" for name in VERSIONS))
    print_worlds(worlds, results)
    print_totals(worlds, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
