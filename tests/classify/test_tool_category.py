"""A tool's category follows from its name, its parameters, its annotations and its type."""

from __future__ import annotations

import pytest

from mulligan.classify.tool_category import find_category, find_category_of_name, returns_content


@pytest.mark.parametrize(
    ("category", "names"),
    [
        ("shell", "Bash run_command execute_bash exec terminal run_shell_command functions.exec powershell"),
        (
            "file",
            "Read read_file get_file_contents list_directory Glob view cat fs.readFile get_logs git_diff "
            "directory_tree kubectl_logs get_content listComments",
        ),
        ("fetch", "WebFetch fetch fetch_url get_page scrape http_request open_url getUrl"),
        ("search", "search web_search Grep grep_search codebase_search tavily search_flights search_order_history"),
        ("sql", "query run_query execute_sql read_query write_query describe_table postgres_query"),
        ("browser", "browser_navigate browser_click playwright_screenshot browse"),
        ("code", "python run_code executeCode code_interpreter ipython"),
        ("message", "send_email post_message reply notify_user"),
        ("action", "Write Edit write_file book_flight create_ticket delete_file TodoWrite git_commit update_table"),
        ("model", "ask_llm Task subagent"),
        ("other", "get_weather get_order_details list_orders lookup_city calculate x"),
    ],
)
def test_category_follows_from_the_name_of_a_tool(category: str, names: str) -> None:
    assert {name: find_category(name) for name in names.split()} == dict.fromkeys(names.split(), category)


@pytest.mark.parametrize(
    ("parameters", "annotations", "category"),
    [
        (["command"], None, "shell"),
        (["sql"], None, "sql"),
        (["url"], {"readOnlyHint": True}, "fetch"),
        (["file_path"], {"readOnlyHint": True}, "file"),
        (["url"], None, "other"),
        (["path"], {"readOnlyHint": False}, "action"),
        (["city"], {"readOnlyHint": True}, "other"),
        ([1, None], {"readOnlyHint": "yes"}, "other"),
    ],
)
def test_category_follows_from_parameters_and_annotations_if_the_name_says_nothing(
    parameters: list[str], annotations: dict[str, object] | None, category: str
) -> None:
    assert find_category("handle", parameters, annotations) == category


def test_annotation_decides_whether_a_tool_reads_or_changes() -> None:
    assert find_category("copy_of_file") == "action"
    assert find_category("read_copy_of_file", annotations={"readOnlyHint": True}) == "file"
    assert find_category("get_file", annotations={"readOnlyHint": False}) == "action"


def test_type_of_a_step_decides_before_and_after_the_name() -> None:
    assert find_category("read_file", type="model") == "model"
    assert find_category("lookup", type="retrieval") == "search"


@pytest.mark.parametrize("name", ["", "\ud800", "a" * 10_000_000, "\x00\u202e", "__" * 1000], ids=[*"abcde"])
def test_name_of_any_form_has_a_category(name: str) -> None:
    assert find_category_of_name(name) == find_category(name) == "other"


def test_declared_return_takes_precedence_over_the_category() -> None:
    assert returns_content("file")
    assert not returns_content("file", "status")
    assert not returns_content("action")
    assert returns_content("action", "content")
