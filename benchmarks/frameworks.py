"""What each adapter costs per tool call, beside the framework alone.

    python benchmarks/frameworks.py                      the frameworks that are installed here
    python benchmarks/frameworks.py langchain --rounds 50

A scripted model requests tool calls, then answers: one call in each response, or all of them in the first one. A round
runs the agent without and with the adapter, in random order, and divides the time by the number of tool calls. With one
call in each response, that includes a model call, whose conversation grows. Ratios are medians over the rounds. Most
frameworks need an environment of their own, with the versions of tests/frameworks/constraints.txt.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import importlib.util
import json
import logging
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOME = tempfile.mkdtemp(prefix="mulligan-bench-")
os.environ["MULLIGAN_HOME"] = HOME
SUPPORT = Path(__file__).resolve().parent.parent / "tests" / "support"
sys.path.insert(0, str(SUPPORT))

import mulligan  # noqa: E402

QUESTION = "Find fish."
RunAgent = Callable[[], object]
BuildAgent = Callable[[Any, Any, list[Any], bool], RunAgent]
"""Takes the module of the driver, that of the adapter, the script and whether to use the adapter."""


def search(query: str, top_k: int = 5) -> str:
    """Search the index."""
    return f"{top_k} results for {query}"


def build_langchain(driver: Any, adapter: Any, script: list[Any], is_protected: bool) -> RunAgent:
    from langchain.agents import create_agent

    middleware = [adapter.MulliganMiddleware()] if is_protected else []
    agent = create_agent(driver.ScriptedModel(script=script), [search], middleware=middleware)
    question = {"messages": [{"role": "user", "content": QUESTION}]}
    return lambda: agent.invoke(question, {"recursion_limit": 10 * len(script)})


def build_pydantic_ai(driver: Any, adapter: Any, script: list[Any], is_protected: bool) -> RunAgent:
    from pydantic_ai import Agent, UsageLimits

    capabilities = [adapter.MulliganCapability()] if is_protected else []
    agent = Agent(driver.ScriptedModel(script).as_model(), tools=[search], capabilities=capabilities)
    limits = UsageLimits(request_limit=None)
    return lambda: asyncio.run(agent.run(QUESTION, usage_limits=limits))


def build_openai_agents(driver: Any, adapter: Any, script: list[Any], is_protected: bool) -> RunAgent:
    from agents import Agent, Runner, function_tool

    agent = Agent("searcher", tools=[function_tool(search)], model=driver.script_model(script))
    runner = adapter.MulliganRunner() if is_protected else Runner
    options = {"max_turns": 2 * len(script), "run_config": driver.CONFIG}
    return lambda: asyncio.run(runner.run(agent, QUESTION, **options))


def build_google_adk(driver: Any, adapter: Any, script: list[Any], is_protected: bool) -> RunAgent:
    from google.adk.agents import LlmAgent
    from google.adk.apps import App
    from google.adk.runners import InMemoryRunner

    agent = LlmAgent(name="searcher", model=driver.ScriptedModel(script=script), tools=[search])
    plugins = [adapter.MulliganPlugin()] if is_protected else []
    runner = InMemoryRunner(app=App(name="bench", root_agent=agent, plugins=plugins))
    runner.auto_create_session = True
    return lambda: asyncio.run(driver.collect(runner, QUESTION))


def build_agent_framework(driver: Any, adapter: Any, script: list[Any], is_protected: bool) -> RunAgent:
    from agent_framework import Agent

    client = driver.ScriptedClient(script, function_invocation_configuration={"max_iterations": 2 * len(script)})
    middleware = [*adapter.MulliganMiddlewareList()] if is_protected else []
    agent = Agent(client, tools=[search], middleware=middleware)
    return lambda: asyncio.run(agent.run(QUESTION))


def build_strands(driver: Any, adapter: Any, script: list[Any], is_protected: bool) -> RunAgent:
    from strands import Agent, tool

    plugins = [adapter.MulliganPlugin()] if is_protected else []
    agent = Agent(driver.ScriptedModel(script), tools=[tool(search)], plugins=plugins, callback_handler=None)
    return lambda: agent(QUESTION)


FRAMEWORKS: dict[str, tuple[str, BuildAgent]] = {
    "langchain": ("langchain", build_langchain),
    "pydantic_ai": ("pydantic_ai", build_pydantic_ai),
    "openai_agents": ("agents", build_openai_agents),
    "google_adk": ("google.adk", build_google_adk),
    "agent_framework": ("agent_framework", build_agent_framework),
    "strands": ("strands", build_strands),
}
"""By adapter: the package of the framework, and how to build an agent."""


def is_installed(name: str) -> bool:
    """Return whether the framework, its adapter and its driver are here."""
    package, _ = FRAMEWORKS[name]
    try:
        modules = [package, f"mulligan.integrations.{name}", f"frameworks.{name}_driver"]
        return all(importlib.util.find_spec(module) is not None for module in modules)
    except ModuleNotFoundError:  # a parent package is missing
        return False


SHAPES = {"one call per response": 1, "all calls in one response": 0}
"""Tool calls in each response of the model; 0 for all."""


def measure_run(name: str, is_protected: bool, calls: int, calls_per_response: int) -> float:
    """Return the microseconds of one run per tool call."""
    _, build_agent = FRAMEWORKS[name]
    driver = importlib.import_module(f"frameworks.{name}_driver")
    adapter = importlib.import_module(f"mulligan.integrations.{name}")
    request = importlib.import_module("frameworks.scenarios").Request
    requests = [request("search", {"query": f"fish {number}"}) for number in range(calls)]
    size = calls_per_response or calls
    script = [requests[start : start + size] for start in range(0, calls, size)]
    run_agent = build_agent(driver, adapter, [*script, "done"], is_protected)
    gc.collect()
    start = time.perf_counter_ns()
    run_agent()
    elapsed = time.perf_counter_ns() - start
    mulligan.flush(60)
    return elapsed / 1000 / calls


def measure_rounds(name: str, shape: str, rounds: int, calls: int) -> dict[str, float]:
    """Return medians of the microseconds per tool call: alone, with the adapter, their difference and their ratio."""
    rng = random.Random(7)
    figures: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        order = rng.sample([False, True], 2)
        micros = {is_protected: measure_run(name, is_protected, calls, SHAPES[shape]) for is_protected in order}
        if number:  # the first round warms up
            figures.append((micros[False], micros[True]))
    return {
        "alone_us": statistics.median(alone for alone, _ in figures),
        "adapter_us": statistics.median(protected for _, protected in figures),
        "added_us": statistics.median(protected - alone for alone, protected in figures),
        "ratio": statistics.median(protected / alone for alone, protected in figures),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("frameworks", nargs="*", help=f"default: all that are installed of {', '.join(FRAMEWORKS)}")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--calls", type=int, default=20, help="tool calls of each run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    requested = options.frameworks or list(FRAMEWORKS)
    if unknown := [name for name in requested if name not in FRAMEWORKS]:
        parser.error(f"Unknown framework {unknown[0]!r}. Use one of {', '.join(FRAMEWORKS)}.")
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    names = [name for name in requested if is_installed(name)]
    results = {
        name: {shape: measure_rounds(name, shape, options.rounds, options.calls) for shape in SHAPES} for name in names
    }
    if options.json:
        print(json.dumps(results))
        return 0
    for name, shapes in results.items():
        print(f"{name}\n{'alone, us':>12}{'adapter, us':>14}{'added, us':>12}{'ratio':>8}")
        for shape, result in shapes.items():
            alone, adapter, added, ratio = result.values()
            print(f"{alone:>12.0f}{adapter:>14.0f}{added:>12.0f}{ratio:>8.2f}  {shape}")
    if skipped := [name for name in requested if name not in names]:
        print(f"Not installed here: {', '.join(skipped)}.")
    return 0


if __name__ == "__main__":
    code = main()
    mulligan.flush(60)
    shutil.rmtree(HOME, ignore_errors=True)
    sys.exit(code)
