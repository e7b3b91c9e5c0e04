"""Rules about words of error texts, by the files that hold them. The classifier tries the tables in this order.

It checks each result against the class and the status, if any. General words decide after particular ones, and only if
they can refer to the call: see `Kind.can_occur_in_output`.
"""

from __future__ import annotations

from mulligan.classify.rules import RuleTable, compile_rule_pattern, read_pattern, read_rules

# Coding agents
STOPPED_CALLS = read_rules("coding", "stopped calls")
"""Calls that the user, the host or a limit stopped. Most of them are not failures."""
COMMAND_TIMEOUTS = read_rules("coding", "command timeouts")
"""Commands that the host of a coding agent stopped. The output before that, such as that of tests, is incomplete."""
EDITING = read_rules("coding", "editing")
TESTS_AND_BUILDS = read_rules("coding", "tests and builds")

# Programs. A refused connection precedes a missing file, since sockets are files too. Only a refused connection and an
# unknown host prove that nothing was sent: after a connection is established, the outcome is unknown.
PARTICULAR_RULES = read_rules("shell", "particular rules")
PROGRAMS = read_rules("shell", "programs")
SYSTEM_MESSAGES = read_rules("languages", "system messages")
"""What systems, shells, git and databases say in other languages than English."""
COMMANDS = read_rules("shell", "commands")
"""Rules about the command of a program that failed without words."""

# Services that fail, rejected arguments, wrong state, missing objects
GENERAL_RULES = read_rules("rejections", "general rules")
SENTENCES = read_rules("languages", "sentences")
"""General words of services in other languages than English."""
_ENGLISH_WORDS = r"\b(?:the|not|are|with|cannot|failed|found|from|and|this|you|your|has|been)\b"
"""Words that an English text has, and a text in another language that needs no accents has not."""
ARGUMENTS = RuleTable(rule for rule in GENERAL_RULES if rule.kind.is_about_tool_name or rule.kind.rejects_arguments)
GUESSES = read_rules("rejections", "guesses")
"""Sentence shapes rather than words: matched only if no other rule decided, and with low confidence."""

ARGUMENT_WORDS = read_pattern("rejections", "words about arguments")
"""A rejection with one of these may be about the arguments; without, it is about the state of an object."""
QUERY_WORDS = read_pattern("rejections", "words about queries")
SEARCH_WORDS = read_pattern("rejections", "words about searches")
"""In the error of a database or a search: then its query is rejected."""


def is_english(text: str) -> bool:
    """Return whether a text is in English for certain."""
    return text.isascii() and compile_rule_pattern(_ENGLISH_WORDS).search(text) is not None


def find_language_tables(text: str) -> tuple[RuleTable, ...]:
    """Return the tables for a text that may be in another language than English."""
    return () if is_english(text) else (SYSTEM_MESSAGES, SENTENCES)


FIRST_ERROR_PATTERN = (
    r"^\s{0,40}--- FAIL: .{1,200}|^(?:FAILED|ERROR) \S{1,300}::.{1,200}|^E   +\S.{1,200}|^test .{1,200} \.\.\. FAILED|"
    r"^error\[E\d{4}\].{1,200}|^\S{1,200}:\d{1,9}:\d{1,9}: .{1,200}|^\S{1,200}\(\d{1,9},\d{1,9}\): error .{1,200}|"
    r"^\S{1,200}:\d{1,9}: error: .{1,200}|^\S{1,200}\.\w{1,8}:\d{1,9}: \S.{1,200}|^[ \t]{0,40}\u25cf .{1,200}|"
    r"^(?:FAIL|ERROR): \w.{1,200}|^[ \t]{0,40}(?:[\w.]{0,80}Error|SyntaxError): .{1,200}|^FAIL\t\S{1,300}.{0,100}|"
    r"^\[ERROR\] .{1,200}|^.{0,100}undefined reference to .{1,200}|^error: .{1,200}"
)
"""First error line of a build or a test run."""
