"""Reads a chat history as Aider 0.86.2 writes it, with a model that misses a text before it finds it."""

from __future__ import annotations

from session_logs import read

HISTORY = """
# aider chat started at 2026-03-01 10:00:00

> aider --model openai/gpt-4o --edit-format diff a.txt
> Aider v0.86.2
> Main model: openai/gpt-4o with diff edit format

#### greet the world

I change it.

a.txt
```
{search}
helo

world
=======
x
{replace}
```

> Tokens: 2.5k sent, 23 received. Cost: $0.0064 message, $0.0064 session.
> The LLM did not conform to the edit format.
> # 1 SEARCH/REPLACE block failed to match!

## SearchReplaceNoExactMatch: This SEARCH block failed to exactly match lines in a.txt
{search}
helo

world
=======
x
{replace}

The SEARCH section must exactly match an existing block of lines

I change it.

a.txt
```
{search}
hello

world
=======
x
{replace}
```

> Applied edit to a.txt

# aider chat started at 2026-03-01 11:00:00

> Model: gpt-4o with whole edit format

#### and again

> litellm.RateLimitError: RateLimitError: OpenAIException - Rate limit reached
""".format(search="<" * 7 + " SEARCH", replace=">" * 7 + " REPLACE")


def test_edits_and_errors_of_the_model_are_calls_of_their_session(tmp_path):
    path = tmp_path / ".aider.chat.history.md"
    path.write_text(HISTORY)
    edited, refused = read(path)
    assert (edited.run.agent, edited.run.version, edited.run.context) == ("aider", "0.86.2", "greet the world")
    assert edited.run.metadata["model"] == "openai/gpt-4o"
    first, second = edited.steps
    assert str(first.failure.kind) == "tool/edit_mismatch"
    assert second.outcome == "success"
    assert second.arguments == {"path": "a.txt", "old_string": "hello\n\nworld", "new_string": "x"}
    assert [(step.type, str(step.failure.kind)) for step in refused.steps] == [("model", "model/rate_limit")]
    assert refused.run.id != edited.run.id


def test_scan_without_a_path_reads_the_history_of_this_folder(types, tmp_path, monkeypatch):
    (tmp_path / ".aider.chat.history.md").write_text(HISTORY)
    monkeypatch.chdir(tmp_path)
    code, output, _ = types("scan", "--json")
    assert code in (0, 1)
    assert '"failures": 1' in output or '"failures":1' in output
