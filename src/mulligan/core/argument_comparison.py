"""Compares the arguments of two calls: changes of form, changes of value, similar texts and redacted values."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.core import fork_safety
from mulligan.core.calls import diff_arguments, is_same_json
from mulligan.core.command_comparison import is_same_command, is_same_folder
from mulligan.core.edit_comparison import find_edit, is_same_edit
from mulligan.core.failure import Failure, Remedy
from mulligan.core.records import Change, Step, message_numbers
from mulligan.core.stated_limits import names_argument, says_missing, says_unknown, unnamed_words
from mulligan.redaction.regex import LazyRegex

MAX_RESULT_CHARS = 8000
MAX_COMPARED_VALUES = 200
"""Values of a call that are compared to find whether two calls share one."""
MAX_SHORT_CHARS = 80
"""Longer texts and lists in the arguments of a recent success are not stored."""
_COMMANDS = frozenset({"command", "cmd", "script"})
_COMMENTS = frozenset({"description", "explanation"})
"""Arguments that only comment on a command next to them."""
_WORKING_FOLDERS = frozenset({"workdir", "cwd", "dir_path"})
_PATHS = frozenset("path file filename filepath directory dir folder notebook source destination src dst dest".split())
FORM_OPERATIONS = frozenset({"cast", "rename", "parse", "wrap", "trim", "enum"})


class Comparison(msgspec.Struct, frozen=True):
    """The differences between the arguments of a failed call and a later one."""

    values: dict[str, tuple[Any, Any]]
    """Arguments with another value, by path: before and after."""
    item_paths: tuple[str, ...]
    """Paths of them that may name an item. Long texts are compared separately."""
    doubtful: tuple[str, ...]
    """Paths to files where one may be a shorter form of the other."""
    dropped: tuple[str, ...]
    """Paths of arguments that the later call does not have, although the error does not call them unknown."""
    has_additions: bool
    has_unchanged: bool


def compare_arguments(
    before: Mapping[str, Any], after: Mapping[str, Any], failure: Failure | None, *, is_program: bool = False
) -> Comparison | None:
    """Separate changes of form from changes of value. Return None if the calls have too little in common.

    `is_program` means that code made the calls, not a model: it may process files of one name in many folders.
    """
    text = f"{failure.message}\n{failure.detail}"[:4000] if failure is not None else ""
    if failure is not None and failure.kind.is_about_quotation and _is_other_edit(before, after):
        return None
    is_command = not _COMMANDS.isdisjoint(before) and not _COMMANDS.isdisjoint(after)
    values: dict[str, tuple[Any, Any]] = {}
    item_paths: list[str] = []
    doubtful: list[str] = []
    dropped: list[str] = []
    has_additions = False
    argument_changes = diff_arguments(before, after)
    # Maximum number of changed arguments of a correction. More changes make it another call.
    if len(argument_changes) > 6:
        return None
    for change in argument_changes:
        path, old, new = change.path, change.before, change.after
        if is_command and path in _COMMENTS:
            continue
        if is_replaced(old) or is_replaced(new):
            return None  # no link from redacted values
        if _leaves_members_out(old, new):
            return None  # each member is an item, and those left out are lost
        if change.operation == "drop":
            # Without a value that it accepted, the tool uses its default: another action.
            is_named_empty = old in (None, "", [], {}) and names_argument(text, leaf_of(path))
            if is_named_empty or says_unknown(text, leaf_of(path)):
                continue
            dropped.append(path)
        if is_command and not is_program and _is_corrected_command(path, old, new, failure):
            continue
        if change.operation == "rename" and not _may_be_misnamed(failure, text, change):
            values[path] = (old, new)
            item_paths += [path, path.removesuffix(leaf_of(path)) + str(new)]
            continue
        if change.operation in FORM_OPERATIONS or _is_same_in_other_form(old, new, text):
            continue
        if old is None and not _has_argument(before, path):
            if says_missing(text, leaf_of(path)):
                has_additions = True
                continue
        elif (same_file := _is_same_file(path, old, new, is_program=is_program)) is not None:
            if not same_file:
                doubtful.append(path)
            continue
        values[path] = (old, new)
        if not are_similar_texts(old, new):
            item_paths.append(path)
    unchanged = [name for name in before if name in after and is_same_json(before[name], after[name])]
    has_unchanged = any(not (is_command and name in _COMMENTS) for name in unchanged)
    return Comparison(values, tuple(item_paths), tuple(doubtful), tuple(dropped), has_additions, has_unchanged)


def _is_other_edit(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether two calls edit a file at different places."""
    failed, later = find_edit(before), find_edit(after)
    return failed is not None and later is not None and not is_same_edit(failed, later)


def _is_corrected_command(path: str, old: Any, new: Any, failure: Failure | None) -> bool:
    """Return whether a shell command does what the failed one was meant to do, or runs in its corrected folder."""
    if path in _WORKING_FOLDERS:
        return is_same_folder(_to_command(old), _to_command(new), failure)
    return path in _COMMANDS and is_same_command(_to_command(old), _to_command(new), failure)


def _to_command(value: Any) -> str:
    """Return a command as text. Of an argv, it follows `-c`."""
    if isinstance(value, list) and len(value) == 3 and str(value[1]).endswith("c"):
        value = value[-1]
    return value if isinstance(value, str) else ""


def _leaves_members_out(old: Any, new: Any) -> bool:
    """Return whether a list, or a text of mail addresses, has only some of its former members."""
    members, remaining = _members_of(old), _members_of(new)
    return members is not None and remaining is not None and remaining < members


def _members_of(value: Any) -> frozenset[str] | None:
    if isinstance(value, str):
        parts = value[:MAX_RESULT_CHARS].replace(";", ",").split(",")
        value = [part.strip() for part in parts] if all("@" in part for part in parts) else None
    return frozenset(map(result_text, value)) if isinstance(value, list) else None


def _may_be_misnamed(failure: Failure | None, text: str, change: Change) -> bool:
    """Return whether a failure may be about an argument's name: a tool that searched and found nothing knew the
    name."""
    if failure is None or not (failure.remedy is Remedy.RETRY or failure.kind.is_about_object):
        return True
    return names_argument(text, str(change.before)) or names_argument(text, str(change.after))


def is_same_text(failure: Failure | None, old: Any, new: Any, *, is_command: bool = False) -> bool:
    """Return whether a long text was corrected: most of it is unchanged, and the failure was about the text.

    Of a command, only quoted and later lines are text. Another program, file or value of an option is another command.
    """
    if failure is None or failure.remedy is Remedy.RETRY or failure.kind.is_about_object:
        return False
    return are_similar_texts(old, new) and not (is_command and _has_other_words(old, new))


_QUOTED = LazyRegex(r"'[^']*(?:'|$)|\"[^\"]*(?:\"|$)")


def _has_other_words(old: str, new: str) -> bool:
    """Return whether two commands differ in more than quoted text, later lines and options that one of them adds."""
    before, after = (_QUOTED.sub("", text.partition("\n")[0]).split() for text in (old, new))
    options = [{word for word in words if word.startswith("-")} for words in (before, after)]
    names = [[word for word in words if not word.startswith("-")] for words in (before, after)]
    return names[0] != names[1] or not (options[0] <= options[1] or options[1] <= options[0])


def is_rejected_argument(failure: Failure | None, path: str) -> bool:
    """Return whether the error rejects this argument by name."""
    if failure is None or not failure.kind.rejects_arguments:
        return False
    return names_argument(f"{failure.message}\n{failure.detail}", root_of(path))


def _is_same_in_other_form(old: Any, new: Any, error: str) -> bool:
    """Return whether two values differ in form or unit, or two texts in quoting or in a word that the error names."""
    with fork_safety.import_lock:
        from mulligan.core.transformations import (  # lazy: after a failure only
            find_transformations,
            keeps_quantity,
            may_keep_quantity,
        )
    if may_keep_quantity(old, new) and any(map(keeps_quantity, find_transformations(old, new))):
        return True
    if not isinstance(old, str) or not isinstance(new, str):
        return False
    left, right = _normalized(old), _normalized(new)
    if left == right:
        return bool(left)
    before, after = old.split(), new.split()
    if not after or len(after) >= len(before):
        return False
    removed = _removed_words(before, after)
    # An error that quotes the whole value does not name a single word of it.
    return bool(removed) and not unnamed_words(error.replace(old, " "), removed)


@functools.lru_cache(maxsize=64)  # each value is compared with those of several calls
def _normalized(text: str) -> str:
    return " ".join(text.replace("'", "").replace('"', "").replace("`", "").replace("\\", "").casefold().split())


def _removed_words(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return the removed words; empty if words were added or moved."""
    removed: list[str] = []
    position = 0
    for word in before:
        if position < len(after) and word == after[position]:
            position += 1
        else:
            removed.append(word)
    return removed if position == len(after) else []


def _is_same_file(path: str, old: Any, new: Any, *, is_program: bool = False) -> bool | None:
    """Return whether two texts name one file by a longer and a shorter path; False if uncertain."""
    if not isinstance(old, str) or not isinstance(new, str) or old == new:
        return None
    words = {word.casefold() for word in leaf_of(path).replace("-", "_").split("_")}
    if words.isdisjoint(_PATHS) and not {old[:1], new[:1]} & {"/", "~", "."}:
        return None
    left, right = _parts(old), _parts(new)
    shorter, longer = sorted((left, right), key=len)
    if not shorter or longer[-len(shorter) :] != shorter:
        return None
    if old.startswith(("/", "~")) != new.startswith(("/", "~")):
        return not is_program or len(shorter) > 1
    return not is_program and len(left) >= len(right)


def _parts(path: str) -> list[str]:
    return [part for part in path.replace("\\", "/").split("/") if part not in ("", ".", "~")]


def _has_argument(arguments: Mapping[str, Any], path: str) -> bool:
    container: Any = arguments
    *parents, name = path.split(".")
    for part in parents:
        container = container.get(part) if isinstance(container, Mapping) else None
    return isinstance(container, Mapping) and name in container


def differing_names(first: Mapping[str, Any], second: Mapping[str, Any]) -> set[str]:
    return {name for name in first.keys() | second.keys() if not is_same_json(first.get(name), second.get(name))}


def root_of(path: str) -> str:
    return path.partition(".")[0]


def leaf_of(path: str) -> str:
    return path.rpartition(".")[2]


def values_of(step: Step) -> Any:
    """Return the arguments of a call, or the metadata of a stage that the user marked."""
    return step.arguments if step.arguments is not None else step.metadata


# Texts


def is_long_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) >= 60


def has_long_text(arguments: Any) -> bool:
    return isinstance(arguments, Mapping) and any(map(is_long_text, arguments.values()))


def are_similar_texts(first: Any, second: Any) -> bool:
    """Return whether two values are long texts that share most words."""
    is_text = is_long_text(first) and is_long_text(second)
    return is_text and text_similarity(first, second) >= 0.6


@functools.lru_cache(maxsize=32)
def _count_words(text: str) -> Counter[str]:
    """Count words. Cached: a call is compared with several failures, and each of them with several calls."""
    return Counter(text.split())


def text_similarity(first: str, second: str) -> float:
    """Return the share of words that two long texts have in common, in any order."""
    left, right = _count_words(first[:20_000]), _count_words(second[:20_000])
    total = left.total() + right.total()
    return 2 * (left & right).total() / total if total else 0.0


def is_word_of(word: str, text: str) -> bool:
    """Return whether a text contains a word as a separate word."""
    start = text.find(word)
    while start >= 0:
        before, after = text[start - 1 : start], text[start + len(word) : start + len(word) + 1]
        if not (before.isalnum() and word[0].isalnum()) and not (after.isalnum() and word[-1].isalnum()):
            return True
        start = text.find(word, start + 1)
    return False


# Values


def result_text(result: Any) -> str:
    if isinstance(result, str):
        return result[:MAX_RESULT_CHARS]
    try:
        return _sorted_encoder.encode(result)[:MAX_RESULT_CHARS].decode("utf-8", "replace")
    except Exception:  # noqa: BLE001 - a result may hold objects of any class
        return ""


_sorted_encoder = msgspec.json.Encoder(enc_hook=str, order="sorted")


def scalars(arguments: Any) -> Iterator[str]:
    """Yield the values of a call that are specific enough to identify a shared subject. Bounded."""
    waiting = [arguments]
    for _ in range(MAX_COMPARED_VALUES):
        if not waiting:
            return
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += list(value.values())[:MAX_COMPARED_VALUES]
        elif isinstance(value, list | tuple):
            waiting += value[:MAX_COMPARED_VALUES]
        elif isinstance(value, str):
            if value.strip():
                yield value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield str(value)


def compact_arguments(arguments: Any) -> dict[str, Any]:
    """Return arguments without long or nested values."""
    if not isinstance(arguments, Mapping):
        return {}
    items = list(arguments.items())[:16]
    return {str(name)[:MAX_SHORT_CHARS]: _compact_value(value) for name, value in items}


def _compact_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if len(value) <= MAX_SHORT_CHARS else None
    if isinstance(value, list) and len(value) <= 16:
        is_short = all(
            not isinstance(item, list) and (item is False or _compact_value(item) is not None) for item in value
        )
        return value if is_short else None
    return None


# Redacted values


_HIDDEN = LazyRegex(r"\[redacted [a-z0-9_]{1,40}\]|\[(?:str \d{1,9} chars|int|float)\]|\"\$(?:str|type)\":")
_HASHED = LazyRegex(r"\[(?:str \d{1,9} chars|int|float) #[0-9a-f]{12}\]")
_LOST = LazyRegex(r"\[(?:str \d{1,9} chars|int|float)\]|\"\$(?:str|type)\":")


COMMAND_ARGUMENTS = ("command", "cmd")
TARGET_ARGUMENTS = ("file_path", "path", "notebook_path", "filename", "file", "url", *COMMAND_ARGUMENTS)


def find_target(arguments: Any) -> str:
    """Return the file, the URL or the program with its first words that a call is about; empty if it names none."""
    if not isinstance(arguments, Mapping):
        return ""
    for name in TARGET_ARGUMENTS:
        if isinstance(target := arguments.get(name), str):
            return _command_prefix(target) if name in COMMAND_ARGUMENTS and not is_replaced(target) else target
    return ""


def _command_prefix(command: str) -> str:
    """Return the first three words of a shell command, without a leading `cd`."""
    last = command.split("&&", 1)[-1] if command.startswith("cd ") else command
    return " ".join(last.split()[:3])


def is_hidden(value: Any) -> bool:
    """Return whether redaction or the record level replaced a value so that equal values cannot be recognized."""
    return _HIDDEN.search(_to_text(value)) is not None


def is_replaced(value: Any) -> bool:
    """Return whether a value was replaced, possibly by a hash that still identifies equal values."""
    text = _to_text(value)
    return _HIDDEN.search(text) is not None or _HASHED.search(text) is not None


def has_lost_values(arguments: Any) -> bool:
    """Return whether only types and lengths were stored, so that equal records may be of different calls."""
    return isinstance(arguments, Mapping) and _LOST.search(result_text(arguments)) is not None


def is_certainly_same(first: Any, second: Any) -> bool:
    return is_same_json(first, second) and not is_hidden(first)


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool | int | float):
        return ""
    return result_text(value)


# Model calls


def diff_calls(failed: Step, later: Step) -> tuple[Change, ...]:
    """Return the changed arguments between two calls. Messages of a conversation are not arguments."""
    argument_changes = diff_arguments(values_of(failed), values_of(later))
    if not argument_changes or failed.type != "model":
        return argument_changes
    names = {name for step in (failed, later) for name in _conversation_names(step.arguments)}
    return tuple(change for change in argument_changes if root_of(change.path) not in names)


def continues_conversation(before: Step, after: Step) -> bool:
    """Return whether a later conversation contains the last message of an earlier one and most of the others."""
    earlier, later = _messages(before), _messages(after)
    if not earlier or not later:
        return False
    later_messages = set(later)
    shared = sum(message in later_messages for message in earlier)
    return earlier[-1] in later_messages and 2 * shared > len(earlier)


def _messages(step: Step) -> Sequence[bytes | int]:
    """Return the messages of a model call as stored: their numbers in the run, or role, size and hash."""
    if step.messages:
        return message_numbers(step)
    arguments = step.arguments
    for name in _conversation_names(arguments):
        value = arguments[name]
        messages = value.get("each", ()) if isinstance(value, Mapping) and "each" in value else value
        message_list = messages if isinstance(messages, list | tuple) else [messages]
        if all(
            isinstance(message, Mapping) and ("hash" in message or "content" in message) for message in message_list
        ):
            return [_sorted_encoder.encode(message) for message in message_list]
    return []


def _conversation_names(arguments: Any) -> Iterator[str]:
    """Yield the arguments that hold a conversation, as sent or as stored."""
    if isinstance(arguments, Mapping):
        for name, value in arguments.items():
            messages = value if isinstance(value, list) else [value]
            if messages and all(
                isinstance(message, Mapping)
                and ("role" in message or ("count" in message and ("each" in message or "recorded" in message)))
                for message in messages[:50]
            ):
                yield name
