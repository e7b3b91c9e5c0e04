"""The user sees what happened to each call: in the terminal and in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def mask(text: str) -> list[str]:
    """Return the lines of an output without ids, times and the name of the program."""
    text = re.sub(
        r"run_\w{16}|[\d.]+ (?:us|ms|s)\b|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\w+\.py:\d+|\d\d:\d\d:\d\d|(?<=_seconds=)\S+",
        "_",
        text,
    )
    return [line.rstrip() for line in text.strip().splitlines()]


def test_output_of_show_in_the_documentation_is_that_of_the_program_in_the_readme(user):
    program = (ROOT / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    assert user.runs_program(program).returncode == 0
    documented = (ROOT / "docs" / "report.md").read_text().partition("$ mulligan show last\n")[2].partition("```")[0]
    assert mask(user.types("show", "last").stdout) == mask(documented)


def test_log_in_the_documentation_is_that_of_the_program_in_the_readme(user):
    program = (ROOT / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    assert user.runs_program(program).stderr == ""
    documented = (ROOT / "docs" / "report.md").read_text().partition("python agent.py\n")[2].partition("```")[0]
    assert mask(user.runs_program(program, MULLIGAN_LOG="info").stderr) == mask(documented)


def test_program_is_shown_with_arguments_results_tokens_and_cost_and_without_secrets(user):
    key = "sk-proj-" + "a1B2c3D4" * 5
    done = user.runs_program(f"""
        import mulligan

        @mulligan.tool(effects="none")
        def fetch(url, api_key):
            return {{"text": "x" * 5000, "url": url}}

        @mulligan.model
        def ask(messages, model="small-1"):
            return {{"choices": [{{"message": {{"role": "assistant", "content": "Hi"}}}}],
                    "usage": {{"prompt_tokens": 1200, "completion_tokens": 34}}}}

        with mulligan.run("helper") as run:
            fetch("https://example.com", api_key="{key}")
            ask([{{"role": "user", "content": "Say hi"}}])
            with run.step("model", "chat", cost=0.25):
                pass
    """)
    assert done.returncode == 0, done.stderr
    shown = user.types("show", "helper").stdout
    assert 'arguments  url="https://example.com", api_key="[redacted api_key]"' in shown
    assert "characters)" in shown  # the result is cut
    assert 'messages=(1 message, last user message: "Say hi"), model="small-1"' in shown
    assert "\n  tokens   1,200 input, 34 output\n  cost     $0.25, unknown for 1 of 2 attempts\n" in shown
    whole = user.types("show", "last", "--full").stdout
    assert "x" * 5000 in whole
    exported = user.types("export", "last", "--level", "local").stdout
    for output in (shown, whole, exported, user.types("show", "last", "--json").stdout):
        assert key not in output


def test_output_of_classify_in_the_documentation_is_that_of_the_command(user):
    example = (ROOT / "docs" / "classify.md").read_text().partition("$ mulligan classify ")[2].partition("```")[0]
    words, _, documented = example.partition("\n")
    assert user.types("classify", *words.split()).stdout == documented
