"""mulligan install aider: a file of lessons, named in the list `read` of Aider's settings, and nothing else changed."""

from __future__ import annotations

import pytest

from mulligan.cli.toml_text import add_read_file, reads_file, remove_read_file
from mulligan.core.failure import SettingsError
from mulligan.settings import hook_folder

LAYOUTS = {
    "": 'read: "a.md"\n',
    "model: x": 'model: x\nread: "a.md"\n',
    "# note\r\nmodel: x\r\n": '# note\r\nmodel: x\r\nread: "a.md"\r\n',
    "read: CONVENTIONS.md # ours\nmodel: x\n": 'read: [CONVENTIONS.md, "a.md"] # ours\nmodel: x\n',
    "read: [b.md, c.md]\n": 'read: [b.md, c.md, "a.md"]\n',
    "read: []\n": 'read: ["a.md"]\n',
    "read:\n  # theirs\n  - b.md\n\n  - c.md\nmodel: x\n": (
        'read:\n  # theirs\n  - b.md\n\n  - c.md\n  - "a.md"\nmodel: x\n'
    ),
    "read:\r\n- b.md\r\nmodel: x\r\n": 'read:\r\n- b.md\r\n- "a.md"\r\nmodel: x\r\n',
    "read:\nmodel: x\n": 'read: "a.md"\nmodel: x\n',
    "#read: b.md\n": '#read: b.md\nread: "a.md"\n',
}


@pytest.mark.parametrize(("before", "after"), LAYOUTS.items())
def test_a_file_is_added_to_every_layout_of_the_list(before, after):
    assert add_read_file(before, "a.md") == after
    assert add_read_file(after, "a.md") == after
    assert reads_file(after, "a.md")
    assert not reads_file(remove_read_file(after, "a.md"), "a.md")
    assert "b.md" not in before or "b.md" in remove_read_file(after, "a.md")


@pytest.mark.parametrize("text", ["read: [b.md,\n  c.md]\n", "read: |\n  b.md\n", "read: {a: b}\n"])
def test_an_unknown_layout_is_refused(text):
    with pytest.raises(SettingsError, match=r'Add "a\.md" to it yourself'):
        add_read_file(text, "a.md")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("before", [None, "model: x", "read: CONVENTIONS.md  # ours\r\n"])
def test_uninstalling_restores_the_settings_to_the_byte(home, types, before):
    settings, lessons = home / ".aider.conf.yml", hook_folder().with_name("aider.md")
    if before is not None:
        settings.write_bytes(before.encode())
    types("seed")
    assert types("install", "aider", "--dry-run")[0] == 0
    assert not lessons.exists()
    assert types("install", "aider")[0] == 0
    assert str(lessons) in settings.read_text()
    assert "mulligan:begin" in lessons.read_text()
    assert len(lessons.read_text()) > 500
    assert "Nothing to change" in types("install", "aider")[1]
    assert types("prompt", "--file", str(lessons), "--check")[0] == 0
    assert types("uninstall", "aider")[0] == 0
    assert not lessons.exists()
    assert (settings.read_bytes().decode() if settings.exists() else None) == before
    assert "Not installed" in types("uninstall", "aider")[1]


def test_settings_that_were_edited_since_lose_only_our_file(home, types):
    settings = home / ".aider.conf.yml"
    settings.write_text("read:\n  - b.md\n")
    types("install", "aider", "--project")
    lessons = home / ".mulligan" / "aider.md"
    settings.write_text(settings.read_text() + "model: x\n")
    lessons.write_text("Ours.\n" + lessons.read_text())
    types("uninstall", "aider", "--project")
    assert settings.read_text() == "read:\n  - b.md\nmodel: x\n"
    assert lessons.read_text() == "Ours.\n"
