"""A program with a framework of its own: nothing that steers it is a failure, nothing that it injects is stored."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mulligan import AgentError, Mulligan
from mulligan.core.failure import SettingsError

MARK = "Row of the dependency"


@dataclass
class Dependencies:
    """What this program passes to each of its tools."""

    rows: list[str] = field(default_factory=lambda: [f"{MARK} {number}" for number in range(50)])


class NeedsApproval(Exception):
    """How this program asks a person."""


def stored_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_tool_with_a_dependency_of_50_rows_stores_none_of_it(tmp_path: Path) -> None:
    mine = Mulligan(home=str(tmp_path), injected_types=[Dependencies])

    @mine.tool(effects="none", clamp=["top_k"])
    def search(deps: Dependencies, query: str, top_k: int = 5) -> str:
        if top_k > 10:
            raise AgentError(f"top_k must be 10 or less, got {top_k}.")
        if not query:
            raise ValueError("The query is empty.")
        return f"{len(deps.rows)} rows"

    @mine.tool(effects="none", exclude={"connection"})
    async def find(query: str, *, connection: object) -> str:
        return query

    with mine.run("searcher"):
        assert search(Dependencies(), "an argument") == "50 rows"
        assert search(Dependencies(), "an argument", top_k=50) == "50 rows"
        with pytest.raises(ValueError, match="empty"):
            search(query="", deps=Dependencies())
        asyncio.run(find("another argument", connection=Dependencies()))
    assert search(Dependencies(), "outside any run") == "50 rows"
    mine.flush()
    stored = stored_bytes(tmp_path)
    for text in (b"an argument", b"another argument", b"outside any run"):
        assert text in stored
    assert MARK.encode() not in stored
    assert b"Dependencies" not in stored
    with pytest.raises(SettingsError, match=r"find has no argument 'conection'\. Did you mean 'connection'\?"):
        mine.tool(exclude={"conection"})(find)


def test_an_excluded_text_is_not_stored_where_successes_take_the_fast_path(tmp_path: Path) -> None:
    """The values of successful calls are journaled by position once the first of them was stored."""
    mine = Mulligan(home=str(tmp_path))

    @mine.tool(exclude={"tenant"})
    def search(query: str, tenant: str = "", top_k: int = 5) -> str:
        return query

    @mine.tool(exclude={"tenant"})
    def find(**named: str) -> str:
        return named["query"]

    for _ in range(3):
        search("an argument", MARK, 7)
        search("an argument", tenant=MARK)
        find(query="another argument", tenant=MARK)
        mine.flush()
    stored = stored_bytes(tmp_path)
    assert b"an argument" in stored
    assert b"another argument" in stored
    assert MARK.encode() not in stored


def test_a_program_that_pauses_for_a_person_has_no_failure_and_no_pattern(tmp_path: Path) -> None:
    mine = Mulligan(home=str(tmp_path), control_flow=[NeedsApproval])
    approved: list[int] = []

    @mine.tool
    def pay(amount: int) -> str:
        if amount not in approved:
            raise NeedsApproval(f"May I pay {amount}?")
        return f"paid {amount}"

    with mine.run("payer") as run:
        for turn in mine.turns(limit=2):
            try:
                outcome = turn.call([pay], "pay", {"amount": 5})
            except NeedsApproval:  # the loop of the program asks the person, not the model
                approved.append(5)
                continue
            assert outcome.value == "paid 5"
    assert (run.status, run.links()) == ("success", [])
    mine.flush()
    assert b"NeedsApproval" not in stored_bytes(tmp_path)
    assert b"May I pay" not in stored_bytes(tmp_path)
