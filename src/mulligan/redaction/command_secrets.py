"""Detection of secrets in shell commands, where the syntax proves them: a literal value where a password belongs.

The look of the value does not matter here: `PGPASSWORD=correcthorse psql` holds a password. A variable, a path or a
placeholder is none.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from itertools import pairwise

from mulligan.redaction import secret_hints as hints
from mulligan.redaction.command_programs import LAST_POSITION, SecretSlot, program_name, program_rules
from mulligan.redaction.regex import LazyRegex
from mulligan.redaction.secret_hints import word_set
from mulligan.redaction.shell_syntax import ESCAPE_FILLER, Command, Word, parse_commands, unescape_nested

MAX_MESSAGE_WORDS = 8
"""Words of a message before a command that it repeats."""

# Programs by what their arguments are
_AMBIGUOUS_PROGRAMS = word_set("net http https exp imp su mount security passwd fly cf hey ab influx mc rar zip 7z")
"""Programs whose name is also a word: they count only where a command begins."""
_WRAPPERS = word_set(
    "sudo doas env time nice nohup exec command xargs eval watch timeout strace then do else ! $ + > #"
)
_TEXT_PROGRAMS = word_set("git gh glab grep egrep fgrep rg ag ack jq yq awk gawk sed findstr select-string hg jira")
"""Programs whose quoted arguments are no commands: messages, patterns, filters."""
_PATTERN_PROGRAMS = word_set("grep egrep fgrep rg ag ack findstr select-string man")
_PRINTERS = word_set("echo printf write-output write-host yes print")
_FILE_WRITERS = _PRINTERS | word_set("tee set-content add-content out-file")
_SETTERS = word_set("set put config modify write secrets:set config:set")
_SETTING_PROGRAMS = word_set(
    """aws git npm yarn pnpm pip pip3 poetry gcloud pulumi heroku consul etcdctl redis-cli dotnet dvc glab gh conda uv
    flyctl vercel netlify bundle gem composer rclone crudini defaults gsettings twine wrangler supabase firebase setx"""
)
"""Programs that set a name to a value: `aws configure set aws_secret_access_key X`."""
_REFERRING_PROGRAMS = word_set("gcloud docker podman kubectl buildah buildctl nerdctl az oc")
"""Programs whose flag `--secret` names a secret."""
_USER_ID_PROGRAMS = word_set(
    "docker podman docker-compose nerdctl kubectl chown install sudo date journalctl systemctl ps"
)
"""Programs whose flag `-u` is no login."""

_PROSE_WORDS = word_set(
    """the is was are were be been must not an this that these those please should cannot could would you your we our
    it its has have had did does if but because expected missing invalid required unable provide specify see flag option
    argument parameter"""
)

# Names
_PASSWORD_ENDINGS = ("password", "passwd", "passphrase", "secret", "token", "apikey", "passwort", "pwd")
_PASS_WORDS = word_set("bypass compass trespass surpass overpass underpass encompass onepass lastpass keepass")
_ATTRIBUTES = word_set(
    """name names id ids path paths file files dir arn version versions manager store provider type length size count
    ttl url uri host port region rotation policy algorithm alg expiry expires lifetime backend engine mount ref prefix
    enabled disabled required format header env var field column label parallelism"""
)
"""Words after "secret" in the name of a variable that holds no secret."""
_REFERENCE_NAME = LazyRegex(r"(?i)existing|signingkey|\bask\b|set-secrets|update-secrets|(?<![a-z])no-|prompt")
_PASSWORD_COMMAND = LazyRegex(
    r"(?:re)?(?:set|change|update)[-_:](?:\w+[-_:])*(?:password|passwd|pw)\Z|setpassword\Z", re.IGNORECASE
)

# Values
_NO_LITERALS = word_set(
    """true false null none nil yes no on off auto undefined stdin prompt ask 0 1 always never required optional env
    file default public private string password: token: nopasswd: changed reset trace debug info warn error bearer basic
    token digest negotiate"""
)
_STAND_IN = LazyRegex(
    r"(?i)[x*.#_-]+\Z|(?:your[_-]?|my[_-])(?:\w+[_-])*(?:password|secret|token|key|here|pass)\w*\Z|.*placeholder"
    r"|.*_here\Z|.*\.{3}\Z"
)
_VARIABLE_NAME = LazyRegex(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\Z")
_CODE_REFERENCE = LazyRegex(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?:\[|\Z)")
_EXPANSION = LazyRegex(r"\\?\$\{?[\w:.]+\}?(?:/|\Z)|\\?\$[({]|`|%\w+%\Z|(?:file|op|vault|ssm|arn|env|secretref):")
_PATH = LazyRegex(r"(?:~|\.{1,2})?/[\w.@-]+(?:/[\w.@*-]*)*\Z|[A-Za-z]:\\\S*\Z|[\w.-]+/[\w./-]+\.[a-z]{2,5}\Z")
_PATTERN = LazyRegex(r"\[\^|%[ds]|\.\*|\\[1-9Ssw]|\(\?|\w:/(?!/)")
"""Part of a regular expression or a format, or a name with a path."""

# Ways to write a name and its value
_SHELL_ASSIGNMENT = LazyRegex(r"[A-Za-z_]\w*=")
_ASSIGNMENT = LazyRegex(
    r"(?:^|(?<=[\s,;&?{@(\"'\x1f/|]))(?:--?|\$env:|\$|/p:)?(?P<name>[A-Za-z_][\w.:\[\]/-]{0,80}?)"
    r"[\"'\]]{0,2}[ \t]{0,2}:?=[ \t]{0,2}(?P<value>[\"'][^\"']*[\"']?|[^\s,;&\"'|]+)"
)
_SUBSTITUTION_END = LazyRegex(r"[/|#]")
_FLAG = LazyRegex(r"--?(?P<name>[A-Za-z][\w.-]{1,60}?)(?:[=:](?P<value>.*))?\Z", re.DOTALL)
_LOGIN = LazyRegex(r"[^\s:/+%]{1,64}:(?!\d+\Z)[^/\s]")
_OPTION = LazyRegex(r"-|/[^/]*\Z")
_NO_ARGUMENT = LazyRegex(r"-|/[A-Za-z]{1,12}(?::|(?!\S))|\\|[A-Z]:(?!\S)")
"""A flag, a switch of Windows, a share or a drive."""
_HEADER = LazyRegex(
    r"(?P<name>[A-Za-z][\w-]{1,50}):(?!:)[ \t]{0,4}(?:[A-Za-z][\w-]{1,24}[ \t]{1,3})?(?P<value>\S[^\r\n]*?)\s*\Z"
)
_SCHEME = LazyRegex(r"[A-Za-z][\w-]{1,24}[ \t]{1,3}")
_COOKIE = LazyRegex(r"=([^\s;\"',]{6,4000}+)")
_PGPASS_LINE = LazyRegex(r"[^:\s]+:(?:\d{2,5}|\*):[^:\s]*:[^:\s]*:(.+)")
_DATA_SOURCE = LazyRegex(r"[^:/\s]+:([^@\s]+)@(?:tcp|unix)\b|[\w.-]+/[\w.-]+:([^@\s]+)@[\w.-]+\Z")
_PASSWORD_FILE = LazyRegex(r"--?[\w-]*(?:pass|token|secret)[\w-]*=?\Z|private-key\Z")
_PRINTED = LazyRegex(r"(?:echo|printf) (?:-n )?([^\s\"']{2,200}+)")
_PASSWORD_PROGRAM = LazyRegex(r"--?[\w-]*(?:pass|token|secret)\w*[-_](?:command|cmd)(?:=|\Z)")
_SECRET_FILE = LazyRegex(r"(?:pass(?:word|wd|phrase)?|secret|token|pw|/auth)(?:\.txt)?\Z")
_LINE_BREAK = LazyRegex(r"\\[rn]")
_LINE_END = LazyRegex(r"(?:\\[rn])+\Z")
_HASHING_CALL = LazyRegex(
    r"(?:bcrypt|password_hash|make_password|generate_password_hash|hashpw|set_password|Hash::make|setPassword|PASSWORD)\Z"
)
_HASHES = (".hash", ".hashSync")
_READING_CALL = LazyRegex(r"(?i)(?:get|getenv|fetch|read|find|has|replace|sub|test|assert\w*|expect)\Z")
_LOGIN_CALLS = ("PDO", "mysqli", "mysqli_connect", ".auth", "create_superuser", "create_user")
"""Calls with a user and a password, or three arguments of which the last is a password."""
_REFERRING_FLAGS = ("--set-secrets", "--update-secrets")
_TYPE = LazyRegex(r"[A-Z][a-z]+(?:[A-Z][a-z]+)+\Z")
_FILE_NAMES = ("password", "passwd", "requirepass", "masterauth")
"""Names that a space separates from their value in the files of some programs."""
_LOGIN_COMMANDS = word_set("login signin logon")
_PASSWORD_FLAGS = ("-p", "-P", "-w", "-pw")
"""Flags of a password beside a user, in programs that are not in the table."""
_NAME_PARTS = LazyRegex(r"[/.]")
_PORT = LazyRegex(r"-|[\d:./-]+\Z|.*:\d+\Z")
_LOGIN_VARIABLES = ("$pair", "$cred", "$creds", "$auth", "$basic", "$login", "$userpass")
_QUOTES = "\"'" + ESCAPE_FILLER


def find_in_commands(text: str, findings: list[tuple[str, int, int]]) -> None:
    """Add the spans of secrets in the commands of a text."""
    _read_text(text, 0, 0, False, findings)


def _read_text(text: str, offset: int, depth: int, is_document: bool, findings: list[tuple[str, int, int]]) -> None:
    previous: _CommandReader | None = None
    for command in parse_commands(text):
        reader = _CommandReader(text, offset, command, is_document or command.is_document, findings)
        reader.read(previous)
        if depth < 3 and reader.program not in _TEXT_PROGRAMS:  # depth of commands in the quotes of another command
            for word in command.words:
                if word.end - word.start == len(word.text):  # fast path: without quotes
                    continue
                inner_start, inner = reader.find_quoted_text(word)
                if "=" in inner or " " in inner or ":" in inner:
                    is_file = reader.is_document or reader.program in _FILE_WRITERS
                    inner = unescape_nested(inner)
                    if reader.program in _PRINTERS:
                        inner = inner.replace("\\n", " \n").replace("\\r", "  ")
                    _read_text(inner, offset + inner_start, depth + 1, is_file, findings)
        previous = reader


class _CommandReader:
    """Finds the secrets of one simple command. Each method reads one way to write them."""

    def __init__(
        self, text: str, offset: int, command: Command, is_document: bool, findings: list[tuple[str, int, int]]
    ) -> None:
        self._text = text
        self._offset = offset
        """Where the text begins in the whole text, for a command in quotes."""
        self._command = command
        self._words = command.words
        self._findings = findings
        self.is_document = is_document
        """Whether the command is part of a file that another command writes."""
        self._program_index = _find_program(command.words)
        self.program = program_name(self._words[self._program_index].text) if self._words[self._program_index :] else ""
        prose = (word.end for word in self._words if not word.is_quoted and word.text.lower() in _PROSE_WORDS)
        self._prose_start = next(prose, len(text))
        """Where a sentence begins. After it, only a value that looks like a password is one."""
        self._lower_words = [word.text.lower() for word in self._words]
        self.slots: list[tuple[SecretSlot, int]] = []
        """Where the programs of the command take a secret, with the index of each program."""

    def read(self, previous: _CommandReader | None) -> None:
        """Find the secrets of the command, which follows another one."""
        for index, word in enumerate(self._words):
            if word.text in ("=", ":=", "=>"):
                self._read_spaced_assignment(index)
            elif "=" in word.text:
                self._read_assignments(word)
            if _OPTION.match(word.text) and self.program not in _PATTERN_PROGRAMS:
                self._read_flag(index)
            else:
                self._note_program(index)
                if word.start < self._prose_start:
                    self._read_named_argument(index)
            if ":" in word.text and self.program not in _TEXT_PROGRAMS:
                self._read_header(word)
        for slot, index in self.slots:
            if slot.position:
                self._read_argument(index, slot)
            elif slot.sign == "=" and slot.name[0] != "-" and slot.name in self._lower_words:
                self._add_part(self._words[index].end, self._words[-1].end, "=")
        operator = self._command.operator
        if operator == "|" and previous is not None:
            previous.read_output(self)
        elif operator == "<<<" and previous is not None:
            self.read_output(previous)
        elif operator == "(" and previous is not None:
            self._read_call(previous._words[-1].text)
        if self._command.files:
            self.read_printed(self._command.files)
        elif previous is not None and operator == "|" and "tee" in self._lower_words:
            previous.read_printed(self._lower_words)
        if self.is_document:
            self._read_document_line()

    def _note_program(self, index: int) -> None:
        word = self._words[index]
        name = program_name(word.text) if " " not in word.text or index == self._program_index else ""
        is_first = index == self._program_index or self._lower_words[index - 1] in ("{", "--", "exec")
        rules = program_rules().get(name, ()) if is_first or name not in _AMBIGUOUS_PROGRAMS else ()
        for rule in rules:
            if not rule.slots:
                self.slots = []
            elif all(word in self._lower_words or (word[0] == "-" and self.has_flag(word)) for word in rule.words):
                self.slots += [(slot, index) for slot in rule.slots]

    def _read_assignments(self, word: Word) -> None:
        raw = self._text[word.start : word.end]
        if raw.startswith(_REFERRING_FLAGS) or self._text.endswith(_REFERRING_FLAGS, 0, word.start - 1):
            return
        for hit in _ASSIGNMENT.finditer(raw):
            name, (start, end) = hit["name"], hit.span("value")
            if name == "secret" and self._refers_to_secrets():
                continue
            if self.program in ("sed", "perl"):
                end = start + len(_SUBSTITUTION_END.split(raw[start:end], 1)[0])
            elif hit.start() == 0 and name.isupper() and raw[hit.end("name")] == "=":
                end = len(raw)  # an assignment of the shell: the rest of the word is its value
            if name in ("key", "rekey") and ("pragma" in self._lower_words or self.program == "netsh"):
                self._add("key", word.start + start, word.start + end)
            self._add_named(name, word.start + start, word.start + end)

    def _read_spaced_assignment(self, index: int) -> None:
        """Read `$env:NAME = "value"`, and `name = value` in a file that a command writes."""
        if not 0 < index < len(self._words) - 1:
            return
        name, value = self._words[index - 1].text.strip("{@\"'"), self._words[index + 1]
        if name.lower() in _LOGIN_VARIABLES and value.is_quoted and _LOGIN.match(value.text):
            self._add_part(value.start, value.end, ":")
        if value.is_quoted or self.is_document or self._text.startswith("N'", value.start):
            self._add_named(name.removeprefix("$").removeprefix("env:"), value.start, value.end)

    def _read_flag(self, index: int) -> None:
        word = self._words[index]
        following = self._words[index + 1] if index + 1 < len(self._words) else None
        for slot, _ in self.slots:
            if slot.name and not slot.is_input and not slot.position:
                self._read_own_flag(word, following, slot)
        if following and word.text in _PASSWORD_FLAGS and not _PORT.match(following.text) and self._has_user(index):
            self._add("password", following.start, following.end)
        flag = _FLAG.match(word.text)
        if flag is None:
            if following and word.text == "-u" and not self.slots:
                self._read_login(following)
            elif following and word.text == "-b" and self.program == "curl":
                self._add_cookies(following.start, following.end)
            return
        if _PASSWORD_PROGRAM.match(word.text):  # --password-command 'echo X'
            program = following if flag["value"] is None and following else word
            if (printed := _PRINTED.search(self._text, program.start, program.end)) is not None:
                self._add("password", printed.start(1), printed.end(1))
            return
        name, kind = flag["name"], _kind_of_name(flag["name"])
        if name == "secret" and self._refers_to_secrets():
            return
        if flag["value"] is not None:
            start = self._text.find(word.text[flag.end("name")], word.start) + 1
            if kind:
                self._add(kind, start, word.end)
            elif name in ("user", "proxy-user"):
                self._add_part(start, word.end, ":")
            return
        if following is None:
            return
        if name in ("user", "proxy-user") and not self.slots:
            self._read_login(following)
        elif name == "cookie":
            self._add_cookies(following.start, following.end)
        elif name == "arg" and index + 2 < len(self._words):  # jq --arg password X
            self._add_named(following.text, self._words[index + 2].start, self._words[index + 2].end)
        elif name.lower() == "value" and self._names_secret():
            self._add("secret", following.start, following.end)
        elif name == "key" and hints.is_random(following.text):
            self._add("key", following.start, following.end)
        elif kind and (following.is_quoted or following.text[:1] not in ("-", "=")):
            self._add(kind, following.start, following.end)

    def _read_login(self, word: Word) -> None:
        """Read `-u user:password` of a program that is not in the table."""
        if self.program not in _USER_ID_PROGRAMS and _LOGIN.match(word.text):
            self._add_part(word.start, word.end, ":")

    def _has_user(self, index: int) -> bool:
        """Return whether a user or a login precedes a word, so that `-p` is a password: `-u ann -p X`."""
        if self.program in _USER_ID_PROGRAMS or any(slot.name in _PASSWORD_FLAGS for slot, _ in self.slots):
            return False
        earlier_words = self._lower_words[:index]
        return not _LOGIN_COMMANDS.isdisjoint(earlier_words) or any(
            word in ("-u", "--user", "--username") and following[:1] != "-" and not following.isdigit()
            for word, following in pairwise(earlier_words)
        )

    def _refers_to_secrets(self) -> bool:
        """Return whether `--secret` names a secret here. A message may precede the program."""
        return not _REFERRING_PROGRAMS.isdisjoint(self._lower_words)

    def _names_secret(self) -> bool:
        """Return whether a flag of the command names a secret: `-Name DefaultPassword -Value X`."""
        return any(
            word.text.lower() in ("-name", "--name", "-n") and _kind_of_name(following.text.rpartition("/")[2])
            for word, following in pairwise(self._words)
        )

    def _read_own_flag(self, word: Word, following: Word | None, slot: SecretSlot) -> None:
        name, raw = slot.name, self._text[word.start : word.end]
        text = word.text.lower() if name[0] == "/" else word.text
        if not text.startswith(name):
            return
        if len(text) == len(name):
            if slot.sign == "*" or following is None or (following.text[:1] == "-" and not following.is_quoted):
                return
            start, end = following.start, following.end
        else:
            is_long = name.startswith("--") or (name[0] == "-" and len(name) > 3)
            if slot.sign == "_" or (is_long and text[len(name)] != "="):
                return
            start, end = word.start + raw.lower().find(name.lower()) + len(name) + is_long, word.end
        self._add_part(start, end, slot.sign.strip("*_"))

    def _read_argument(self, index: int, slot: SecretSlot) -> None:
        """Read the argument at a position after a word."""
        words = self._words
        if slot.name:
            is_prefix = slot.name[-1] == "."
            for name_index in range(index + 1, len(words)):
                text = self._lower_words[name_index]
                if text == slot.name or (is_prefix and text.startswith(slot.name)):
                    break
                if slot.name == "login" and text[:1] == "-":  # a value: cargo test --test login
                    return
            else:
                return
            index = name_index
        arguments = self._arguments(words[index + 1 :])
        position = len(arguments) if slot.position == LAST_POSITION else slot.position
        if 0 < position <= len(arguments):
            word = arguments[position - 1]
            if word.is_quoted or "=" not in word.text.rstrip("="):
                self._add_part(word.start, word.end, slot.sign)

    def _arguments(self, words: Iterable[Word]) -> list[Word]:
        return [word for word in words if not _NO_ARGUMENT.match(self._text, word.start)]

    def _read_named_argument(self, index: int) -> None:
        """Read a value after its name: `configure set aws_secret_access_key X`, `PASSWORD 'X'` in SQL."""
        lower_name = self._lower_words[index]
        if index + 1 >= len(self._words) or not (
            self.program in _SETTING_PROGRAMS
            or lower_name in ("by", "send")
            or "pass" in lower_name
            or "pw" in lower_name
        ):
            return
        word, value = self._words[index], self._words[index + 1]
        name = word.text
        if (word.is_quoted and " " in name) or "=" in name or value.text[:1] in ("-", "="):
            return
        before = self._lower_words[max(0, index - 4) : index]
        if _PASSWORD_COMMAND.match(name):
            arguments = self._arguments(self._words[index + 1 :])
            if len(arguments) == 2 or (len(arguments) == 1 and not name.startswith("reset-p")):
                self._add("password", arguments[-1].start, arguments[-1].end)
        elif (lower_name == "password" and (value.is_quoted or "login" in before)) or (
            lower_name == "by" and value.is_quoted and "identified" in before and "user" in self._lower_words
        ):
            self._add("password", value.start, value.end)
        elif self.program == "setx" or (self.program in _SETTING_PROGRAMS and not _SETTERS.isdisjoint(before)):
            part = next((part for part in _NAME_PARTS.split(name) if _kind_of_name(part)), name)
            self._add_named(part, value.start, value.end)
        elif name == "send" and "assword" in self._text[: word.start].rpartition("expect")[2]:
            self._add("password", value.start, value.end)

    def _read_header(self, word: Word) -> None:
        start, end = self._trim(word.start, word.end)
        text = self._text[start:end]
        if hit := _PGPASS_LINE.match(text) or _DATA_SOURCE.match(text):
            group = hit.lastindex or 1
            self._add("password", start + hit.start(group), start + hit.end(group))
        header = _HEADER.match(text) if word.is_quoted or self.is_document else None
        if header is None:
            return
        name = header["name"].lower()
        if name in ("cookie", "cookies", "set-cookie"):
            self._add_cookies(start + header.end("name"), end)
        elif kind := _kind_of_header(name):
            self._add(kind, start + header.start("value"), start + header.end("value"))

    def read_output(self, target: _CommandReader) -> None:
        """Read what this command prints into another one that takes a password from its standard input."""
        words = self._words
        if self._command.operator == "<<<":
            words = words[:1]
        elif self.program in _PRINTERS:
            words = tuple(word for word in words[1:] if word.is_quoted or word.text[:1] != "-")
        elif len(words) > 1 or not words[0].is_quoted:
            return
        if not _LOGIN_COMMANDS.isdisjoint(target._lower_words):
            for word in words:
                self._add_part(word.start, word.end, "")
        for slot, _ in target.slots:
            if slot.is_input and target.has_flag(slot.name):
                for word in words:
                    if "%" not in word.text or len(words) == 1:
                        self._add_part(word.start, word.end, slot.sign)

    def read_printed(self, files: Iterable[str]) -> None:
        """Read what is printed into a file of a password: a password, or a line with one at its end."""
        arguments = self._arguments(self._words[1:])
        if self.program in _PRINTERS and len(arguments) == 1 and any(map(_SECRET_FILE.search, files)):
            start, end = self._trim(arguments[0].start, arguments[0].end)
            line = _LINE_END.sub("", self._text[start:end])
            first = max(map(line.rfind, (" ", ":", "\\n"))) + 1
            first += line.startswith("n", first) and line[first - 1 : first] == "\\"
            self._add("password", start + first, start + len(line))

    def has_flag(self, name: str) -> bool:
        """Return whether the command has a flag, also among combined ones: `-kS`."""
        return not name or any(
            word.text.startswith(name)
            or (len(name) == 2 and word.text[:1] == "-" and word.text[1:2] != "-" and name[1] in word.text)
            for word in self._words
        )

    def _read_call(self, caller: str) -> None:
        """Read the arguments of a call in code, and what a shell prints into a file of a password."""
        words = self._words
        is_quoted = [word.is_quoted or self._text[word.start : word.start + 2] in ("b'", 'b"') for word in words]
        if is_quoted[0] and (_HASHING_CALL.search(caller) or (caller.endswith(_HASHES) and "bcrypt" in self._text)):
            self._add("password", words[0].start, words[0].end)
        elif caller.endswith(_LOGIN_CALLS) and 2 <= len(words) <= 4 and all(is_quoted):
            index = 2 if len(words) > 2 else 1
            self._add("password", words[index].start, words[index].end)
        elif is_quoted[:2] == [True, True] and not _READING_CALL.search(caller):  # define('DB_PASSWORD', 'X')
            self._add_named(words[0].text, words[1].start, words[1].end)
        elif caller.endswith("GetBytes"):
            self._add_part(words[0].start, words[0].end, ":")
        elif self.program in _PRINTERS and len(words) > 1 and _PASSWORD_FILE.search(caller):
            self._add("password", words[-1].start, words[-1].end)

    def _read_document_line(self) -> None:
        """Read `name: value` in a file that a command writes, and the login of a scripted `ftp`."""
        words = self._words
        name = words[0].text
        is_setting = len(words) == 2 and (name.endswith(":") or name in _FILE_NAMES)
        if is_setting and self._lower_words[1] not in hints.NO_VALUES and not _TYPE.match(words[1].text):
            self._add_named(name.rstrip(":").strip("\"'"), words[1].start, words[1].end)
        elif len(words) == 3 and name == "user":
            self._add("password", words[2].start, words[2].end)
        elif name == "AUTH":  # of Redis
            self._add("password", words[-1].start, words[-1].end)
        elif name in ("connect", "conn") and len(words) == 2 and "@" in words[1].text:  # of SQL*Plus
            self._add_part(words[1].start, words[1].end, "/")

    def find_quoted_text(self, word: Word) -> tuple[int, str]:
        """Return the first quoted text in a word, and where it begins."""
        raw = self._text[word.start : word.end]
        marks = [index for index in (raw.find('"'), raw.find("'")) if index >= 0]
        if not marks:
            return 0, ""
        mark = min(marks)
        return word.start + mark + 1, raw[mark + 1 :].removesuffix(raw[mark])

    # Adding what was read

    def _add_part(self, start: int, end: int, sign: str) -> None:
        """Add the part of a value after a sign, or the whole value."""
        start, end = self._trim(start, end)
        if sign == "=":
            for hit in _ASSIGNMENT.finditer(self._text[start:end]):
                self._add("secret", start + hit.start("value"), start + hit.end("value"))
        elif not sign:
            self._add("password", start, end)
        elif (sign_index := self._text.find(sign, start, end)) >= 0:
            stop = self._text.find("@", sign_index, end) if sign == "/" else -1
            self._add("password", sign_index + 1, stop if stop > 0 else end)

    def _add_cookies(self, start: int, end: int) -> None:
        for cookie in _COOKIE.finditer(self._text[start:end]):
            self._add("cookie", start + cookie.start(1), start + cookie.end(1))

    def _add_named(self, name: str, start: int, end: int) -> None:
        """Add a value if its name indicates a secret, and neither is part of a program."""
        kind, value = _kind_of_name(name), self._text[start:end]
        reference = _CODE_REFERENCE.match(value)
        if not kind or (
            reference and name.isidentifier() and (not name.isupper() or value[reference.end() - 1] == "[")
        ):
            return
        if not (name.islower() and value.strip("\"'").lower() == name):
            self._add(kind, start, end, is_sure=name.isupper())

    def _add(self, kind: str, start: int, end: int, is_sure: bool = False) -> None:
        """Add a literal without its quotes."""
        text = self._text
        if text.startswith("pass:", start):  # of OpenSSL
            start += 5
        has_quotes, is_verbatim = text[start : start + 1] in _QUOTES, text[start : start + 1] == "'"
        start, end = self._trim(start, end)
        if kind in ("ssh_key", "deploy_key") and not hints.is_random(text[start:end]):
            return  # the name of a key
        if kind == "authorization" and (scheme := _SCHEME.match(text, start, end)):
            start = scheme.end()
        if not has_quotes:
            end = start + len(text[start:end].rstrip(":,;)]}"))
        if self.is_document or text[end - 2 : end] in ("\\r", "\\n"):
            end = start + len(_LINE_BREAK.split(text[start:end], 1)[0])
        value = text[start:end]
        if not _is_literal(value, is_verbatim) or (not has_quotes and text[end : end + 1] in ("[", "(")):
            return
        if len(value) >= 16 and (hints.is_placeholder(value) or (kind != "password" and "123456789" in value)):
            return  # typed as an example
        if start >= self._prose_start and not is_sure and not _looks_chosen(value):
            return
        self._findings.append((kind, self._offset + start, self._offset + end))

    def _trim(self, start: int, end: int) -> tuple[int, int]:
        """Return a span without the quotes around it."""
        text = self._text
        if text[start : start + 2] in ("$'", '$"', "N'", "E'", "b'", 'b"'):  # of the shell, SQL and Python
            start += 1
        while start < end and text[start] in _QUOTES:
            start += 1
        while start < end and text[end - 1] in _QUOTES:
            end -= 1
        return start, end


def _find_program(words: tuple[Word, ...]) -> int:
    """Return the index of the word that names the program, after assignments and wrappers such as `sudo`.

    What precedes a colon is a message: `bash: line 1: mysql -u root`.
    """
    index = 0
    has_colon = any(word.text[-1:] == ":" for word in words[:MAX_MESSAGE_WORDS])
    if has_colon and program_name(words[0].text) not in program_rules():
        index = max(n for n, word in enumerate(words[:MAX_MESSAGE_WORDS], 1) if word.text[-1:] == ":")
    while index < len(words) and not words[index].is_quoted:
        text = words[index].text
        if text not in _WRAPPERS and not _SHELL_ASSIGNMENT.match(text) and not (index and text[:1] == "-"):
            break
        index += 1
    return index


def _looks_chosen(value: str) -> bool:
    return hints.looks_like_password(value) and any(map(str.isdigit, value))


def _is_literal(value: str, is_verbatim: bool) -> bool:
    """Return whether a value is written out: no variable, path, placeholder or switch."""
    if len(value) < 2 or value.lower() in _NO_LITERALS or value[-1] in "[(":
        return False
    if _STAND_IN.match(value) or _PATTERN.search(value) or value.startswith(("[", "<", "@", "{")):
        return False
    if _EXPANSION.match(value) and (not is_verbatim or value.isupper()):  # quotes in quotes do not keep a variable
        return False
    if not is_verbatim and ("$(" in value or "{{" in value):
        return False
    return not _VARIABLE_NAME.match(value) and (not _PATH.match(value) or hints.is_random(value, 24))


@functools.lru_cache(maxsize=4096)
def _kind_of_name(name: str) -> str:
    """Return the kind of secret that a name in a command indicates, or an empty string."""
    if _REFERENCE_NAME.search(name):
        return ""
    if name.isupper() and name.endswith("_TOKEN"):
        return "token"
    if kind := hints.secret_kind(name.replace("]", "").replace("[", "_").replace(":", "_")):
        return kind if not kind.endswith("auth") else "password" if name.isupper() else ""
    words = hints.split_name(name)
    last = words[-1] if words else ""
    before = words[-2] if len(words) > 1 else ""
    if ending := next((ending for ending in _PASSWORD_ENDINGS if last.endswith(ending) and last != ending), ""):
        return ending
    if last in ("puk", "keymaterial") or (last.endswith("pass") and last not in _PASS_WORDS):
        return "password"
    if last == "material" and before == "key":
        return "password"
    if last == "code" and before in ("token", "mfa", "totp", "auth"):
        return "code"
    if not name.isupper():
        return ""
    if last in ("pat", "auth"):
        return "token"
    if last == "key":
        return "key" if before and before not in hints.PLAIN_KEYS else ""
    return "secret" if "secret" in words and last not in _ATTRIBUTES else ""


@functools.lru_cache(maxsize=1024)
def _kind_of_header(name: str) -> str:
    """Return the kind of secret that a header holds, or an empty string."""
    if name in ("authorization", "proxy-authorization"):
        return "authorization"
    if (kind := hints.secret_kind(name)) and kind != "auth":
        return kind
    words = hints.split_name(name)
    if len(words) < 2 or words[-2] in hints.PLAIN_KEYS:
        return ""
    return words[-1] if words[-1] in ("auth", "key") else ""
