"""Assign each test to one tier. `make test` runs the quick tier; CONTRIBUTING.md lists the others.

A mark on the test or its module decides. Without one, the parameters, the file and the fixtures decide, in this order.
A test that none of them names is quick. Quick tests must not start a Python process or a server: `check_tier` of
`tests/conftest.py` fails those that do.

With `MULLIGAN_TEST_REQUIRED=1`, a skipped test fails, unless `OPTIONAL_SKIPS` has its reason.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

TIERS = (
    "quick", "slow", "learning", "contracts", "postgres", "durability", "safety",
    "providers", "frameworks", "browser", "api", "mcp", "agents", "otlp",
)  # fmt: skip
FOLDERS = {
    "agents": "agents",
    "api": "api",
    "browser": "browser",
    "frameworks": "frameworks",
    "otlp": "otlp",
    "providers": "providers",
    "store/postgres": "postgres",
}
FILES = {
    "contracts": ("test_contracts.py",),
    "durability": (
        "core/test_fork_safety.py", "stories/test_fifty_writers.py", "stories/test_gevent.py",
        "stories/test_nothing_lost.py", "stories/test_proxy_without_store.py", "stories/test_server_killed.py",
    ),
    "learning": (
        "cli/test_lessons.py", "cli/test_seed.py", "proxy/test_tools.py", "server/test_lesson_routes.py",
        "stories/test_memory.py", "stories/test_told_beforehand.py",
    ),
    "mcp": (
        "mcp/test_installed_entry.py", "mcp/test_mcp_server.py", "mcp/test_real_http_servers.py",
        "mcp/test_real_servers.py", "mcp/test_remote_servers.py", "mcp/test_same_answers.py",
        "mcp/test_transparency.py",
    ),
    "postgres": (
        "cli/test_postgres_upkeep.py", "store/postgres/test_postgres_copy.py", "stories/test_behind_a_balancer.py",
        "stories/test_postgres.py", "test_postgres_server.py",
    ),
    "safety": (
        "cli/test_installed_entries.py", "cli/test_tenant_matrix.py", "proxy/test_server.py", "proxy/test_pins.py",
        "server/test_access.py", "server/test_bodies.py", "server/test_sign_in.py", "stories/test_canaries.py",
        "stories/test_recovered_calls.py", "stories/test_reflection.py",
    ),
    "slow": (
        "cli/test_mcp_server_config.py", "cli/test_replay.py", "cli/test_several_servers.py", "cli/test_stats.py",
        "cli/test_tail.py", "dashboard/test_alert_pages.py", "dashboard/test_definitions.py", "dashboard/test_pages.py",
        "hooks/test_main.py",
        "hooks/test_success_spool.py",
        "proxy/test_listener.py",
        "proxy/test_relay.py", "proxy/test_server_group.py",
        "proxy/test_tool_calls.py", "report/test_resources.py", "server/test_ingest.py", "server/test_opentelemetry.py",
        "server/test_decisions.py", "server/test_http_api_page.py", "server/test_partial_runs.py",
        "server/test_queries.py",
        "store/test_remote.py", "test_pytest_plugin.py",
    ),
}  # fmt: skip
FIXTURES = {
    "golden_server": "contracts", "postgres_server": "postgres", "with_postgres": "postgres", "serving": "slow",
    "user": "slow",
}  # fmt: skip
STORES = {"postgres": "postgres", "postgresql": "postgres", "shared_database": "postgres", "remote": "slow"}
STORE_PARAMETERS = ("store", "world", "pair", "sort")

IS_EVERY_TEST_REQUIRED = os.environ.get("MULLIGAN_TEST_REQUIRED") == "1"
"""Read here, before a test gets an environment of its own."""
APART = (
    "agent_framework", "claude_agent_sdk", "crewai", "dspy", "google.adk", "langchain_mcp_adapters",
    "llama_index", "smolagents", "strands", "workflows",
)  # fmt: skip
"""Packages that cannot be installed beside other frameworks."""
OPTIONAL_SKIPS = {
    "for root": "CI runs as root, whom no mode of a file stops",
    "no IPv6 here": "not every machine has it",
    "needs Citus": "Citus is no package of PyPI, npm or Debian: make test-cluster",
    "root may": "CI runs as root, whom no mode of a file stops",
    **dict.fromkeys(
        [f"could not import '{package}" for package in APART], "in an environment of its own: make test-adapters"
    ),
}
"""Words of a skip's reason that are accepted although every test is required, and why."""

EXTRA_TIERS = ("agents", "api", "browser", "frameworks", "mcp", "otlp", "providers")
"""Tiers that need packages of their own. The others neither import their files nor report what is missing for them."""

TESTS = Path(__file__).parents[1]
TIER_OF_FILE = {name: tier for tier, names in FILES.items() for name in names}


def find_tier_of_path(path: Path) -> str | None:
    """Return the tier that a test file has because of its name or folder."""
    relative = path.relative_to(TESTS)
    names = [path.as_posix() for path in (relative, *relative.parents)]
    return next((tier for name in names if (tier := TIER_OF_FILE.get(name) or FOLDERS.get(name))), None)


def find_tier(item: pytest.Item) -> str:
    """Return the tier of a test; raise if its marks name several."""
    marked = sorted({mark.name for mark in item.iter_markers() if mark.name in TIERS})
    if len(marked) > 1:
        raise pytest.UsageError(f"{item.nodeid} belongs to one tier, not to {' and '.join(marked)}")
    if marked:
        return marked[0]
    callspec = getattr(item, "callspec", None)
    parameters = callspec.params if callspec is not None else {}
    fixtures = getattr(item, "fixturenames", ())
    candidates = (
        *(STORES.get(parameters.get(name)) for name in STORE_PARAMETERS),
        find_tier_of_path(item.path),
        *(FIXTURES.get(name) for name in fixtures),
    )
    return next((tier for tier in candidates if tier is not None), "quick")


def is_property(item: pytest.Item) -> bool:
    """Whether Hypothesis makes up the input of this test."""
    return bool(getattr(getattr(item, "obj", None), "is_hypothesis_test", False))


def assign_tiers(items: Sequence[pytest.Item], max_examples: int | None) -> None:
    """Mark each test with its tier, and each quick property as `property`; lower their numbers of examples."""
    for item in items:
        tier = find_tier(item)
        if item.get_closest_marker(tier) is None:
            item.add_marker(tier)
        if is_property(item):
            if tier == "quick":
                item.add_marker("property")
            if max_examples is not None:
                limit_examples(item, max_examples)
    started.clear()


def limit_examples(item: pytest.Item, count: int) -> None:
    """Let a property try at most this many examples, whatever its own settings say."""
    test: Any = getattr(item, "obj")  # noqa: B009 - not every item has one
    if hasattr(test, "_hypothesis_state_machine_class"):
        owner, name = getattr(item, "cls"), "settings"  # noqa: B009
    else:
        owner, name = getattr(test, "__func__", test), "_hypothesis_internal_use_settings"
    current: settings = getattr(owner, name)
    setattr(owner, name, settings(current, max_examples=min(count, current.max_examples)))


def is_left_out(path: Path, markexpr: str) -> bool:
    """Whether a file or folder belongs to a tier with packages of its own, which `-m` does not select."""
    return bool(markexpr) and find_tier_of_path(path) in {*EXTRA_TIERS} - {*re.findall(r"\w+", markexpr)}


def reject_skip(report: pytest.CollectReport | pytest.TestReport) -> None:
    """Let a skipped test or file fail, unless its reason is optional."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if any(words in reason for words in OPTIONAL_SKIPS):
        return
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid} may not be skipped with MULLIGAN_TEST_REQUIRED=1. {reason}"


started: list[str] = []
"""Python processes and servers since the last check. `check_tier` empties it after each test."""


def _observe(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.bind":
        started.append("a server")
    elif event == "subprocess.Popen":
        program, words = arguments[:2]
        is_python = Path(os.fsdecode(program)).resolve() == Path(sys.executable).resolve()
        if is_python and [*words][1:3] != ["-I", "-c"]:  # one line of code in an isolated interpreter takes 20 ms
            started.append("a Python process")


def observe_processes() -> None:
    """Record each Python process and each server that this process starts."""
    sys.addaudithook(_observe)
