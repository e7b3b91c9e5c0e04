"""Every rule is a row with phrases, a real example and a counter-example. These tests read the rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mulligan.classify.classifier import classify
from mulligan.classify.rules import Rule, RuleTable, match_rules, providers, python, read_rules, words

TABLES = {
    name: table
    for module in (words, python, providers)
    for name, table in vars(module).items()
    if isinstance(table, RuleTable) and table is not words.ARGUMENTS
}
ROWS = [pytest.param(table, rule, id=f"{name}: {rule.name}") for name, table in TABLES.items() for rule in table]
FILES = sorted(Path(words.__file__).parent.glob("*.txt"))


def is_matched(table: RuleTable, rule: Rule, text: str) -> bool:
    return any(match is rule for match, _ in match_rules(table, text, rule.tools[0] if rule.tools else ""))


@pytest.mark.parametrize(("table", "rule"), ROWS)
def test_a_rule_matches_its_example_and_not_its_counter_example(table: RuleTable, rule: Rule) -> None:
    assert rule.example, "a rule needs a real example"
    assert rule.counter_example, "a rule needs a counter-example"
    assert is_matched(table, rule, rule.example)
    assert not is_matched(table, rule, rule.counter_example)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_phrase_of_a_rule_stands_on_its_own_line(path: Path) -> None:
    for line in path.read_text().splitlines():
        field = line.strip().partition(": ")[0]
        if line.startswith("    ") and field not in ("words", "unless", "tools", "example", "counter-example"):
            re.compile(line.strip())  # an alternation that continues on another line does not compile
            assert re.search(r"(?<!\\)\|$", line) is None, line


def test_a_field_that_stands_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = "tool/timeout: late\n    too late\n    example: It is too late\n    example: Too late now"
    monkeypatch.setattr("mulligan.classify.rules.read_sections", lambda file: {"words": rule})
    with pytest.raises(ValueError, match="'example' stands twice"):
        read_rules("shell", "words")


@pytest.mark.parametrize("kind", ["tool/captcha_required", "tool/quota_exceeded"])
@pytest.mark.parametrize("facts", [{}, {"status": 403}, {"status": 429}, {"status": 503}, {"tool": "Bash"}])
def test_a_person_must_act_whatever_status_or_tool_reports_it(kind: str, facts: dict[str, object]) -> None:
    [rule] = [rule for rule in words.PARTICULAR_RULES if rule.kind == kind]
    failure = classify(text=rule.example, is_error=True, **facts)  # type: ignore[arg-type]
    assert failure.kind == kind
    assert failure.remedy.value == "stop"
