"""What looks like a tool's own failure in content that has no error flag: a block page, or only a program's error.

A file, a page or the output of a program may be about any error. So the words alone prove little: the text must be
short, begin or end as errors of such tools do, and must not be what the call asked to see.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from mulligan.classify.results import is_error_text, strip_control_chars
from mulligan.classify.rules import compile_rule_pattern, read_pattern
from mulligan.classify.statements import MIN_FILE_SCORE, MIN_REPORT_SCORE, MIN_SCORE, states_failure
from mulligan.classify.tool_category import CONTENT_CATEGORIES
from mulligan.core.failure import ToolCategory

MAX_REPORT_CHARS = 700
"""Longer texts of tools other than programs are content, unless they are pages."""
MAX_REPORT_LINES = 4
MAX_PROGRAM_LINES = 16
"""Lines of a program's output from a tool that is not known to run programs."""
MAX_PAGE_TEXT_CHARS = 1500
"""Longer pages without markup are content: those that block a reader say little."""
MAX_PAGE_HEAD_CHARS = 6000
MAX_OUTPUT_HEAD_CHARS, MAX_OUTPUT_TAIL_CHARS = 200, 400
"""Characters at both ends of a long output: a program reports its own failure first or last."""
MAX_NAME_CHARS = 60
"""Characters of the name with which a program begins its report."""
MAX_COMMAND_CHARS = 2000


def join_phrases(section: str) -> str:
    """Return a pattern that matches one of the phrases of a section of `rules/unflagged.txt`."""
    return f"(?:{read_pattern('unflagged', section)})"


def find_unflagged_failure(text: str, category: ToolCategory, arguments: Mapping[str, Any] | None = None) -> str:
    """Return the part of a result that looks like the tool's own failure, or an empty text."""
    if not may_report_failure(text, category):
        return ""
    text = compile_rule_pattern(r"\A#{1,4} (?:result|output|response)\n+").sub("", strip_control_chars(text).strip())
    if category in _PROGRAM_CHECKS:
        return _PROGRAM_CHECKS[category](text, arguments or {})
    asks_page = category == "file" and any(str(value).startswith("http") for value in (arguments or {}).values())
    if (
        asks_page
        or category in ("fetch", "browser")
        or (category != "file" and compile_rule_pattern(_PAGE_PATTERN).match(text))
    ):
        return _find_in_page(text, arguments)
    lines = text.splitlines()
    is_program = category not in CONTENT_CATEGORIES and len(lines) <= MAX_PROGRAM_LINES and not _is_log(text)
    if is_program and any(map(_ends_program, (lines[0], lines[-1]))):
        return text
    if len(text) > MAX_REPORT_CHARS or len(lines) > MAX_REPORT_LINES or _is_log(text):
        return ""
    if category == "file":
        return text if is_file_report(text, arguments) else ""
    is_search = category in ("search", "sql") and lines[0].partition(":")[0].isidentifier()
    if is_search and compile_rule_pattern(_PROGRAM_LINE_PATTERN).match(lines[0]):
        return text
    pattern = _REPORT_PATTERNS.get(category)
    if pattern is not None and compile_rule_pattern(pattern).search(text):
        return text
    min_score = MIN_SCORE if category in (*CONTENT_CATEGORIES, "other") else MIN_REPORT_SCORE
    return text if category != "model" and (is_error_text(text) or states_failure(text, min_score)) else ""


def may_report_failure(text: str, category: ToolCategory) -> bool:
    """Return whether a text may report a failure. Cheap: every result that is content is checked."""
    if text[:1] == "{":
        return True
    if category in _PROGRAM_CHECKS:
        if text.find(": ", 0, MAX_NAME_CHARS) > 0:
            return True
        if len(text) > MAX_OUTPUT_HEAD_CHARS + MAX_OUTPUT_TAIL_CHARS:
            text = text[:MAX_OUTPUT_HEAD_CHARS] + text[-MAX_OUTPUT_TAIL_CHARS:]
        lower = text.lower()
        for mark in _OUTPUT_MARKS:  # noqa: SIM110 - any() with a generator takes three times as long
            if mark in lower:
                return True
        return False
    if category in ("fetch", "browser"):
        return len(text) <= MAX_PAGE_TEXT_CHARS or "<" in text[:200]
    return len(text) <= MAX_REPORT_CHARS


_OUTPUT_MARKS = (
    "error", "err!", "not found", "denied", "no such", "fatal", "fail", "cannot", "could not", "can't", "couldn't",
    "unable", "refused", "killed", "fault", "panic", "exception", "not recognized", "unknown ", "invalid", "directory",
    "permitted", "timed out", "e: ", "exists", "not a ", "no space", "aborted", "not installed", "***", "exit",
    "return", "no module", "no rule", "missing", "required", "unexpected", "usage:", "conflict",
    "did not", "died", "crash", "lost", "exceeded",
)  # fmt: skip
"""Words of which one is in every error of a program, and in the frame with its exit code."""


def _ends_program(line: str) -> bool:
    """Return whether a line is one with which a shell, a build or a test run ends in failure."""
    patterns = _SHELL_LINE_PATTERN, _OUTPUT_LINE_PATTERN
    return "?" not in line and any(compile_rule_pattern(pattern).match(line) for pattern in patterns)


def _is_log(text: str) -> bool:
    """Return whether a text is lines of a log: the first one begins with a time or a level."""
    return compile_rule_pattern(_LOG_PATTERN).match(text) is not None


_LOG_PATTERN = r"\A\W{0,2}" + join_phrases("logs")


# Files


def is_file_report(text: str, arguments: Mapping[str, Any] | None) -> bool:
    """Return whether a text says that the file of the call could not be read."""
    is_report = compile_rule_pattern(_FILE_FAILURE_PATTERN).search(text) is not None
    if not is_report and compile_rule_pattern(_FILE_WORDS_PATTERN).search(text):
        is_report = states_failure(text, MIN_FILE_SCORE)
    if not is_report:
        return not may_name_file(arguments) and is_error_text(text)
    paths = [value for value in (arguments or {}).values() if isinstance(value, str) and 0 < len(value) <= 1000]
    if any(path in text or _base_name(path) in text for path in paths):
        return True
    # Another path than that of the call: what the file says about some other file.
    names_path = compile_rule_pattern(r"[\w.-]{1,60}[/\\][\w.-]{1,60}|\b\w{1,40}\.[a-z]{1,5}\b").search(text)
    return not (paths and names_path)


def may_name_file(arguments: Mapping[str, Any] | None) -> bool:
    """Return whether an argument may be the path of a file, whose content may be anything. Without any, one may be."""
    return not arguments or any(
        isinstance(value, str) and ("." in value or "/" in value or "\\" in value) for value in arguments.values()
    )


def _base_name(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1] or path


_FILE_WORDS_PATTERN = (
    r"\A(?-i:[a-z])[\w-]{2,40}: |\b(?:path|file|folder|directory|lines?|anchor|offset|encoding|bytes|workspace|sandbox|"
    r"nothing (?:written|changed|read|saved)|read|written|edit)\b"
)
"""What a report about the access to a file names, or the name of the tool before it."""
_FILE_FAILURE_PATTERN = (
    r"\A(?:<\w{1,20}>)?\W{0,3}(?:(?:error|failed|fatal|failure|warning|sorry|oops)\b[^\n]{0,200}?)?"
    + join_phrases("files")
)


# Pages

_PAGE_PATTERN = r"<(?:!doctype html|html|head|title|body|h1)\b"


def _find_in_page(text: str, arguments: Mapping[str, Any] | None) -> str:
    head = text[:MAX_PAGE_HEAD_CHARS]
    if compile_rule_pattern(_PAGE_PATTERN).search(head[:600]):
        return _find_in_markup(text, head, arguments)
    if len(text) > MAX_PAGE_TEXT_CHARS:
        return ""
    if compile_rule_pattern(_BLOCK_TEXT_PATTERN).search(text) or compile_rule_pattern(_LOGIN_TEXT_PATTERN).search(text):
        return text
    is_short = len(text) <= MAX_REPORT_CHARS and text.count("\n") < MAX_REPORT_LINES and not _is_log(text)
    is_reported = compile_rule_pattern(_FETCH_PATTERN).match(text) is not None or is_error_text(text)
    return text if is_short and (is_reported or states_failure(text)) else ""


def _find_in_markup(text: str, head: str, arguments: Mapping[str, Any] | None) -> str:
    tags = (rf"<{tag}[^>]{{0,100}}>\s{{0,20}}([^<]{{1,200}}?)\s{{0,20}}</{tag}>" for tag in ("title", "h1"))
    name = next((match[1] for tag in tags if (match := compile_rule_pattern(tag).search(head))), "")
    # Characters of a page that are searched for a login form.
    form = compile_rule_pattern(r"<input[^>]{0,300}\btype=[\"']?password").search(text[:40_000])
    is_marked = "<article" in head and form is None  # a form may be marked up as an article too
    if is_marked or compile_rule_pattern(r"\b(?:how|why|what|guide|explained|causes)\b").search(name):
        return ""  # an article
    if name and compile_rule_pattern(_BLOCK_TITLE_PATTERN).search(name):
        return name
    if match := compile_rule_pattern(_BLOCK_MARKUP_PATTERN).search(head):
        return name or match.group()
    body = " ".join(
        compile_rule_pattern(r"<(?:style|script|title)[\s\S]{0,4000}?</\w+>|<[^>]{0,300}>").sub(" ", head).split()
    )
    if len(text) <= len(head) and states_failure(body, MIN_FILE_SCORE):
        return name or body
    asks_login = compile_rule_pattern(r"log-?in|sign-?in|auth|session").search(str(arguments or ""))
    if asks_login or not compile_rule_pattern(_LOGIN_TITLE_PATTERN).search(name):
        return ""
    return name if form else ""


_BLOCK_TITLE_PATTERN = join_phrases("titles of pages that block")
_BLOCK_MARKUP_PATTERN = join_phrases("markup of pages that block")
_LOGIN_TITLE_PATTERN = join_phrases("titles of logins")
_BLOCK_TEXT_PATTERN = join_phrases("texts of pages that block")
_LOGIN_TEXT_PATTERN = join_phrases("texts of logins")
_FETCH_PATTERN = r"\A\W{0,3}(?:(?:error|failed)\b[^\n]{0,80})?" + join_phrases("requests of pages")


# Searches, queries, models

_REPORT_PATTERNS: dict[ToolCategory, str] = {
    "search": r"\A\W{0,3}" + join_phrases("searches"),
    "sql": r"\A\W{0,3}" + join_phrases("queries"),
    "model": r"\A(?:API Error:? (?:\(?[45]\d\d|connection|request)|error code: [45]\d\d - \{)",
}
"""How errors of these tools begin."""


# Programs


def _find_in_output(text: str, arguments: Mapping[str, Any]) -> str:
    """Return the line with which a command reports its own failure, or an empty text.

    A command that shows a file or a log has failed only if the shell says so, or the program that shows it.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    programs = frozenset(_iter_programs(arguments))
    readers = READERS & programs
    # Lines at the end of an output that are searched.
    first_lines, last_lines = lines[:3], lines[: -6 - 1 : -1]
    is_short = len(lines) <= MAX_REPORT_LINES
    if is_short or not readers:
        for line in (lines[0], *last_lines):
            if compile_rule_pattern(_SHELL_LINE_PATTERN).match(line):
                return line
    if is_short and _reports_itself(lines[0], programs):
        return lines[0]
    if readers:
        return lines[0] if _answers_service(lines, readers) else ""
    failed_build = next(filter(compile_rule_pattern(r"\[(?:info|error)\] build failure").match, last_lines), "")
    if failed_build or _is_log(text):
        return failed_build
    openings = (_PROGRAM_LINE_PATTERN, _SCRIPT_LINE_PATTERN, _OUTPUT_OPENING_PATTERN)
    if is_short and any(compile_rule_pattern(pattern).match(lines[0]) for pattern in openings):
        return lines[0]
    if _is_usage(text, arguments):
        return lines[0]
    if is_short and compile_rule_pattern(r"[a-z][\w.+-]{0,20}: ").match(lines[0]) and states_failure(lines[0]):
        return lines[0]
    for line in (*first_lines, *last_lines):
        if any(
            compile_rule_pattern(pattern).match(line) for pattern in (_OUTPUT_LINE_PATTERN, _OUTPUT_SUMMARY_PATTERN)
        ):
            return line
    return _find_stack_trace(text, lines) or (lines[0] if len(lines) <= 2 and is_error_text(text) else "")


def _reports_itself(line: str, programs: Collection[str]) -> bool:
    """Return whether a line begins with the name of a program that the command runs, as the reports of programs do."""
    name, colon, report = line.partition(": ")
    if (program := _REPORT_PREFIXES.get(name)) is not None and colon:
        return program in programs
    is_report = name.rpartition("/")[2] in programs and bool(report.strip())
    return is_report and compile_rule_pattern(_NO_FAILURE_PATTERN).search(report) is None


def _answers_service(lines: list[str], readers: Collection[str]) -> bool:
    """Return whether the only line is the error of a service whose logs a command such as `docker logs` asks for."""
    asks_service = any("/" in reader for reader in readers)
    return asks_service and len(lines) == 1 and lines[0].startswith(("Error response from ", "Error from server"))


def _is_usage(text: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether a command answers with its usage although the call did not ask for it."""
    command = _find_command(arguments)
    asks_for_help = not command or compile_rule_pattern(r"-h\b|help\b|\bman\b").search(command)
    return not asks_for_help and text[:7].lower() == "usage: "


def _find_in_code_output(text: str, arguments: Mapping[str, Any]) -> str:
    """Return the exception with which executed code ended, or an empty text."""
    lines = [line for line in text.splitlines() if line.strip()]
    if _is_log(text) or not lines:
        return ""
    pattern = (
        r"(?:uncaught )?[\w.]{0,80}(?:Error|Exception|Interrupt|Exit)\b(?: at [^\n:]{1,60})?(?:: |$)|"
        r"(?:execution|evaluation|kernel|cell|code) (?:timed out|failed|was interrupted|died)\b|"
        r"uncaught exception\b|(?:\w{1,12}> ?)?(?-i:ERROR): \S|"
        r"(?=[^\n]{0,40}\b(?:kernel|cell|execution|interpreter|session|sandbox|runtime|memory|output|code)\b)"
        r"[^\n]{0,60}\b(?:crashed|died|killed|lost|exceeded|timed out|not allowed|unavailable|terminated)\b"
    )
    # Lines of an output that begins with an exception: a longer one is content.
    if len(lines) <= 20 and compile_rule_pattern(pattern).match(lines[0]):
        return lines[0]
    is_short = len(text) <= MAX_REPORT_CHARS and len(lines) <= MAX_REPORT_LINES
    shows_file = "open(" in str(arguments) and "print(" in str(arguments)
    return _find_stack_trace(text, lines, shows_file) or (text if is_short and is_error_text(text) else "")


def _find_stack_trace(text: str, lines: list[str], shows_file: bool = False) -> str:
    """Return the exception whose stack trace ends the text, of Python or of JavaScript."""
    lines = lines[:-1] if len(lines) > 1 and lines[-1].startswith("Node.js v") else lines
    if shows_file and compile_rule_pattern(r"File \"/").search(text[:400]):
        return ""
    if "Traceback (most recent call last)" in text and compile_rule_pattern(r"[\w.]{1,100}(?:: |\Z)").match(lines[-1]):
        return lines[-1]
    if compile_rule_pattern(r"\s{2,8}at \S.{0,200}:\d{1,7}(?::\d{1,7})?\)?\s*\Z").match(lines[-1][:400]):
        pattern = r"(?:uncaught )?[\w.$]{0,60}(?:Error|Exception)\b(?: \[\w+\])?: .{1,200}"
        return next((line for line in lines if compile_rule_pattern(pattern).match(line)), "")
    return ""


def has_own_exit_code(output: str, arguments: Mapping[str, Any] | None) -> bool:
    """Return whether the exit code at the edge of an output is that of the command, not one that it has printed."""
    programs = [program for program in _iter_programs(arguments or {}) if "/" not in program]
    command = _find_command(arguments or {}).lower()
    if "$?" in command or "exit code" in command:
        return False
    if not programs or not READERS.issuperset(programs):
        return True
    reports = map(compile_rule_pattern(_PROGRAM_LINE_PATTERN).match, output.splitlines()[1:3])
    return output[:1] == "{" or any(report is not None and report[1] in programs for report in reports)


def calls_service(arguments: Mapping[str, Any] | None) -> bool:
    """Return whether a command only calls a service, so that an error object in its output is the service's answer."""
    programs = set(_iter_programs(arguments or {}))
    return not programs.isdisjoint(_SERVICE_CLIENTS) and programs.isdisjoint(READERS)


def _iter_programs(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield the programs that a command runs, and each with one of its first words: `git/log`, `docker/logs`."""
    for part in re.split(r"&&|\|\||[;|\n&]", _find_command(arguments)):
        words = [word for word in part.split() if "=" not in word and word not in _WRAPPERS]
        if words:
            program = words[0].rpartition("/")[2]
            yield program
            yield from (f"{program}/{word}" for word in words[1:4])


def _find_command(arguments: Mapping[str, Any]) -> str:
    """Return the command that a call runs, bounded, or an empty text."""
    command = next((arguments[name] for name in _COMMAND_ARGUMENTS if name in arguments), "")
    if isinstance(command, (list, tuple)):
        command = " ".join(str(part)[:200] for part in command[:20])
    return command[:MAX_COMMAND_CHARS] if isinstance(command, str) else ""


_COMMAND_ARGUMENTS = ("command", "cmd", "script", "input")
_SERVICE_CLIENTS = frozenset("curl wget http https xh gh aws gcloud az kubectl".split())
_WRAPPERS = frozenset("sudo time nohup env xargs exec command timeout nice".split())
READERS = frozenset(
    "cat less more head tail bat zcat zgrep zless grep egrep fgrep rg ag ack awk sed jq yq strings journalctl dmesg "
    "echo printf tr rev tee base64 xxd hexdump diff fold cut sort uniq column nl tac man "
    "git/log git/show git/diff git/blame git/grep "
    "docker/logs kubectl/logs kubectl/describe kubectl/events heroku/logs compose/logs "
    "gh/run gh/issue gh/pr aws/logs".split()
)
"""Programs that show what is stored. Errors in their output are content."""
_CAUSE = join_phrases("causes")
"""Causes that systems name in the same words everywhere."""
_SHELL_LINE_PATTERN = r"\s{0,8}" + join_phrases("shells")
"""How a shell reports a failure, whatever the command shows."""
_PROGRAM_LINE_PATTERN = r"((?:/[\w./-]{1,120}/)?[a-z][\w.+-]{0,40}): " + join_phrases("reports of programs") + r"\Z"
"""How a program reports a failure: `cp: cannot stat 'a': No such file or directory`."""
_REPORT_PREFIXES = {"fatal": "git", "error": "git", "parse error": "jq"}
"""What some programs put in place of their name."""
_NO_FAILURE_PATTERN = r"nothing to be done|up to date|(?:entering|leaving) directory|warning|^ok\b|success|version \d"
"""What a program reports about itself that is no failure."""
_SCRIPT_LINE_PATTERN = r"[\w./-]{1,120}: line \d{1,6}: \S"
_OUTPUT_OPENING_PATTERN = r"[^\n]{0,60}\b(?:could not|cannot|can't|unable to|failed to) \w"
"""How a short output begins that says what a program could not do."""
_OUTPUT_LINE_PATTERN = join_phrases("lines of programs")
"""How other programs begin the line that says what failed."""
_OUTPUT_SUMMARY_PATTERN = join_phrases("summaries of programs")
"""How programs of any kind sum up that they failed."""
_PROGRAM_CHECKS: dict[ToolCategory, Callable[[str, Mapping[str, Any]], str]] = {
    "shell": _find_in_output,
    "code": _find_in_code_output,
}
