"""Wrap a tool: a rejected argument of a model's call is repaired, noted and recorded. Then run: mulligan show last"""

import mulligan
from mulligan import AgentError


@mulligan.tool(effects="none")
def search(query: str, top_k: int = 5) -> list[str]:
    if top_k > 10:
        raise AgentError(f"top_k must be 10 or less, got {top_k}.", hint="Ask for 10, then page with offset.")
    return [f"{query}, hit {number}" for number in range(1, top_k + 1)]


with mulligan.run("librarian", context="what are the rules for refunds?") as run:
    for turn in mulligan.turns(limit=1):
        outcome = turn.call([search], "search", {"query": "refunds", "top_k": 50})  # as your model asked
        print(f"{len(outcome.value)} hits, run {run.id} is {run.status}")
        print(*outcome.notes, sep="\n")
