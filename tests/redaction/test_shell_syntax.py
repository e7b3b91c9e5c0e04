"""Shell commands, parsed into words with their positions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.redaction.shell_syntax import parse_commands, unescape_nested


def words_of(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in parse_commands(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ls -la /tmp", [["ls", "-la", "/tmp"]]),
        ("A=1 B='x y' run", [["A=1", "B=x y", "run"]]),
        ("cat a | sort && echo ok; date", [["cat", "a"], ["sort"], ["echo", "ok"], ["date"]]),
        ("grep -p'a b' \"say \\\"hi\\\"\"", [["grep", "-pa b", 'say "hi"']]),
        ("echo $'it\\'s'", [["echo", "it\\'s"]]),
        ("make 2>&1 >log.txt", [["make", "2"]]),
        ("sort <in.txt >>out.txt", [["sort"]]),
        ("a \\\n  b", [["a", "b"]]),
        ("Get-Item `\n  -Path x", [["Get-Item", "-Path", "x"]]),
        ("x=$(date +%s)", [["x="], ["date", "+%s"]]),
        ("ls # all of it", [["ls"]]),
        ("login <password>", [["login", "<password>"]]),
        ("can't open 'a b'", [["can't", "open", "a b"]]),
        ("['curl', '-u', 'x']", [["[curl", "-u", "x]"]]),
        ("Command '['curl', '-u', 'x']' failed", [["Command", "[curl", "-u", "x]", "failed"]]),
        ("say 'open", [["say", "'open"]]),
        ("", []),
    ],
)  # fmt: skip
def test_words_are_those_a_shell_would_pass(text: str, expected: list[list[str]]) -> None:
    assert words_of(text) == expected


def test_operators_files_and_documents_are_told_apart() -> None:
    commands = list(parse_commands("cat > .env <<'END'\nA=b c\nEND\necho done | tee log"))
    assert [(command.operator, command.is_document, command.files) for command in commands] == [
        ("", False, (".env",)),
        ("\n", True, ()),
        ("\n", False, ()),
        ("|", False, ()),
    ]


def test_a_here_string_is_a_command_of_its_own() -> None:
    assert [(c.operator, [w.text for w in c.words]) for c in parse_commands("sudo -S ls <<< 'x y'")] == [
        ("", ["sudo", "-S", "ls"]),
        ("<<<", ["x y"]),
    ]


def test_a_command_in_quotes_keeps_its_positions() -> None:
    inner = 'psql -c \\"select 1\\"'
    (command,) = parse_commands(unescape_nested(inner))
    assert [word.text for word in command.words] == ["psql", "-c", "select 1"]
    assert inner[command.words[2].start : command.words[2].end].strip('\\"') == "select 1"


@given(st.text(alphabet=st.sampled_from("ab=-'\"\\$`(){}|&;<>\n\t #,~\x1f\udc80é"), max_size=60) | st.text(max_size=80))
def test_any_text_is_parsed_into_words_in_order(text: str) -> None:
    end = 0
    for command in parse_commands(text):
        for word in command.words:
            assert end <= word.start < word.end <= len(text)
            end = word.end


@pytest.mark.parametrize("piece", ["'", '"', "\\", "$(", "`", "<<A\n", '"\\', "$'", "<a", "', '", "a b "])
def test_hostile_text_is_parsed_in_linear_time(piece: str) -> None:
    """A quadratic parser would need minutes for this text."""
    assert sum(len(command.words) for command in parse_commands(piece * 200_000)) >= 0
