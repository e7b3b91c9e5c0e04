"""What a tool is: its category, declared or found from its name, its parameters and its annotations.

The category decides whether the words of a result are content or a status (`result_verdict.py`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from mulligan.core.failure import Returns, ToolCategory

CONTENT_CATEGORIES: frozenset[ToolCategory] = frozenset(
    {"shell", "file", "fetch", "search", "sql", "browser", "code", "model"}
)
"""Categories of tools whose results are content: a file, a page, the output of a program."""
PROGRAM_CATEGORIES: frozenset[ToolCategory] = frozenset({"shell", "code"})
"""Categories of tools that run programs. Their results may state an exit code as text."""
MAX_NAME_CHARS = 200

_WORD = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+"
_SHELL_WORDS = frozenset("bash shell sh zsh terminal console powershell pwsh cmd exec command subprocess ssh".split())
_CODE_WORDS = frozenset("python python3 repl interpreter notebook jupyter ipython javascript eval sandbox".split())
_RUNNABLE_WORDS = frozenset("code script scripts test tests build program".split())
"""What a tool runs whose result is the output of a program."""
_SQL_WORDS = frozenset(
    "sql database db postgres postgresql psql mysql mariadb sqlite duckdb bigquery snowflake clickhouse redshift "
    "athena mssql cypher table tables".split()
)
_BROWSER_WORDS = frozenset("browser browse playwright puppeteer selenium chromium chrome webdriver".split())
_FETCH_WORDS = frozenset("scrape scraper crawl crawler curl wget http https webfetch".split())
_SEARCH_WORDS = frozenset(
    "search websearch grep ripgrep google bing duckduckgo tavily brave serp serpapi exa perplexity retrieve retriever "
    "retrieval rag".split()
)
_MODEL_WORDS = frozenset("llm gpt claude gemini subagent summarize translate".split())
_READ_WORDS = frozenset("read view cat tail head glob".split())
"""Verbs that say alone that a tool returns what is stored."""
_GET_WORDS = frozenset("get list load show open fetch download inspect extract parse ls".split())
"""Verbs that say so with the name of something that has content."""
_FILE_WORDS = frozenset(
    "file files directory dir folder document documents doc docs log logs transcript transcripts emails mails inbox "
    "readme wiki attachment attachments pdf csv spreadsheet diff contents".split()
)
_PAGE_WORDS = frozenset("url urls web page pages html site website link webpage".split())
_CHANGE_WORDS = frozenset(
    "write edit update create delete remove move rename copy insert replace apply patch set add put upload save append "
    "book buy pay cancel refund approve deploy start stop restart install commit push merge submit schedule transfer "
    "assign close reopen register order purchase modify change str_replace touch mkdir rm mv cp".split()
)
_MESSAGE_WORDS = frozenset("send post reply notify publish tweet comment".split())
_QUERY_WORDS = frozenset("query run execute sql".split())
"""Words of a tool that runs a query: with nothing else in its name, that of a database."""
_READING_WORDS = (
    _READ_WORDS | _GET_WORDS | _SEARCH_WORDS | _QUERY_WORDS | frozenset("describe check lookup count find".split())
)
_CHANGING_WORDS = _CHANGE_WORDS | _MESSAGE_WORDS
_COMMAND_PARAMETERS = frozenset({"command", "cmd", "commands", "commandline", "script"})
_PAGE_PARAMETERS = frozenset({"url", "uri", "urls"})
_PATH_PARAMETERS = frozenset({"path", "filepath", "filename", "file"})


def find_category(
    name: str, parameters: Collection[str] = (), annotations: Mapping[str, Any] | None = None, type: str = "tool"
) -> ToolCategory:
    """Return the category of a tool that declares none. Its name tells most, then its parameters.

    `annotations` are those of MCP. They come from the server and only decide between reading and changing.
    """
    if type == "model":
        return "model"
    hint = annotations.get("readOnlyHint") if isinstance(annotations, Mapping) else None
    category = _category_of_name(name[:MAX_NAME_CHARS], hint if isinstance(hint, bool) else None)
    if category != "other":
        return category
    if type == "retrieval":
        return "search"
    names = {parameter.lower().replace("_", "") for parameter in parameters if isinstance(parameter, str)}
    if names & _COMMAND_PARAMETERS:
        return "shell"
    if "sql" in names:
        return "sql"
    if hint is True and names & _PAGE_PARAMETERS:
        return "fetch"
    if hint is True and names & _PATH_PARAMETERS:
        return "file"
    return "other"


@functools.lru_cache(maxsize=1000)
def find_category_of_name(name: str) -> ToolCategory:
    """Return the category of a tool of which only the name is known, such as one in a log."""
    return _category_of_name(name[:MAX_NAME_CHARS], None)


def returns_content(category: ToolCategory, returns: Returns | None = None) -> bool:
    """Return whether the results of a tool are content. A declaration takes precedence over the category."""
    return category in CONTENT_CATEGORIES if returns is None else returns == "content"


def _category_of_name(name: str, is_read_only: bool | None) -> ToolCategory:
    words = [word.lower() for word in re.findall(_WORD, name)]
    if "by" in words[1:]:
        words = words[: words.index("by", 1)]  # `find_user_by_email` returns a user
    unique_words = frozenset(words)
    for category, category_words in _PROGRAMS:
        if unique_words & category_words:
            return category
    if unique_words & {"run", "execute"} and unique_words & _RUNNABLE_WORDS:
        return "code" if "code" in unique_words else "shell"
    if is_read_only is None:
        # The first verb decides: `get_order` reads, `order_copy` does not.
        verb = next((word for word in words if word in _READING_WORDS or word in _CHANGING_WORDS), "")
        is_read_only = verb not in _CHANGING_WORDS
    if not is_read_only:
        if unique_words & _MESSAGE_WORDS:
            return "message"
        runs_queries = "sql" in unique_words or "query" in unique_words
        return "sql" if runs_queries else "action"
    return next((category for category, matches in _READERS if matches(unique_words)), "other")


def _reads_database(words: frozenset[str]) -> bool:
    return not words.isdisjoint(_SQL_WORDS) or ("query" in words and words <= _QUERY_WORDS | _READ_WORDS)


def _fetches_pages(words: frozenset[str]) -> bool:
    if not words.isdisjoint(_FETCH_WORDS) or words == {"fetch"}:
        return True
    return not words.isdisjoint(_PAGE_WORDS) and not words.isdisjoint(_GET_WORDS) and words.isdisjoint(_FILE_WORDS)


def _reads_documents(words: frozenset[str]) -> bool:
    if not words.isdisjoint(_READ_WORDS) or words == {"ls"} or "git" in words:
        return True
    return not words.isdisjoint(_GET_WORDS) and not words.isdisjoint(_FILE_WORDS | _PAGE_WORDS)


_PROGRAMS: tuple[tuple[ToolCategory, frozenset[str]], ...] = (
    ("browser", _BROWSER_WORDS),
    ("shell", _SHELL_WORDS),
    ("code", _CODE_WORDS),
)
"""Categories whose words decide whatever else the name says: `delete_command` is a shell, `browser_type` a browser."""
_READERS: tuple[tuple[ToolCategory, Callable[[frozenset[str]], bool]], ...] = (
    ("search", lambda words: not words.isdisjoint(_SEARCH_WORDS)),
    ("sql", _reads_database),
    ("fetch", _fetches_pages),
    ("file", _reads_documents),
    ("model", lambda words: not words.isdisjoint(_MODEL_WORDS) or words in ({"task"}, {"agent"})),
)
