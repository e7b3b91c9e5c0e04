"""The seeds: each is a good lesson, finds the very failure it was made for, and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mulligan.classify.classifier import classify
from mulligan.contract.store import DEFAULT_TENANT, FixQuery, LessonQuery
from mulligan.core.failure import Failure
from mulligan.core.kinds import KINDS
from mulligan.core.records import Lesson, lesson_id
from mulligan.learn import lesson_files, seeds
from mulligan.learn.seeds import load_seeds
from mulligan.prompt import MAX_SENTENCE_CHARS, Prompt
from mulligan.redaction.text_sanitizer import find_unsafe_text
from mulligan.store.sqlite import MemoryStore

TEXTS = json.loads((Path(__file__).parent / "seed_texts.json").read_text())
"""What programs said when `python scripts/seeds --record` ran them: for each case its seed, the tool and the text."""


def failed(text: str, tool: str = "Bash", source: str = "tool") -> Failure:
    return classify(source=source, tool=tool, text=text, is_error=True)


def found(text: str, tool: str = "Bash", source: str = "tool") -> list[str]:
    names = {each.id: name for name, each in load_seeds().items()}
    matches = seeds.find_matching_seeds(None, DEFAULT_TENANT, tool, failed(text, tool, source))
    return [names[seed.id] for seed in matches]


# Each is a good lesson


def test_there_are_seeds_for_what_agents_use():
    families = {name.partition("-")[0] for name in load_seeds()}
    assert len(load_seeds()) >= 150
    assert families >= set("shell git edit read python pytest node npm tsc cargo rust go http sqlite postgres vector "
                           "mcp model".split())  # fmt: skip


def test_a_seed_is_complete_short_and_ours():
    for name, seed in load_seeds().items():
        assert seed.id == lesson_id("seed", name)
        standing = (seed.source, seed.fix_id, seed.trials, seed.state, seed.edited)
        assert standing == ("seed", "", 0, "proposed", False), name
        assert seed.kind in KINDS, name
        assert seed.origin.endswith(("scripts/seeds runs it", "not run here")), name
        for said in (seed.mistake, seed.correction):
            assert 10 <= len(said) <= MAX_SENTENCE_CHARS, said
            assert not re.search("[<>|`\u2039\u203a\u00a6]", said), f"a model could not copy from what {name} shows"
        assert bool(seed.failing_example) == bool(seed.working_example), name
        for each in seeds.parse_phrases(seed):
            assert each.weight >= 8, f"{name} has too little to be known by"


def test_a_seed_is_told_whole_as_what_it_is():
    for name, seed in load_seeds().items():
        said = Prompt().lesson_sentence(seed)
        assert seed.correction.rstrip(".") in said, name
        assert "(general advice)" in said, name
        assert find_unsafe_text(said) == [], name


def test_the_files_are_as_lessons_are_written():
    for name, seed in load_seeds().items():
        lines = lesson_files.render_lesson_file(seed).splitlines()
        kept = "\n".join(line for line in lines if not line.startswith("base_digest =")) + "\n"
        assert (seeds.FOLDER / f"{name}.md").read_text() == kept, name


# Each finds its failure


def test_what_a_program_said_finds_its_seed():
    answers = {case: found(given["text"], given["tool"]) for case, given in TEXTS.items()}
    assert answers == {case: [given["seed"]] for case, given in TEXTS.items()}


def test_every_seed_that_can_be_run_was_run():
    run = {given["seed"] for given in TEXTS.values()}
    assert {name for name, seed in load_seeds().items() if seed.origin.endswith("runs it")} == run


def test_kind_and_fingerprint_are_those_of_today():
    for name, seed in load_seeds().items():
        said = next((given["text"] for given in TEXTS.values() if given["seed"] == name), seed.error.splitlines()[0])
        said = said.translate(str.maketrans("\u2039\u203a", "<>"))  # as they were before they were made fit to be shown
        failure = failed(said, seed.tool, "model" if seed.tool == "chat" else "tool")
        assert (seed.kind, seed.fingerprint) == (str(failure.kind), failure.fingerprint), name


# And no other

OTHERS = (
    # of other programs, or of the same ones about something else
    ("Bash", "Exit code 1\nTests: 2 failed, 14 passed, 16 total"),
    ("Bash", "Exit code 1\n  1) cart adds an item:\n     AssertionError: expected 2 to equal 3"),
    ("Bash", "Exit code 1\nAssertionError: assert total == 30"),
    ("Bash", "Exit code 1\n=== RUN TestA\ncat: state.json: No such file or directory\n--- FAIL: TestA (0.1s)\nFAIL"),
    ("Bash", "Exit code 1\nKeyError: 'customer'"),
    ("Bash", "Exit code 1\nZeroDivisionError: division by zero"),
    ("Bash", "Exit code 2\nreport.py: error: the following arguments are required: --month"),
    ("Bash", "Exit code 1\nerror: Your account is suspended. Contact support."),
    ("Bash", "Exit code 1\nterraform: Error acquiring the state lock"),
    ("Bash", "Exit code 1\ndenied: requested access to the resource is denied"),
    ("Bash", "Exit code 1\nE: Unable to locate package libfoo-dev"),
    ("Bash", "Exit code 1\nfatal: tag 'v1.2.0' already exists"),
    ("Bash", "Exit code 1\nerror: branch 'old' not found"),
    ("Bash", "Exit code 101\nerror[E0061]: this function takes 2 arguments but 1 argument was supplied"),
    ("Bash", "Exit code 1\nsrc/app.ts(3,1): error TS1005: ';' expected."),
    ("Bash", "Exit code 2\n./main.go:7:9: cannot use x (variable of type string) as int value in return statement"),
    ("Bash", "Exit code 1\nERROR:  cannot drop table users because other objects depend on it"),
    ("Bash", "Exit code 1\nError: too many SQL variables"),
    ("Bash", "Exit code 1\nModule build failed: the loader could not be resolved"),
    ("Bash", "Exit code 1\nthe model was not found in the registry of this project"),
    ("Bash", "Exit code 1\nundefined is not a function"),
    ("Bash", "Exit code 137\nKilled"),
    ("Bash", "Exit code 3\n"),
    ("search", "No results for 'weather in Atlantis'."),
    ("search", "top_k must be 10 or less, got 50"),
    ("lookup_order", "Order 4711 does not exist."),
    ("lookup_order", "customer_id is required"),
    ("send_mail", "Mailbox full"),
    ("send_mail", "rate limit exceeded, try again in 30 seconds"),
    ("book_flight", "Error: You must log in first."),
    ("get_weather", "Service temporarily unavailable"),
    ("Edit", "The file is read-only."),
    ("Read", "The notebook has no cell with id 7."),
    ("calendar.create_event", "start must be before end"),
    ("jira.transition", "Transition 31 is not valid for issue ABC-12"),
    ("slack.post", "channel_not_found"),
    ("github.create_issue", "Validation Failed: title can't be blank"),
)  # fmt: skip


@pytest.mark.parametrize(("tool", "text"), OTHERS)
def test_a_failure_that_no_seed_is_about_finds_none(tool, text):
    assert found(text, tool) == []


MISLEADING = (
    ("book", "book() got an unexpected keyword argument 'seat'"),
    ("open_folder", "cd: reports: No such file or directory"),
    ("deploy_site", "429 Too Many Requests\nseen before:\n  Dimension mismatch for query vector"),
    # words of a seed in a place where they are not what went wrong
    ("Bash", "Exit code 1\nFAIL src/errors.test.ts\n  expected 'file has been modified since read' to be shown once"),
    ("Edit", "String to replace not found in file.\nString: raise ValueError('fatal: not a git repository')"),
    (
        "create_ticket",
        "title is too long: 'npm error Missing script: build fails on every branch since Monday and more'",
    ),
    ("Bash", "Exit code 1\ngit: 'comit' is not a git command. See 'git --help'."),
)


@pytest.mark.parametrize(("tool", "text"), MISLEADING)
def test_words_of_a_seed_elsewhere_are_not_taken_for_it(tool, text):
    allowed = {"edit-string-not-found"} if tool == "Edit" else set()
    assert set(found(text, tool)) <= allowed


SAME = (
    ("Bash", "run_shell_command", "bash: line 1: rg: command not found", "shell-command-not-found"),
    ("Bash", "execute_command", "zsh: command not found: rg\nbash: rg: command not found", "shell-command-not-found"),
    ("Bash", "terminal", "fatal: not a git repository (or any parent up to mount point /)", "git-not-a-repository"),
    ("Edit", "str_replace_editor", "String to replace not found in file.", "edit-string-not-found"),
    (
        "query",
        "run_sql",
        'psycopg.errors.UndefinedTable: relation "orders" does not exist',
        "postgres-relation-missing",
    ),
    ("query", "db.read_query", "Database error: no such table: orders", "sqlite-no-such-table"),
    ("fetch", "http_get", "429 Client Error: Too Many Requests for url: https://a.example/x", "http-429"),
    ("search", "retrieve", "Collection expecting embedding with dimension of 384, got 1536", "vector-dimensions"),
)


@pytest.mark.parametrize(("own", "tool", "text", "name"), SAME)
def test_a_seed_is_found_whatever_the_tool_is_called(own, tool, text, name):
    assert load_seeds()[name].tool == own
    assert found(text, tool) == [name]


def test_what_a_provider_says_is_found_for_models_alone():
    said = "Error code: 400 - {'error': {'message': \"This model's maximum context length is 8192 tokens. However, \
you requested 9000 tokens\", 'code': 'context_length_exceeded'}}"
    assert found(said, "chat", "model") == ["model-openai-context"]
    assert found(said, "Bash") == []


def test_hostile_texts_cost_little_and_find_nothing():
    for text in (
        "a" * 300_000,
        "no such " * 50_000,
        ": " * 100_000,
        "{name}" * 10_000,
        "\ud800 no such table",
        "\n" * 99_999,
    ):
        assert found(text) == []


# In a store


def test_seeds_are_used_without_being_put_into_a_store():
    failure = failed("fatal: not a git repository")
    assert [each.kind for each in seeds.find_matching_seeds(None, DEFAULT_TENANT, "Bash", failure)] == [
        "tool/execution_failed"
    ]
    assert len(seeds.find_matching_seeds(MemoryStore(), DEFAULT_TENANT, "Bash", failure)) == 1


def test_putting_them_into_a_store_twice_is_doing_it_once():
    store = MemoryStore()
    assert seeds.install_seeds(store, DEFAULT_TENANT) == (len(load_seeds()), 0, 0, 0)
    assert seeds.install_seeds(store, DEFAULT_TENANT) == (0, 0, len(load_seeds()), 0)
    kept = seeds.list_stored_seeds(store, DEFAULT_TENANT)
    assert len(kept) == len(load_seeds())
    assert {(each.state, each.trials, each.source) for each in kept} == {("proposed", 0, "seed")}
    assert store.fixes(DEFAULT_TENANT, FixQuery()) == []  # no evidence of anything (S3)
    assert store.lessons(DEFAULT_TENANT, LessonQuery(state="active")) == []


def test_what_a_person_says_of_a_seed_holds():
    store = MemoryStore()
    seeds.install_seeds(store, DEFAULT_TENANT)
    seed = load_seeds()["git-not-a-repository"]
    failure = failed("fatal: not a git repository")
    store.save_lesson(
        DEFAULT_TENANT, Lesson(id=seed.id, tool="Bash", mistake="m", correction="Ask Ann.", edited=True, source="seed")
    )
    assert seeds.install_seeds(store, DEFAULT_TENANT).edited == 1
    assert [each.correction for each in seeds.find_matching_seeds(store, DEFAULT_TENANT, "Bash", failure)] == [
        "Ask Ann."
    ]
    store.decide_lesson(DEFAULT_TENANT, seed.id, "disable", 1)
    assert seeds.find_matching_seeds(store, DEFAULT_TENANT, "Bash", failure) == []
    assert seeds.install_seeds(store, DEFAULT_TENANT).edited == 1
    assert seeds.find_matching_seeds(store, DEFAULT_TENANT, "Bash", failure) == []


def test_removed_seeds_are_out_of_use_until_they_are_put_back():
    store = MemoryStore()
    seeds.install_seeds(store, DEFAULT_TENANT)
    failure = failed("fatal: not a git repository")
    assert seeds.remove_seeds(store, DEFAULT_TENANT) == len(load_seeds())
    assert seeds.find_matching_seeds(store, DEFAULT_TENANT, "Bash", failure) == []
    assert seeds.list_stored_seeds(store, DEFAULT_TENANT) == []
    seeds.install_seeds(store, DEFAULT_TENANT)
    assert len(seeds.find_matching_seeds(store, DEFAULT_TENANT, "Bash", failure)) == 1
