"""Compares two shell commands: whether the later one is the failed one, corrected.

A correction changes one thing about the command that failed, and the error or the command itself shows that it does
the same: a misspelled program, another launcher, a longer path of the same file, a folder, a setting, an option.
Other words are another command. So are options that do something else, such as `--help`, or that do less: a test that
an option leaves out still fails, and so does a check that an option or a setting switches off. What decides whether
the shell reports success, such as `|| true` or a pipe, must stay.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from mulligan.core.calls import similarity
from mulligan.core.failure import Failure
from mulligan.core.privileged_arguments import split_words
from mulligan.redaction.regex import LazyRegex
from mulligan.redaction.shell_syntax import Command, Word, parse_commands

MAX_COMMAND_CHARS = 2000
"""Longer commands are not compared."""
MAX_COMMANDS = 12
MAX_ERROR_CHARS = 4000

_ASSIGNMENT = LazyRegex(r"[A-Za-z_]\w{0,60}=.*")
_VERSION = LazyRegex(r"(?<=[a-z])-?\d+(?:\.\d+)*$")
_NOT_FOUND = LazyRegex(
    r"not found|no such file|not recognized|cannot find|can't find|can't open|cannot open|could not (?:find|read|open)"
    r"|not a git repository|does not exist|doesn't exist|no [\w.-]{1,40}(?: file)? (?:was )?found|unable to find",
)  # fmt: skip
_UNKNOWN_COMMAND = LazyRegex(
    r"(?:no such|unknown|unrecognized|invalid) (?:command|subcommand|task|target)|is not a \w{1,20} command"
    r"|missing script|no rule to make target|(?:command|subcommand|script|task|target) not found|invalid choice",
)
_KEYWORDS = frozenset("for while until if case do done then else fi esac function { } ( [[ ! & select".split())
_SEQUENCE = frozenset(("", "&&", ";", "\n"))
_NAME_PART = LazyRegex(r"[^\W\d_]+|\d+")
_FILTERS = frozenset("cat grep egrep head less more tail tee".split())
"""Programs at the end of a pipeline that only show less of the output."""
_RUNNERS = {
    "bundle": ("exec",), "npx": (), "bunx": (), "pdm": ("run",), "pipenv": ("run",), "pnpm": ("exec",),
    "poetry": ("run",), "uv": ("run",), "uvx": (), "hatch": ("run",), "python": ("-m",), "py": ("-m",),
}  # fmt: skip
"""Programs that run another one, and the words between."""
_PREFIXES = frozenset("command env exec nice nohup stdbuf sudo doas time timeout".split())
"""Programs that run another one with its arguments after their own options."""
_FOLDER_OPTIONS = {"git": "-C", "make": "-C", "ninja": "-C", "cargo": "-C", "npm": "--prefix"}
_OTHER_ACTIONS = frozenset(
    "--help -h -help -? --version -V --dry-run --dryrun --what-if --list --collect-only --co --no-run --print --show "
    "--check --abort --continue --quit --amend --delete -d -D --remove --purge --uninstall --clean --list-tests "
    "--explain --plan --diff --stat --edit-todo --if-exists --ignore-missing --pass-with-no-tests "
    "--passWithNoTests --exit-zero --ignore-errors -n -k -O -OO -b -B --create --orphan".split()
)
"""Options with which a program does something else, or reports success without doing it."""
_SELECTIONS = frozenset(
    "-run -skip -short --lf --last-failed --deselect --ignore --exclude --filter --grep --only --skip "
    "--testNamePattern --testPathPattern --lib --bins --bin --test --tests --doc --package --limit --max-count "
    "--include --select --tags --shard --onlyChanged --changed --since --only-changed --findRelatedTests".split()
)
"""Options that leave out a part of the work."""
_NEGATIONS = frozenset(
    "skip skips ignore ignored bypass disable disabled insecure unsafe suppress exclude omit allow trusted untrusted "
    "unverified noverify nocheck".split()
)
_CHECKS = frozenset(
    "verify verification check checks checking checker strict ssl tls https cert certificate sandbox auth sign gpgsign "
    "signature hooks audit lint typecheck validate validation security".split()
)
"""Words of options and settings that switch a check off: alone, and with `no` before or a value that says so."""
_OFF = frozenset(("0", "false", "no", "off", "none", "never"))
_DISPLAY = LazyRegex(
    r"-(?:v{1,4}|q{1,2}|s|x|l|ra|rA|rf|sv|vs|qq|xvs|vx|xv)|--(?:verbose|quiet|silent|no-header|nocapture|no-color|ci"
    r"|runInBand|exitfirst|showlocals|watch=false|no-watch|watchAll=false|(?:color|colour|tb|durations|message-format"
    r"|reporter|no-cov)(?:=[\w-]{1,20})?)|--",
)  # fmt: skip
"""Options that change what a test or a build prints, and no result."""


class _ProgramCall(NamedTuple):
    program: str
    """Its name without folder and version."""
    path: str
    """The program as written."""
    words: tuple[str, ...]
    settings: frozenset[str]
    """Assignments before it."""
    operator: str
    files: tuple[str, ...]


class _CommandLine(msgspec.Struct, frozen=True):
    invocations: tuple[_ProgramCall, ...]
    folder: str
    """The folder in which the last one runs, as far as the command says; empty otherwise."""


def is_same_command(before: str, after: str, failure: Failure | None) -> bool:
    """Return whether a command does what the failed command was meant to do, with one correction."""
    if failure is None or max(len(before), len(after)) > MAX_COMMAND_CHARS:
        return False
    failed, later = _parse(before), _parse(after)
    if failed is None or later is None:
        return False
    error = _ErrorText(failure)
    aligned = _align(failed.invocations, later.invocations)
    if aligned is None:
        return False
    corrections = [pair for pair in aligned if pair[0][:4] != pair[1][:4]]
    if failed.folder != later.folder and not _is_corrected_folder(failed.folder, later.folder, error):
        return False
    return len(corrections) <= 1 and all(_is_corrected(old, new, error) for old, new in corrections)


def is_same_folder(before: str, after: str, failure: Failure | None) -> bool:
    """Return whether a command that missed its files runs in the right folder now."""
    return failure is not None and _is_corrected_folder(before, after, _ErrorText(failure))


class _ErrorText:
    def __init__(self, failure: Failure) -> None:
        kind = failure.kind
        self._text = f"{failure.message}\n{failure.detail}"[:MAX_ERROR_CHARS]
        self.is_about_code = kind.is_about_code
        self.says_not_found = kind.is_about_object or _says_not_found(self._text)
        self.says_unknown_command = _UNKNOWN_COMMAND.search(self._text.casefold()) is not None

    def names(self, word: str) -> bool:
        """Return whether the error contains a word that no letter, digit or hyphen continues."""
        start = self._text.find(word)
        while start >= 0:
            end = start + len(word)
            if not self._continues(start - 1) and not self._continues(end):
                return True
            start = self._text.find(word, start + 1)
        return False

    def _continues(self, index: int) -> bool:
        character = self._text[index : index + 1] if index >= 0 else ""
        return character.isalnum() or character in ("-", "_")

    def misses(self, word: str) -> bool:
        """Return whether the error says that something of this name does not exist."""
        return self.says_not_found and self.names(word)


@functools.lru_cache(maxsize=64)  # several commands are compared with that of one failure
def _says_not_found(text: str) -> bool:
    return _NOT_FOUND.search(text.casefold()) is not None


# Parsing


@functools.lru_cache(maxsize=256)
def _parse(command: str) -> _CommandLine | None:
    """Return the programs of a command; None if it is more than a sequence or a pipeline. Cached, as for all pairs."""
    folder = ""
    invocations: list[_ProgramCall] = []
    for simple_command in parse_commands(command):
        is_read = simple_command.operator in _SEQUENCE or simple_command.operator == "|"
        if not is_read or simple_command.is_document or len(invocations) >= MAX_COMMANDS:
            return None
        words = [word.text for word in simple_command.words if not _is_descriptor(word, command)]
        if not words or words[0] in _KEYWORDS:
            return None
        if words[0] in ("cd", "pushd") and len(words) == 2 and simple_command.operator in _SEQUENCE:
            folder = _join_folders(folder, words[1])
            continue
        invocation, own_folder = _read_invocation(simple_command, words)
        if invocation is not None:
            folder = _join_folders(folder, own_folder)
            invocations.append(invocation)
    return _CommandLine(tuple(invocations), folder) if invocations else None


def _read_invocation(command: Command, words: list[str]) -> tuple[_ProgramCall | None, str]:
    """Return a program with its arguments, without what only launches it, and the folder that an option sets."""
    settings: list[str] = []
    words = _skip_settings(words, settings)
    while len(words) > 1 and words[0] in _PREFIXES:
        launcher, words = words[0], words[1:]
        while words and words[0].startswith("-"):
            has_value = words[0] in ("-n", "-u", "-s", "-k", "-o") and len(words) > 2
            words = words[2 if has_value else 1 :]
        words = _skip_settings(words[1:] if launcher == "timeout" else words, settings)
    while len(words) > 1:
        between = _RUNNERS.get(_program_name(words[0]))
        if between is None or tuple(words[1 : 1 + len(between)]) != between or len(words) <= 1 + len(between):
            break
        words = words[1 + len(between) :]
        while len(words) > 1 and words[0] in ("-y", "--yes", "--"):
            words = words[1:]
    if not words:
        return None, ""
    program, arguments = _program_name(words[0]), words[1:]
    if program == "docker" and arguments[:1] == ["compose"]:
        program, arguments = "docker-compose", arguments[1:]
    folder, option = "", _FOLDER_OPTIONS.get(program)
    if option in arguments[:-1]:
        index = arguments.index(option)
        folder, arguments = arguments[index + 1], arguments[:index] + arguments[index + 2 :]
    files = tuple(file for file in command.files if file != "/dev/null")
    return _ProgramCall(program, words[0], tuple(arguments), frozenset(settings), command.operator, files), folder


def _is_descriptor(word: Word, command: str) -> bool:
    """Return whether a word is the number of a redirection: the parser reads `2>&1` as a word and a redirection."""
    return word.text in ("1", "2") and command[word.end : word.end + 1] == ">"


def _skip_settings(words: list[str], settings: list[str]) -> list[str]:
    while words and _ASSIGNMENT.fullmatch(words[0]):
        settings.append(words[0])
        words = words[1:]
    return words


def _program_name(path: str) -> str:
    name = path.replace("\\", "/").rpartition("/")[2].removesuffix(".exe")
    return _VERSION.sub("", name) or name


def _join_folders(outer: str, inner: str) -> str:
    inner = inner.removeprefix("./").rstrip("/") or inner[:1]
    if not outer or not inner or inner.startswith(("/", "~", "$")):
        return inner or outer
    return f"{outer}/{inner}"


# Comparison


def _align(
    failed: Sequence[_ProgramCall], later: Sequence[_ProgramCall]
) -> list[tuple[_ProgramCall, _ProgramCall]] | None:
    """Return the programs that correspond. None if the success of the later command proves nothing for all of them.

    It may run more before them. A pipe hides the exit code of what writes into it, and `;` that of what precedes.
    """
    failed = list(failed)
    while len(failed) > 1 and failed[-1].operator == "|" and later[-1].operator != "|":
        if failed[-1].program not in _FILTERS:
            return None
        failed.pop()
    surplus = len(later) - len(failed)
    if surplus < 0 or (surplus and later[surplus].operator == "|"):
        return None
    pairs = list(zip(failed, later[surplus:], strict=True))
    for index, (old, new) in enumerate(pairs):
        has_same_operator = not index or old.operator == new.operator or new.operator == "&&"
        if not has_same_operator or old.files != new.files:
            return None
    return pairs


def _is_corrected_folder(old: str, new: str, error: _ErrorText) -> bool:
    """Return whether a command missed its files because of its folder. Two folders side by side are two items."""
    if not error.says_not_found:
        return False
    if not old or not new:
        return True
    left, right = _split_path(old), _split_path(new)
    shorter, longer = sorted((left, right), key=len)
    is_part = bool(shorter) and shorter in (longer[: len(shorter)], longer[-len(shorter) :])
    is_misspelled = left[:-1] == right[:-1] and _is_misspelled(left[-1:], right[-1:]) and error.names(old)
    return is_part or is_misspelled


def _is_corrected(old: _ProgramCall, new: _ProgramCall, error: _ErrorText) -> bool:
    """Return whether a program does the same as the failed one: one of program, settings and arguments differs."""
    if not old.settings <= new.settings and not all(
        error.names(setting.partition("=")[0]) for setting in old.settings - new.settings
    ):
        return False
    if any(_switches_check_off(*_split_setting(setting), is_setting=True) for setting in new.settings - old.settings):
        return False
    has_same_program = old.program == new.program and _has_same_path(old.path, new.path, error)
    if not has_same_program:
        is_typo = old.program != new.program and error.misses(old.path) and _is_misspelled([old.program], [new.program])
        return is_typo and old.words == new.words
    return old.words == new.words or _has_corrected_words(old.words, new.words, error)


def _has_same_path(old: str, new: str, error: _ErrorText) -> bool:
    """Return whether two paths of a program of one name may be the same program. A bare name is searched for."""
    if "/" not in old or "/" not in new or old == new:
        return True
    return _is_path_of_same_file(old, new) and error.misses(old)


def _has_corrected_words(old: Sequence[str], new: Sequence[str], error: _ErrorText) -> bool:
    if len(old) == len(new):
        differences = [(left, right) for left, right in zip(old, new, strict=True) if left != right]
        return len(differences) == 1 and _is_corrected_word(*differences[0], error)
    if len(old) < len(new):
        added = _find_inserted(old, new)
        return added is not None and all(_is_harmless_option(group, error) for group in added)
    removed = _find_inserted(new, old)
    return removed is not None and all(_is_rejected_option(group, error) for group in removed)


def _is_corrected_word(old: str, new: str, error: _ErrorText) -> bool:
    if _is_option_cluster(old) and _is_option_cluster(new):
        added = set(new) - set(old)
        return set(old) < set(new) and all(_is_harmless_option((f"-{letter}",), error) for letter in added)
    if not error.names(old):
        return False
    if old.startswith("-") or (error.says_unknown_command and "/" not in old + new and "." not in old + new):
        # A misspelled option or subcommand. A similar name of a file is another file.
        return _is_misspelled([old], [new])
    return error.says_not_found and _is_path_of_same_file(old, new)


def _is_option_cluster(word: str) -> bool:
    return word.startswith("-") and word[1:].isalpha() and len(word) <= 6


def _find_inserted(shorter: Sequence[str], longer: Sequence[str]) -> list[tuple[str, ...]] | None:
    """Return the words that only the longer sequence has, neighbors together; None if others differ too."""
    groups: list[list[str]] = [[]]
    position = 0
    for word in longer:
        if position < len(shorter) and shorter[position] == word:
            position += 1
            groups.append([])
        else:
            groups[-1].append(word)
    return [tuple(group) for group in groups if group] if position == len(shorter) else None


def _split_options(words: Sequence[str]) -> list[tuple[str, str]] | None:
    """Return options with their separate values; None if a word is neither."""
    options: list[tuple[str, str]] = []
    for word in words:
        if word.startswith("-") and len(word) > 1:
            options.append((word, ""))
        elif options and not options[-1][1]:
            options[-1] = options[-1][0], word
        else:
            return None
    return options


def _is_harmless_option(words: Sequence[str], error: _ErrorText) -> bool:
    """Return whether added words are options with which the command still does the same, or those that it asked for."""
    options = _split_options(words)
    if options is None:
        return False
    for option, value in options:
        name = option.partition("=")[0]
        if name in _OTHER_ACTIONS or (name in ("-c", "-C") and not value):
            return False
        if name in ("-f", "--force") and error.says_not_found:
            return False  # what is missing is only no longer reported
        if _switches_check_off(*_split_setting(option)) or _switches_check_off(*_split_setting(value)):
            return False
        if error.is_about_code:
            if value or not _DISPLAY.fullmatch(option):
                return False
        elif not error.names(name) and (
            name in _SELECTIONS or (value and "=" not in value and not option.startswith("--"))
        ):
            return False
    return True


def _is_rejected_option(words: Sequence[str], error: _ErrorText) -> bool:
    """Return whether removed words are options that the error names, or that only change what is printed.

    An error in code that names an option, such as `-Werror`, is still there without it.
    """
    options = _split_options(words)
    return options is not None and all(
        not (option.startswith("--") and option.partition("=")[0] in _OTHER_ACTIONS)
        and (
            (error.names(option.partition("=")[0]) and not error.is_about_code)
            or (not value and _DISPLAY.fullmatch(option) is not None)
        )
        for option, value in options
    )


def _split_setting(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _switches_check_off(name: str, value: str, *, is_setting: bool = False) -> bool:
    """Return whether an option or a setting leaves a check out: `--insecure`, `--no-verify`, `CI=false`."""
    words = {word.casefold() for word in split_words(name)}
    is_off = value.casefold() in _OFF or not words.isdisjoint(("no", "without"))
    return (
        not words.isdisjoint(_NEGATIONS)
        or value.casefold() in _NEGATIONS
        or (is_off and not words.isdisjoint(_CHECKS))
        or (is_setting and value.casefold() in _OFF)
    )


def _is_misspelled(old: Sequence[str], new: Sequence[str]) -> bool:
    """Return whether one name is the other with letters exchanged, or with a letter too many or too few within.

    Of a name with several parts, such as `test:unit`, one part is. Another number is another name.
    """
    if len(old) != 1 or len(new) != 1:
        return False
    parts = [_NAME_PART.findall(name[0].casefold()) for name in (old, new)]
    pairs = [(left, right) for left, right in zip(*parts, strict=False) if left != right]
    if len(parts[0]) != len(parts[1]) or len(pairs) != 1:
        return False
    ((left, right),) = pairs
    if left.isdecimal() or right.isdecimal():
        return False
    if sorted(left) == sorted(right):
        return True
    has_same_ends = left[0] == right[0] and left[-1] == right[-1]
    return has_same_ends and max(len(left), len(right)) >= 4 and similarity(left, right) >= 0.75


def _is_path_of_same_file(old: str, new: str) -> bool:
    """Return whether one path ends with the other: the same file from another folder."""
    shorter, longer = sorted((_split_path(old), _split_path(new)), key=len)
    return bool(shorter) and longer[-len(shorter) :] == shorter


def _split_path(path: str) -> list[str]:
    return [part for part in path.replace("\\", "/").split("/") if part not in ("", ".", "~")]
