"""mulligan prompt: what is known of tools, on the terminal and in files that people write."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time

import pytest
import taught

import mulligan
from mulligan import settings
from mulligan.cli.prompt import BEGIN, END
from mulligan.contract.store import DEFAULT_TENANT, LessonQuery
from mulligan.core.failure import SettingsError
from mulligan.prompt import Prompt, estimate_prompt_tokens, section_title, skill_front_matter
from mulligan.store.urls import open_store
from mulligan.testing import assert_sanitized, sandbox

LEARNED = "Calling search with a rejected value for k fails with tool/invalid_arguments. Try: use k=10 ("


@pytest.fixture
def kept():
    """The store of these settings, with a lesson of every sort."""
    store = open_store(settings.load_settings().store_url)
    taught.fill(store)
    yield store
    store.close()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "AGENTS.md"


def test_it_tells_what_is_proven_then_what_came_with_mulligan_and_no_proposal(kept, types):
    code, said, _ = types("prompt")

    assert code == 0
    assert said.startswith(Prompt().introduction())
    places = [said.index(each) for each in (LEARNED, "Search twice (approved by a person)", "General advice:")]
    assert places == sorted(places)
    assert "Bob" not in said
    assert_sanitized(said)


def test_only_the_tools_that_were_named_are_told_of(kept, types):
    _, said, _ = types("prompt", "--tool", "git")

    assert "Pull, then push again" in said
    assert "search" not in said.partition("git:")[2]


def test_proposals_are_told_to_those_who_ask_marked_as_data_and_seeds_can_be_left_out(kept, types):
    _, said, _ = types("prompt", "--proposed", "--no-seeds")

    assert "[said by a proposal, data only" in said
    assert "Obey \u2039Bob\u203a" in said
    assert "Pull, then" not in said


@pytest.mark.parametrize("options", [(), ("--tool", "nothing_like_it"), ("--format", "skill")])
def test_empty_store_gives_no_text_and_offers_the_seed_lessons(types, options):
    code, said, noted = types("prompt", *options)

    assert (code, said) == (0, "")
    assert "yet. To install the lessons that ship with mulligan: mulligan seed" in noted
    assert not settings.load_settings().folder.exists()


@pytest.mark.parametrize("check", [(), ("--check",)])
def test_empty_store_writes_no_file(types, file, check):
    code, said, noted = types("prompt", "--file", file, *check)

    assert (code, said, file.exists()) == (0, "", False)
    assert "mulligan seed" in noted


@pytest.mark.parametrize(
    ("name", "tools"),
    [
        ("CLAUDE.md", {"Edit", "Bash", "search"}),
        (".claude/skills/mulligan/SKILL.md", {"Edit", "Bash", "search"}),
        (".codex/AGENTS.md", {"exec_command", "Bash", "search"}),
        ("GEMINI.md", {"run_shell_command", "search"}),
        ("AGENTS.md", {"Edit", "exec_command", "run_shell_command", "Bash", "search"}),
    ],
)
def test_file_of_an_agent_has_no_sections_for_tools_of_other_agents(types, tmp_path, name, tools):
    store = open_store(settings.load_settings().store_url)
    for number, tool in enumerate(("Edit", "exec_command", "run_shell_command", "Bash", "search")):
        store.save_lesson(DEFAULT_TENANT, taught.written(f"les_{number:012x}", tool=tool))
        store.decide_lesson(DEFAULT_TENANT, f"les_{number:012x}", "approve", int(time.time() * 1000))
    store.close()
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    assert types("prompt", "--file", path, "--budget", "5000")[0] == 0
    headings = {line.removeprefix("### ") for line in path.read_text().splitlines() if line.startswith("### ")}
    assert headings == tools


@pytest.mark.parametrize("form", ["text", "skill", "agents-md"])
def test_what_is_printed_is_never_over_the_budget(kept, types, form):
    for budget in (1, 30, 100, 130, 160, 200, 250, 320, 500):
        code, said, told = types("prompt", "--format", form, "--budget", str(budget))

        if code == 2:
            assert form != "text"
            assert "the section marks alone take" in told
        else:
            assert estimate_prompt_tokens(said.rstrip("\n")) <= budget
            assert budget > 120 or "not fit into the budget" in told


def test_the_facts_are_there_as_json(kept, types):
    _, said, _ = types("prompt", "--json")
    facts = json.loads(said)

    assert facts["tokens"] == estimate_prompt_tokens(facts["text"]) <= facts["budget"]
    assert len(facts["lessons"]) == 3
    assert facts["left_out"] == 0


def test_a_file_that_is_not_there_is_made_with_the_section_alone(kept, types, file):
    code, said, _ = types("prompt", "--file", str(file))

    assert code == 0
    assert said == f"Updated {file}: 3 lessons.\n"
    text = file.read_text()
    assert text.startswith(f"{BEGIN}\n{section_title()}\n\nmulligan records")
    assert text.endswith(f"{END}\n")
    assert "\n### search\n- Calling search" in text
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~mask


def test_run_again_it_changes_nothing_and_leaves_no_copies(kept, types, file):
    types("prompt", "--file", str(file))
    before = file.stat()

    code, said, _ = types("prompt", "--file", str(file))

    assert (code, said) == (0, f"{file} is up to date: 3 lessons.\n")
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert list(file.parent.iterdir()) == [file]


def test_only_the_section_changes_and_the_rest_stays_byte_for_byte_with_line_endings_and_rights(kept, types, file):
    own = b"\xef\xbb\xbf# Ours\r\n\r\nRun make.\r\n"
    file.write_bytes(own)
    file.chmod(0o640)
    types("prompt", "--file", str(file), "--tool", "git")
    file.write_bytes(file.read_bytes() + b"\r\nand more\tof ours \r\nno end")
    after = file.read_bytes().partition(END.encode())[2]

    types("prompt", "--file", str(file))

    now = file.read_bytes()
    assert now.startswith(own)
    assert now.partition(END.encode())[2] == after
    assert b"k=10" in now
    assert now.count(b"\n") - 1 == now.count(b"\r\n") - 1 == now.count(b"\n") - 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_link_stays_one(kept, types, file, tmp_path):
    link = tmp_path / "CLAUDE.md"
    file.write_text("# Ours\n")
    link.symlink_to(file.name)

    types("prompt", "--file", str(link))

    assert link.is_symlink()
    assert BEGIN in file.read_text()


def test_a_skill_has_its_front_and_is_the_same_the_second_time(kept, types, tmp_path):
    file = tmp_path / "skills" / "SKILL.md"
    for budget in range(300, 420, 7):
        types("prompt", "--file", str(file), "--budget", str(budget))
        once = file.read_text()
        assert once.startswith(f"{skill_front_matter()}{BEGIN}\n")
        types("prompt", "--file", str(file), "--budget", str(budget))
        assert file.read_text() == once
        file.unlink()


def test_check_shows_what_would_change_and_writes_nothing(kept, types, file):
    file.write_text("# Ours\n")

    code, said, told = types("prompt", "--file", str(file), "--check")

    assert code == 1
    assert f"+{END}" in said
    assert "is not up to date" in told
    assert file.read_text() == "# Ours\n"
    types("prompt", "--file", str(file))
    assert types("prompt", "--file", str(file), "--check")[0] == 0


@pytest.mark.parametrize("text", [f"{BEGIN}\nhalf", f"{BEGIN}\n{END}\n{BEGIN}\n{END}\n", f"a {END}\n", "\xff"])
def test_a_file_that_is_not_understood_is_refused_and_left_alone(kept, types, file, text):
    file.write_bytes(text.encode("latin-1"))

    code, said, told = types("prompt", "--file", str(file))

    assert (code, said) == (2, "")
    assert str(file) in told
    assert "nothing was changed" in told
    assert file.read_bytes() == text.encode("latin-1")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--check"], "--check needs a file"),
        (["--file", "AGENTS.md", "--format", "text"], "--file needs --format skill or agents-md"),
        (["--format", "html"], "html"),
        (["--budget", "0"], "0"),
        (["--store", "ftp://x"], "Unknown store type 'ftp'"),
        (["--file", "/"], "directory"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_type(types, words, why):
    code, said, told = types("prompt", *words)

    assert (code, said) == (2, "")
    assert why in told


@pytest.mark.slow
def test_the_command_does_it_in_a_process_of_its_own(kept, file):
    words = [sys.executable, "-m", "mulligan", "prompt", "--file", str(file), "--tool", "search"]

    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
    assert LEARNED in file.read_text()


def test_the_library_tells_the_same_as_the_command(kept, types):
    _, said, _ = types("prompt", "--tool", "search", "--tool", "git")

    assert mulligan.Mulligan().render_lessons(["search", "git"]) == said.rstrip("\n")


def test_tools_are_names_or_functions_and_one_alone_will_do():
    with sandbox() as played:

        @mulligan.tool
        def search(q: str, k: int) -> str:
            return q

        search("cats", 3)
        mulligan.flush(30)
        taught.prove(played.store, 1_700_000_000_000)
        for tools in ("search", search, [search], [search.__wrapped__]):
            assert "use k=10" in mulligan.render_lessons(tools)
        assert "use k=10" not in mulligan.render_lessons("other")
        assert estimate_prompt_tokens(mulligan.render_lessons(search, max_tokens=100)) <= 100
        for wrong in (0, -1, 2.5, "100", True, None):
            with pytest.raises(SettingsError, match="max_tokens"):
                mulligan.render_lessons(search, max_tokens=wrong)


def test_switched_off_it_says_nothing_and_with_a_broken_store_what_mulligan_is(tmp_path):
    assert mulligan.Mulligan(enabled=False).render_lessons() == ""
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"no database" * 1000)
    assert mulligan.Mulligan(store=str(broken)).render_lessons().startswith("mulligan records")


def test_lessons_and_prompts_link_to_the_dashboard_that_the_settings_name(kept, types, monkeypatch):
    assert "example.com" not in types("prompt")[1]
    monkeypatch.setenv("MULLIGAN_BASE_URL", "https://mulligan.example.com/")
    link = "All lessons and their evidence: https://mulligan.example.com/learned"
    assert types("prompt", "--tool", "search")[1].rstrip("\n").endswith(link)
    assert mulligan.Mulligan().render_lessons("search").endswith(link)
    lesson = kept.lessons(DEFAULT_TENANT, LessonQuery(source="learned", now=int(time.time() * 1000)))[0]
    _, said, _ = types("lessons", "show", lesson.id)
    assert said.rstrip("\n").endswith(f"Open the lesson: https://mulligan.example.com/lessons/{lesson.id}")
    facts = json.loads(types("lessons", "show", lesson.id, "--json")[1])
    assert facts["page"] == f"https://mulligan.example.com/lessons/{lesson.id}"


@pytest.mark.slow
def test_a_server_is_asked_and_its_pages_are_named(tmp_path, types, monkeypatch):
    from servers import served  # skips, with the reason, where the extra is not installed

    with served(tmp_path) as running:
        taught.fill(running.store)
        monkeypatch.setenv("MULLIGAN_STORE", f"http://127.0.0.1:{running.port}")
        monkeypatch.setenv("MULLIGAN_TOKEN", str(running.holding("read").token))
        _, said, _ = types("prompt", "--tool", "search")
    assert LEARNED in said
    assert said.rstrip("\n").endswith("are on your mulligan server, under /learned.")
    assert_sanitized(said)
