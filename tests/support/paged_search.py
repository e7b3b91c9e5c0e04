"""Programs around a tool that rejects a large page without naming the limit: one learns from it, one asks again."""

from __future__ import annotations

import textwrap

TOOL = """
    from mulligan import AgentError

    def tool(query: str, k: int = 5) -> str:
        if k > 10:
            raise AgentError("That is too much for one page.", code="invalid_arguments")
        return f"{k} of {query}"
    tool.__name__ = "search"
"""
LEARNING = """
    import mulligan
    search = mulligan.tool(effects="none", mode="observe")(tool)
    for number in range(8):
        with mulligan.run("reader"):
            try:
                search(f"cats {number}", k=50)
            except AgentError:
                search(f"cats {number}", k=10)
        mulligan.flush(30)
"""
ASKING = """
    import mulligan
    search = mulligan.tool(effects="none")(tool)
    with mulligan.run("reader") as run:
        try:
            print(search("dogs", k=40))
        except AgentError as error:
            print("told:", *error.__notes__)
    mulligan.flush(30)
"""


def program(*parts: str) -> str:
    return "\n".join(map(textwrap.dedent, parts))
