"""Remember failures across a compaction: the reminder is empty until the conversation was compacted."""

import contextlib

import mulligan


@mulligan.tool
def edit(path: str, old: str, new: str) -> None:
    raise ValueError(f"the text to replace was not found in {path}")


with mulligan.session() as session, mulligan.run("coder", session=session):
    with contextlib.suppress(ValueError):
        edit("main.py", "prnt(", "print(")
    session.mark_turn()
    print(f"before: {session.reminder()!r}")
    print(f"for the summarizer: {session.summarizer_note()}")
    session.mark_compacted(chars_before=120_000, chars_after=4_000)  # your agent has summarized its conversation
    print(f"after:\n{session.reminder()}")
