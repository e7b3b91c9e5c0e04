"""What agents learned the hard way is told to the next one before it calls a tool (F3, F7)."""

from __future__ import annotations

import json

from mulligan.cli.prompt import BEGIN, END
from mulligan.prompt import estimate_prompt_tokens
from mulligan.testing import assert_sanitized

AGENT = """
import mulligan

@mulligan.tool(mode="observe")
def search(query: str, top_k: int = 5) -> str:
    if top_k > 10:
        raise mulligan.AgentError("top_k must be 10 or less, got 50.", code="invalid_arguments")
    return "found"

with mulligan.run("agent"):
    try:
        search("NUMBER: a customer's own words", top_k=50)
    except mulligan.AgentError:
        search("NUMBER: a customer's own words", top_k=10)
"""
NEXT = """
import mulligan
from mulligan.testing import ScriptedModel

def search(query: str, top_k: int = 5) -> str:
    return "found"

done = mulligan.loop(ScriptedModel("Done."), [search], "Find it.", inject_lessons=300)
print(done.messages[0]["content"][0]["text"])
"""


def test_what_three_agents_learned_is_told_to_the_fourth_once_a_person_has_approved_it(user):
    def types(*words):
        done = user.types(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    file = user.folder / "AGENTS.md"
    file.write_text("# Ours\n")
    keep = ("prompt", "--tool", "search", "--no-seeds", "--file", str(file))
    for number in range(3):
        user.runs_program(AGENT.replace("NUMBER", str(number)))
    types("consolidate")
    (lesson,) = json.loads(types("lessons", "--source", "learned", "--json"))
    assert lesson["state"] == "proposed"
    types(*keep)
    assert "top_k" not in file.read_text(), "three runs of one day prove nothing"

    types("lessons", "approve", lesson["id"])
    assert user.types(*keep, "--check").returncode == 1
    types(*keep)

    said = file.read_text()
    assert said.startswith(f"# Ours\n\n{BEGIN}\n")
    assert said.endswith(f"{END}\n")
    assert "- Calling search with a rejected value for top_k fails" in said
    assert "Try: use top_k=10 (succeeded in 3 of 3 runs)." in said
    assert "customer" not in said, "nobody's texts are told"
    told = user.runs_program(NEXT).stdout.rstrip("\n")
    assert "use top_k=10" in told
    assert estimate_prompt_tokens(told) <= 300
    assert_sanitized(told)
