"""What worked before works again: learned in one process, used in the next, and taken back when it is not true."""

from __future__ import annotations

import json
from typing import Any

from paged_search import ASKING, LEARNING, TOOL, program

CHANGED = TOOL.replace("k: int = 5", "k: int = 5, *, page: int = 0")


def fixes(user: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = user.sees("fixes", "--tool", "search")
    return found


def test_a_correction_that_an_operator_approved_is_made_at_once_until_the_tool_changes(user: Any) -> None:
    done = user.runs_program(program(TOOL, LEARNING))
    assert done.returncode == 0, done.stderr
    (fix,) = fixes(user)
    assert (fix["state"], fix["successes"]) == ("proposed", 8)
    assert (
        "In earlier runs this recovered the call: k=10 (8 of 8 runs)."
        in user.runs_program(program(TOOL, ASKING)).stdout
    )

    assert user.types("fixes", "approve", fix["id"]).returncode == 0
    assert user.runs_program(program(TOOL, ASKING)).stdout == "10 of dogs\n"

    assert "told:" in user.runs_program(program(CHANGED, ASKING)).stdout
    (fix,) = fixes(user)
    assert (fix["state"], fix["reason"]) == ("demoted", "the tool's schema has changed since then")
    assert "demoted" in user.types("fixes").stdout
    assert "schema has changed" in user.types("fixes", "show", fix["id"]).stdout


FAILED = {"tool": "search", "arguments": {"query": "dogs", "k": 40}, "error": "That is too much for one page."}


def suggested(user: Any, *options: str, **about: Any) -> list[dict[str, Any]]:
    line = json.dumps({**FAILED, "error": {"code": "invalid_arguments", "message": FAILED["error"]}, **about})
    said = user.types("suggest", "--json", *options, stdin=line)
    assert said.returncode == 0, said.stderr
    found: list[dict[str, Any]] = json.loads(said.stdout)["suggestions"]
    return found


def test_whoever_asks_what_would_repair_a_call_hears_what_worked_before(user: Any) -> None:
    assert suggested(user) == []
    assert not (user.home / "mulligan").exists(), "a question makes no files"
    user.runs_program(program(TOOL, LEARNING))

    (told,) = suggested(user)

    (fix,) = fixes(user)
    assert (told["arguments"], told["source"], told["fix_id"]) == ({"query": "dogs", "k": 10}, "memory", fix["id"])
    assert told["evidence"] == [f"{fix['id']} succeeded in 8 of 8 trials"]
    assert not told["automatic"]
    assert suggested(user, "--no-memory") == []
    said = user.types("suggest", "--store", "nowhere.db", stdin="{}")
    assert (said.returncode, "nowhere.db does not exist" in said.stderr) == (2, True)


def test_the_library_answers_from_what_is_kept_and_notes_nothing(user: Any) -> None:
    user.runs_program(program(TOOL, LEARNING))
    (fix,) = fixes(user)
    user.types("fixes", "approve", fix["id"])
    asking = """
        import mulligan
        told = mulligan.suggest(mulligan.tool(effects="none")(tool), {"query": "dogs", "k": 40}, ERROR)
        print(told.suggestions[0].arguments["k"], told.suggestions[0].automatic)
        print(len(mulligan.suggest("search", {"query": "dogs", "k": 40}, ERROR, memory=False).suggestions))
    """
    error = 'ERROR = AgentError("That is too much for one page.", code="invalid_arguments")'
    assert user.runs_program(program(TOOL, error, asking)).stdout == "10 True\n0\n"
    assert user.runs_program(program(CHANGED, error, asking)).stdout == "10 True\n0\n", "no schema was met before"
    assert fixes(user)[0]["state"] == "approved"


def test_the_model_is_not_told_what_replaced_one_value_in_one_call_only(user: Any) -> None:
    user.runs_program(program(TOOL, LEARNING.replace("cats {number}", "cats")))
    (fix,) = fixes(user)
    assert (fix["successes"], fix["hidden_reason"]) == (8, "succeeded without advice once, which may be chance")
    assert "In earlier runs" not in user.runs_program(program(TOOL, ASKING)).stdout


def test_the_model_is_not_told_again_what_this_run_has_tried_in_vain(user: Any) -> None:
    user.runs_program(program(TOOL, LEARNING))
    trying = """
        import mulligan
        search = mulligan.tool(effects="none")(tool)
        with mulligan.run("reader"):
            for query, k in [("dogs", 50), ("dogs", 10), ("dogs", 40), ("birds", 40)]:
                try:
                    search(query, k=k)
                except AgentError as error:
                    print(query, k, "k=10" in str(error.__notes__))
    """
    told = user.runs_program(program(TOOL.replace("k > 10", "k > 5"), trying)).stdout.splitlines()
    assert told == ["dogs 50 True", "dogs 10 False", "dogs 40 False", "birds 40 True"]


def test_the_model_hears_what_helped_against_a_failure_much_like_it(user: Any) -> None:
    user.runs_program(program(TOOL, LEARNING))
    reworded = TOOL.replace("That is too much for one page.", "That is far too much for one page!")
    told = user.runs_program(program(reworded, ASKING)).stdout
    assert "In earlier runs this recovered the call: k=10 (8 of 8 runs, for a similar failure)." in told


def test_the_model_hears_what_calls_that_worked_look_like(user: Any) -> None:
    strict = """
        from mulligan import AgentError

        def tool(query: str, k: int = 5, topK: int | None = None):
            if topK is not None:
                raise AgentError("Zq 17: no.", code="invalid_arguments")
            return f"{k} of {query}"
        tool.__name__ = "search"
    """
    working = """
        import mulligan
        search = mulligan.tool(effects="none")(tool)
        for number in range(6):
            with mulligan.run("reader"):
                search(query=f"cats {number}", k=number)
        mulligan.flush(30)
    """
    assert user.runs_program(program(strict, working)).returncode == 0
    asking = ASKING.replace('search("dogs", k=40)', 'search(query="dogs", topK=40)')
    told = user.runs_program(program(strict, asking)).stdout
    assert "Based on successful calls of this tool: rename topK to k." in told
