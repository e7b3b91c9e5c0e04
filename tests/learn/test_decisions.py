"""Which learned changes and prerequisites are decisions of a person."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from mulligan.core.records import HIDDEN_VALUE, RUN_SPECIFIC, Change
from mulligan.learn.decisions import UNKNOWN_SWITCH, find_decision

EXAMPLES = [
    json.loads(line) for line in Path(__file__).with_name("decision_examples.jsonl").read_text("utf-8").splitlines()
]
"""Tools with a change or prerequisites, labelled as decision or as setting."""


def judge(tool: str, path: str, before: Any, after: Any, text: str = "", **options: Any) -> str:
    changes = [Change(path=path, operation="substitute", before=before, after=after)]
    return find_decision(tool, changes, argument_texts={path: text}, **options)


def judge_example(example: dict[str, Any]) -> str:
    if "prerequisites" in example:
        return find_decision(example["tool"], (), example["prerequisites"])
    return judge(example["tool"], example["path"], example["before"], example["after"], example.get("text", ""))


def test_almost_all_labelled_decisions_are_found() -> None:
    decisions = [example for example in EXAMPLES if example["decision"]]

    assert sum(not judge_example(example) for example in decisions) <= 0.02 * len(decisions)


def test_few_labelled_settings_count_as_decisions() -> None:
    settings = [example for example in EXAMPLES if not example["decision"]]

    assert sum(bool(judge_example(example)) for example in settings) <= 0.05 * len(settings)


@pytest.mark.parametrize(
    ("tool", "path", "before", "after", "reason"),
    [
        ("publish", "run_checks", True, False, "switches a check off"),
        ("book_room", "skip_conflict_check", False, True, "switches a check off"),
        ("connect", "tls", True, False, "switches a check off"),
        ("transfer", "confirm", False, True, "switches consent on"),
        ("share_doc", "visibility", "team", "public", "widens access or an audience"),
        ("place_order", "max_price", 50, 80, "spends money"),
        ("order", "backup_supplier", False, True, "switches something on or off in a tool that acts"),
    ],
)
def test_reason_is_named(tool: str, path: str, before: object, after: object, reason: str) -> None:
    assert judge(tool, path, before, after) == reason


@pytest.mark.parametrize(
    ("tool", "path", "before", "after"),
    [
        ("read_page", "encoding", "utf8", "latin-1"),
        ("get_rates", "fresh", False, True),
        ("get_order", "view", "full", "summary"),
        ("render", "output", "html", "md"),
        ("find_docs", "scope", "all", "team"),
        ("share_doc", "visibility", "public", "team"),
        ("share_doc", "visibility", "Team ", "team"),
        ("connect", "tls", False, True),
        ("bulk_update", "dry_run", False, True),
        ("save_doc", "overwrite", True, False),
    ],
)
def test_settings_and_careful_changes_are_no_decisions(tool: str, path: str, before: object, after: object) -> None:
    assert judge(tool, path, before, after) == ""


def test_removed_check_is_a_decision() -> None:
    changes = [Change(path="require_signature", operation="drop", before=True)]

    assert find_decision("ship", changes) == "switches a check off"


def test_change_of_form_keeps_the_decision_of_the_caller() -> None:
    assert find_decision("ship", [Change(path="force", operation="cast", before="true", after=True)]) == ""


def test_hidden_switch_is_a_decision_in_doubt() -> None:
    assert judge("delete_rows", "force", None, HIDDEN_VALUE)


def test_schema_text_reveals_a_decision_behind_a_plain_name() -> None:
    assert judge("get_report", "m", False, True) == ""
    assert judge("get_report", "m", False, True, "Return the report even if it was not approved.")


def test_description_tells_that_a_tool_only_reads() -> None:
    assert judge("weather", "hourly", False, True)
    assert judge("weather", "hourly", False, True, description="Returns the weather of a city.") == ""


def test_destructive_annotation_makes_a_prerequisite_a_decision() -> None:
    assert find_decision("write_page", (), {"open_page": None}) == ""
    assert find_decision("write_page", (), {"open_page": None}, destructive_tools={"open_page"})


def test_prerequisite_of_unknown_purpose_is_a_decision_unless_it_may_be_repeated() -> None:
    assert find_decision("deploy", (), {"scale_down_cluster": "once"})
    assert find_decision("deploy", (), {"scale_down_cluster": None})
    assert find_decision("deploy", (), {"tidy": "idempotent"}) == ""
    assert find_decision("deploy", (), {"delete_cluster": "idempotent"})


def test_reading_about_payments_is_no_decision() -> None:
    assert find_decision("send_invoice", (), {"get_payment_status": None}) == ""


@pytest.mark.parametrize("text", ["\ud800", "force_" * 2_000_000, "\ud800 all"])
def test_hostile_names_and_values_are_cut(text: str) -> None:
    started_at = time.perf_counter()
    values: tuple[Any, ...] = (text, [text] * 100, {text: text}, [[text]], float("nan"), None, True)
    for before in values:
        for after in values:
            assert isinstance(judge(text, text, before, after, text, description=text), str)
            assert isinstance(find_decision(text, (), {text: None}), str)

    assert time.perf_counter() - started_at < 2


def test_looked_up_value_is_information_unless_its_name_speaks_of_consent() -> None:
    etag, approval = (Change(path=path, operation="substitute", after=RUN_SPECIFIC) for path in ("etag", "approve_all"))
    assert find_decision("update_contact", [etag], {"get_contact": "none"}) == ""
    assert find_decision("update_contact", [etag]) == UNKNOWN_SWITCH
    assert find_decision("update_contact", [approval], {"get_contact": "none"}) == UNKNOWN_SWITCH
