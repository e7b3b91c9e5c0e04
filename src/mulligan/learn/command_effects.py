"""What a shell command does beyond the files of its folder: a model should ask before it does that again."""

from __future__ import annotations

from itertools import pairwise

from mulligan.core.privileged_arguments import split_words
from mulligan.learn.decisions import DECISIVE_VERBS
from mulligan.redaction.shell_syntax import Command, parse_commands

MAX_READ_CHARS = 200
"""Characters of a command that are read."""
MAX_READ_WORDS = 6
"""Words of one of its programs that are read."""
_STATE_WORDS = DECISIVE_VERBS | frozenset(
    "install i ci sync add push put patch publish deploy prod migrate upgrade update apply login logout enable restart "
    "start up down kill pkill killall force hard sudo doas su chmod chown verify insecure rm mv clean stash rebase tag "
    "shred mkfs dd send post global crontab flushall flushdb createdb dropdb".split()
)
_INSTALLERS, _INTERPRETERS = frozenset(("yarn", "bundle", "composer")), frozenset("sh bash zsh python python3".split())
_PROGRAM_OPTIONS = frozenset(("-c", "-e", "--command", "--execute", "--eval"))
"""Options before a quoted program or query."""
_SENDING_OPTIONS = frozenset("-d --data --data-raw --data-binary --json -F --form -T --upload-file".split())


def changes_state(call: str) -> bool:
    """Return whether a command installs, deletes, pushes, forces or skips something. In doubt it does not."""
    return any(_changes_state(command) for command in parse_commands(call[:MAX_READ_CHARS]))


def _changes_state(command: Command) -> bool:
    texts = [word.text for word in command.words[:MAX_READ_WORDS]]
    words = [word.text for word in command.words[:MAX_READ_WORDS] if not word.is_quoted]
    programs = [text for option, text in pairwise(texts) if option in _PROGRAM_OPTIONS or texts[0] == "ssh"]
    if any(changes_state(program) for program in programs):
        return True
    if len(words) == 1 and (words[0] in _INSTALLERS or (command.operator == "|" and words[0] in _INTERPRETERS)):
        return True
    if words[:1] == ["curl"] and not _SENDING_OPTIONS.isdisjoint(words):
        return True
    if (words[:1] == ["git"] and not {"--", "-D"}.isdisjoint(words)) or words[:2] == ["go", "get"]:
        return True
    # The name of a script or a file says nothing about what it does.
    plain_words = [word.lstrip("-") for word in words if not {"/", "."} & set(word)]
    names = {name.casefold() for word in plain_words for name in split_words(word)}
    return not names.isdisjoint(_STATE_WORDS) or "-f" in words
