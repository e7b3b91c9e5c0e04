"""After a failure: links to the success that recovered it, and hints about what recovered it before."""

from __future__ import annotations

import json

import pytest
import taught
from session_logs import ClaudeCode, at, write

from mulligan.contract.store import DEFAULT_TENANT, FixQuery, LessonQuery, PatternQuery
from mulligan.core.episodes import find_causes
from mulligan.core.failure import StoreError
from mulligan.hooks import event_processing
from mulligan.learn import seeds

STALE = "File has been modified since read, by the user or a linter. Read it again before attempting to write it."
EDIT = {"file_path": "/src/shop/a.py", "old_string": "total = 1", "new_string": "total = 2"}


@pytest.fixture(autouse=True)
def removed_seeds(another):
    """General advice is removed: each hint below comes from experience or from a person."""
    store = another().store
    seeds.remove_seeds(store, DEFAULT_TENANT)
    store.close()


def overcome(agent) -> str:
    """A file is edited in vain, read, and edited."""
    said = agent.is_refused("Edit", STALE, **EDIT)
    agent.works("Read", file_path="/src/shop/a.py")
    agent.works("Edit", **EDIT)
    return said


def test_a_recipe_that_worked_in_three_sessions_of_this_folder_is_said(another):
    said = [overcome(another(session=f"s{number}")) for number in range(4)]
    assert said[:3] == ["", "", ""]
    assert "In 3 earlier sessions `Edit(/src/shop/a.py)` succeeded after `Read(/src/shop/a.py)`." in said[3]


def test_success_after_a_hint_is_no_evidence_for_it(another):
    for number in range(4):
        overcome(another(session=f"s{number}"))
    agent = another(session="s3")
    agent.ends()
    (fix,) = [fix for fix in agent.store.fixes(DEFAULT_TENANT, FixQuery(now=2**42, limit=9)) if fix.prerequisites]
    assert (fix.successes, fix.followed) == (4, 1)
    history = agent.run()
    assert [advised.fix for advised in history.run.advice] == [fix.id]
    assert [link.advice for link in history.links] == [(fix.id,)]


def test_hint_that_cannot_be_recorded_is_not_given(another, monkeypatch):
    for number in range(3):
        overcome(another(session=f"s{number}"))
    encode = event_processing.encode

    def encode_without_advice(state):
        if getattr(state, "advice", ()):
            raise StoreError("The disk is full.")
        return encode(state)

    monkeypatch.setattr(event_processing, "encode", encode_without_advice)
    assert overcome(another(session="s3")) == ""


def test_it_is_said_too_if_the_log_has_the_failed_call_before_its_event(another):
    for number in range(3):
        overcome(another(session=f"s{number}"))
    agent = another(session="new")
    write_session_log(agent, ("Edit", EDIT, f"<tool_use_error>{STALE}</tool_use_error>"))
    assert "after `Read(" in agent.is_refused("Edit", STALE, **EDIT)
    assert len(agent.kinds()) == 1


def test_nothing_is_said_of_an_earlier_failure_that_only_the_log_has(another):
    for number in range(3):
        overcome(another(session=f"s{number}"))
    agent = another(session="new")
    earlier = ("Edit", EDIT, f"<tool_use_error>{STALE}</tool_use_error>")
    write_session_log(agent, earlier, ("Bash", {"command": "make"}, "Exit code 2"))
    next(agent.ids)
    assert agent.fails("Bash", "Exit code 2", command="make") == ""
    assert [tool for tool, _ in agent.kinds()] == ["Edit", "Bash"]


def test_what_worked_in_another_folder_is_not(another):
    for number in range(5):
        overcome(another(session=f"s{number}"))
    assert another(session="new", folder="/src/other").is_refused("Edit", STALE, **EDIT) == ""


def test_only_observed_is_only_observed(another, monkeypatch):
    for number in range(4):
        overcome(another(session=f"s{number}"))
    monkeypatch.setenv("MULLIGAN_MODE", "observe")
    assert another(session="new").is_refused("Edit", STALE, **EDIT) == ""


def test_what_an_operator_took_back_is_not_said(another):
    for number in range(4):
        overcome(another(session=f"s{number}"))
    store = another().store
    for fix in store.fixes(DEFAULT_TENANT, FixQuery(now=2**42, limit=100)):
        store.decide(DEFAULT_TENANT, fix.id, approved=False, at=2**42)
    store.close()
    assert another(session="new").is_refused("Edit", STALE, **EDIT) == ""


BAD = {"llmContent": "Error: limit must be <= 100", "error": {"message": "limit must be <= 100, got 500",
       "type": "invalid_tool_params"}}  # fmt: skip


def list_items(gemini, limit, response):
    return gemini.tells(
        "AfterTool", tool_name="mcp__crm__list", tool_input={"limit": limit, "query": "tea"}, tool_response=response
    )


def write_log(gemini, limit):
    """Write the log of a session in which the call failed: with it the next call is known to be a correction."""
    response = {
        "functionResponse": {"id": "c1", "name": "mcp__crm__list", "response": {"error": BAD["error"]["message"]}}
    }
    call = {
        "id": "c1",
        "name": "mcp__crm__list",
        "args": {"limit": limit, "query": "tea"},
        "result": [response],
        "status": "error",
        "timestamp": at(2),
    }
    meta = {"sessionId": gemini.session, "projectHash": "abc", "startTime": at(0), "lastUpdated": at(2)}
    message = {"id": "m1", "timestamp": at(1), "type": "gemini", "content": "", "toolCalls": [call]}
    write(gemini.log, meta, message)


@pytest.fixture
def learned(another):
    """A correction that worked in five sessions, and that an operator approved."""
    for number in range(5):
        gemini = another(name="gemini", session=f"g{number}")
        write_log(gemini, 500 + number)
        list_items(gemini, 500 + number, BAD)
        list_items(gemini, 100, {"llmContent": "items"})
    store = another().store
    (fix,) = [fix for fix in store.fixes(DEFAULT_TENANT, FixQuery(now=2**42, limit=100)) if fix.changes]
    store.decide(DEFAULT_TENANT, fix.id, approved=True, at=fix.last_tried_at)
    store.close()
    return another(name="gemini", session="new")


def test_gemini_makes_the_call_that_is_proven_only_where_repairs_are_asked_for(learned, another, monkeypatch):
    told = list_items(learned, 500, BAD)
    assert "tailToolCallRequest" not in told["hookSpecificOutput"]
    assert "limit=100" in told["hookSpecificOutput"]["additionalContext"]
    monkeypatch.setenv("MULLIGAN_MODE", "repair")
    told = list_items(another(name="gemini", session="newer"), 500, BAD)["hookSpecificOutput"]
    assert told["tailToolCallRequest"] == {"name": "mcp__crm__list", "args": {"limit": 100, "query": "tea"}}
    assert "limit 500 -> 100" in told["additionalContext"]


def test_gemini_is_not_told_the_value_with_which_the_call_failed(learned):
    told = list_items(learned, 100, BAD)
    assert "limit=100" not in str(told)


def test_gemini_is_told_too_if_its_log_has_the_failed_call_before_its_event(learned):
    write_log(learned, 500)
    assert "limit=100" in list_items(learned, 500, BAD)["hookSpecificOutput"]["additionalContext"]
    assert len(learned.kinds()) == 1


def test_a_call_that_may_have_done_something_is_not_made_again(learned, another, monkeypatch):
    monkeypatch.setenv("MULLIGAN_MODE", "repair")
    told = list_items(learned, 500, {"error": {"message": "limit must be <= 100, got 500", "type": "mcp_tool_error"}})
    assert "tailToolCallRequest" not in told["hookSpecificOutput"]


def lesson_about(agent, **fields) -> str:
    """A lesson of people's about the failure that the agent met, and its id."""
    store = agent.store
    (pattern,) = store.patterns(DEFAULT_TENANT, PatternQuery(tool="Edit"))
    about = {"tool": "Edit", "fingerprint": pattern.fingerprint, "mistake": "A file changed since.", **fields}
    store.save_lesson(DEFAULT_TENANT, taught.written(correction="Read it first.", **about))
    store.close()
    return taught.WRITTEN


def test_where_nothing_is_proven_here_a_lesson_about_just_that_failure_is_told_once_it_is_approved(another):
    another(session="s1").is_refused("Edit", STALE, **EDIT)
    id = lesson_about(another())
    assert another(session="s2").is_refused("Edit", STALE, **EDIT) == "", "it is a proposal"
    store = another().store
    store.decide_lesson(DEFAULT_TENANT, id, "approve", 1)
    store.close()
    assert another(session="s3", folder="/src/other").is_refused("Edit", STALE, **EDIT) == (
        "mulligan, a lesson about this failure: A file changed since. Try: Read it first (approved by a person)."
    )


def test_what_was_learned_in_another_folder_is_not_told_as_a_lesson_either(another):
    for number in range(8):
        overcome(another(session=f"s{number}"))
    store = another().store
    store.consolidate(DEFAULT_TENANT, 2**41)
    (lesson,) = store.lessons(DEFAULT_TENANT, LessonQuery(tool="Edit", source="learned", now=2**41))
    store.decide_lesson(DEFAULT_TENANT, lesson.id, "approve", 2**41)
    store.close()
    assert another(session="new", folder="/src/other").is_refused("Edit", STALE, **EDIT) == ""


# Recovery links, judged by the log of the session, and without one by equal arguments alone

FILE = "/src/shop/cart.py"
WRONG_TEXT = (
    "def total(items):\n    result = 0\n    for item in items:\n        result += item.price\n    return result\n"
)
RIGHT_TEXT = WRONG_TEXT.replace("result = 0", "result = 0.0")
NEW_TEXT = WRONG_TEXT.replace("item.price", "item.price * item.count")
MISMATCH = "<tool_use_error>String to replace not found in file.</tool_use_error>"


def write_session_log(agent, *calls):
    """Write a log in which these calls were made: name, arguments, and an error or nothing."""
    session = ClaudeCode(agent.session)
    entries = [session.user("fix the cart")]
    for number, (name, arguments, error) in enumerate(calls, start=1):
        entries.append(session.call(f"toolu_{number}", name, 2 * number, **arguments))
        entries.append(session.result(f"toolu_{number}", error or "fine", 2 * number + 1, is_error=bool(error)))
    write(agent.log, *entries)


def edit(old_text: str, path: str = FILE) -> dict[str, str]:
    return {"file_path": path, "old_string": old_text, "new_string": NEW_TEXT}


def list_links(agent) -> list[tuple[int, int, tuple[str, ...]]]:
    history = agent.run()
    return [(link.failed_call, link.recovering_call, link.evidence) for link in history.links]


def test_corrected_edit_is_linked_by_the_session_log(agent):
    write_session_log(agent, ("Edit", edit(WRONG_TEXT), MISMATCH))
    agent.fails("Edit", MISMATCH, **edit(WRONG_TEXT))
    agent.works("Edit", **edit(RIGHT_TEXT))
    assert [(failed, later) for failed, later, _ in list_links(agent)] == [(1, 2)]
    assert "same_text" in list_links(agent)[0][2]


def test_corrected_edit_is_not_linked_without_a_log(agent):
    agent.fails("Edit", MISMATCH, **edit(WRONG_TEXT))
    agent.works("Edit", **edit(RIGHT_TEXT))
    assert list_links(agent) == []


def test_same_arguments_are_linked_without_a_log(agent):
    agent.fails("Edit", MISMATCH, **edit(WRONG_TEXT))
    agent.works("Read", file_path=FILE)
    agent.works("Edit", **edit(WRONG_TEXT))
    assert list_links(agent) == [(1, 3, ("same_arguments",))]


def test_earlier_successes_of_the_log_show_a_loop_over_items(agent):
    """The hook heard only the names of the first calls; the log has their arguments."""
    count = {"query": "price", "mode": "count"}
    write_session_log(
        agent,
        ("Search", {**count, "folder": "app"}, None),
        ("Search", {**count, "folder": "docs"}, "Error: index of docs is broken"),
    )
    agent.works("Search", **count, folder="app")
    agent.fails("Search", "index of docs is broken", **count, folder="docs")
    agent.works("Search", **count, folder="tests")
    assert list_links(agent) == []


@pytest.mark.parametrize("content", [b"", b"not a log\n", b'{"type":"user"'])
def test_unreadable_log_links_nothing_and_harms_nothing(agent, content):
    agent.log.write_bytes(content)
    agent.fails("Edit", MISMATCH, **edit(WRONG_TEXT))
    agent.works("Edit", **edit(RIGHT_TEXT))
    assert list_links(agent) == []
    assert [step.outcome for step in agent.run().steps] == ["failure", "success"]


# Advice that would be wrong in another session


def recover(agent, tool: str, error: str, wrong: dict[str, str], right: dict[str, str]) -> str:
    """A call fails, and the model makes another one that succeeds; what it is told in between."""
    write_session_log(agent, (tool, wrong, f"<tool_use_error>{error}</tool_use_error>"))
    message = agent.is_refused(tool, error, **wrong)
    agent.works(tool, **right)
    agent.ends()
    return message


OLD_TEXT = {"file_path": FILE, "old_string": "count = 1", "new_string": "count = 3"}
PATH = "/src/shop/lib/prices/table.csv"


@pytest.mark.safety
@pytest.mark.parametrize(
    ("tool", "error", "wrong", "right", "forbidden"),
    [
        ("Bash", "Exit code 127\nbash: pyhton: command not found", {"command": "pyhton a.py"},
         {"command": "python a.py"}, ["python a.py", "another command", "other command"]),
        ("Edit", "String to replace not found in file.", OLD_TEXT, {**OLD_TEXT, "old_string": "count = 2"},
         ["count = 2", "another old_string", "other old_string"]),
        ("mcp__db__rows", 'relation "Orders" does not exist', {"table": "Orders"}, {"table": "orders"},
         ["orders", "items"]),
        ("mcp__db__rows", "symbol goog not found", {"table": "goog"}, {"table": "GOOG"}, ["GOOG", "ITEMS"]),
        ("Read", "File does not exist.", {"file_path": PATH}, {"file_path": "table.csv"}, ["table.csv"]),
        ("mcp__crm__find", "Customer cus_4411 not found", {"id": "cus_4411"}, {"id": "cus_8834"}, ["cus_8834"]),
    ],
    ids=["command", "old_string", "lower_case", "upper_case", "base_name", "value_of_another_question"],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["suggest", "repair"])
def test_no_session_is_given_the_values_of_another(another, monkeypatch, mode, tool, error, wrong, right, forbidden):
    monkeypatch.setenv("MULLIGAN_MODE", mode)
    for number in range(6):
        recover(another(session=f"s{number}"), tool, error, wrong, right)
    agent, messages = another(session="new"), []
    if tool == "mcp__db__rows":  # another identifier: there is no evidence that its case is wrong
        error, wrong = error.replace(wrong["table"], "Items"), {"table": "Items"}
    messages += [agent.is_refused(tool, error, **wrong) for _ in range(3)]
    messages.append(agent.compacts())
    assert len(agent.kinds()) == 3
    shown = "\n".join(messages).replace(str(wrong), "").replace(PATH, "")
    assert not [words for words in forbidden if words in shown], shown


def test_no_session_is_given_the_values_of_an_earlier_question_of_its_user(agent):
    """Whatever succeeded for the first question, no hint to the second one repeats it."""
    session = ClaudeCode(agent.session)
    missing = "<tool_use_error>Customer cus_8834460XK not found</tool_use_error>"
    write(
        agent.log,
        session.user("find the customer of order 7"),
        session.call("toolu_1", "mcp__crm__find", 1, id="cus_8834460xk"),
        session.result("toolu_1", "cus_8834460xk: Ada", 2),
        session.user("and the customer of order 8?", 3),
        session.call("toolu_2", "mcp__crm__find", 4, id="cus_8834460XK"),
        session.result("toolu_2", missing, 5, is_error=True),
    )
    agent.works("mcp__crm__find", id="cus_8834460xk")
    messages = [agent.is_refused("mcp__crm__find", "Customer cus_8834460XK not found", id="cus_8834460XK")]
    messages.append(agent.compacts())
    assert len(agent.kinds()) == 1
    assert "cus_8834460xk" not in "\n".join(messages)


def test_failed_call_is_attributed_to_the_model_that_the_log_or_the_event_names(another, types):
    agent = another()
    session = ClaudeCode(agent.session)
    write(agent.log, session.user("fix it"), session.call("toolu_1", "Edit", 1, **EDIT))
    agent.is_refused("Edit", STALE, **EDIT)
    agent.batch(("Bash", {"command": "make"}, "<tool_use_error>no make</tool_use_error>"))
    agent.tells("PostToolUseFailure", tool_name="Edit", tool_use_id="toolu_9", tool_input={**EDIT, "new_string": "x"},
                error="String to replace not found in file.", model="claude-haiku-9")  # fmt: skip
    models = [cause.model for cause in find_causes(agent.run()).values()]
    assert models == ["claude-opus-4-5", "claude-opus-4-5", "claude-haiku-9"]
    parts = json.loads(types("stats", "--by", "model", "--json")[1])["parts"]
    assert {part["model"]: part["tool_failures"] for part in parts} == {"claude-opus-4-5": 2, "claude-haiku-9": 1}
