"""mulligan search finds runs by the words in them."""

from __future__ import annotations

import contextlib
import json
import sqlite3

import pytest

from mulligan import AgentError
from mulligan.api import Mulligan


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A store with six runs of two agents, of which three failed in the same way."""
    monkeypatch.setenv("MULLIGAN_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    program = Mulligan()

    @program.tool(effects="none")
    def charge(customer_id: str) -> str:
        if customer_id.endswith(("3", "4", "5")):
            raise AgentError("no card on file", code="not_found")
        return f"charged {customer_id}"

    for number in range(6):
        try:
            with program.run("billing" if number else "shop"):
                charge(customer_id=f"cus_{number}")
        except AgentError:
            pass
    program.close()
    return tmp_path


def test_a_customer_is_found_by_an_argument(home, types):
    code, output, _ = types("search", "cus_1")
    assert code == 0
    assert "billing" in output.splitlines()[0]
    assert "step 1, charge: argument customer_id: cus_1" in output
    assert "charged cus_1" in output


def test_runs_with_the_same_failure_are_one_hit(home, types):
    _, output, _ = types("search", '"card on file"')
    assert output.count("no card on file") == 1
    assert "the same failure in 2 earlier runs: mulligan patterns show pat_" in output


def test_the_words_may_contain_filters(home, types):
    assert len(json.loads(types("search", "charged status:success", "--json")[1])) == 3
    assert len(json.loads(types("search", "charged agent:billing", "--json")[1])) == 2
    assert len(json.loads(types("search", "charged", "--agent", "billing", "--json")[1])) == 2
    code, _, error = types("search", "charged status:unknown")
    assert (code, "Use one of: success" in error) == (2, True)


def test_json_has_the_places_of_the_words(home, types):
    (hit,) = json.loads(types("search", "customer_id:cus_2", "--json")[1])
    assert hit["status"] == "success"
    (match,) = hit["matches"]
    assert (match["location"], match["excerpt"], match["spans"], match["seq"]) == (
        "argument customer_id",
        "cus_2",
        [[0, 5]],
        1,
    )


def test_a_filter_of_runs_takes_the_same_words(home, types):
    assert len(json.loads(types("runs", "--text", "-shop charged", "--json")[1])) == 2


@pytest.mark.parametrize("words", [(), ("--", "-shop"), ("!!",), ("x" * 501,), ("",)])
def test_a_search_without_words_says_what_to_type(home, types, words):
    code, _, error = types("search", *words)
    assert code != 0
    assert "mulligan search" in error or "Type a word" in error or "at most 500" in error


def test_no_run_is_found_without_one(home, types):
    assert types("search", "absent")[1].startswith("No run in ")


def test_the_index_can_be_built_again(home, types, monkeypatch):
    monkeypatch.setattr("mulligan.store.run_texts.SETTLE_MILLISECONDS", -(10**9))
    assert types("search", "--rebuild")[0] == 0
    with contextlib.closing(sqlite3.connect(home / "mulligan.db.search")) as index:
        assert index.execute("SELECT count(*) FROM words WHERE words MATCH 'charged'").fetchone() == (3,)
    assert "cus_1" in types("search", "cus_1")[1]


def test_a_damaged_index_is_built_again(home, types):
    (home / "mulligan.db.search").write_bytes(b"no database" * 100)
    code, output, _ = types("search", "cus_1")
    assert (code, "cus_1" in output) == (0, True)


@pytest.mark.parametrize(
    "words",
    [
        ("customer_id=cus_1",), ("customer_id: cus_1",), ("(cus_1)",), ("cus_1*",), ("\u201ccus_1\u201d",),
        ("charged cus_1 -shop",), ("charged", "cus_1", "since:1d"), ("--", "-shop", "cus_1"), ("chargéd cus_1",),
    ],
)  # fmt: skip
def test_what_people_type_around_a_word_does_not_hide_it(home, types, words):
    hits = json.loads(types("search", "--json", *words)[1])
    assert [hit["status"] for hit in hits] == ["success"]


def test_a_quoted_argument_of_plain_words_is_a_phrase(home, types):
    assert types("search", "on file")[1].count("no card on file") == 1
    assert types("search", "file on")[1].startswith("No run in ")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("nowhere=x", "type name:value"),
        ("error:", "without a blank"),
        ("ustomer", "from its beginning"),
    ],
)
def test_a_search_without_a_hit_says_what_may_be_wrong(home, types, text, hint):
    code, output, _ = types("search", text)
    assert (code, hint in output) == (0, True)


def test_filters_alone_are_a_search(home, types):
    assert len(json.loads(types("search", "status:failure", "--json")[1])) == 3
    assert len(json.loads(types("search", "--status", "failure", "--json")[1])) == 3
    assert len(json.loads(types("runs", "--text", "status:failure", "--json")[1])) == 3


def test_filters_in_the_text_of_runs_select_runs(home, types):
    assert len(json.loads(types("runs", "--text", "charged since:1d", "--json")[1])) == 3
    assert json.loads(types("runs", "--text", "charged status:failure", "--json")[1]) == []
    assert json.loads(types("runs", "--text", "charged until:1d", "--json")[1]) == []
    code, _, error = types("runs", "--text", "charged status:unknown")
    assert (code, "Use one of: success" in error) == (2, True)


def test_a_search_states_its_total_and_how_to_list_more(home, types):
    _, output, error = types("search", "agent:billing")
    assert "5 runs match." in output
    assert "--limit" not in error
    _, output, error = types("search", "agent:billing", "--limit", "2")
    assert "5 runs match." in output
    assert "Listed: the newest 2 hits. For more: --limit 20" in error


def test_a_search_has_no_options_without_effect(home, types):
    for option in ("--text", "--columns", "--order"):
        code, _, error = types("search", "charged", option, "id")
        assert (code, "No such option" in error) == (2, True)
