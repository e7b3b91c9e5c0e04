"""What is under deploy/ calls commands that there are, with options that they take."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from mulligan.cli import cli

DEPLOY = Path(__file__).parent.parent / "deploy"


def commands() -> list[list[str]]:
    """Every call of mulligan in these files, as words."""
    found = []
    for path in sorted(DEPLOY.iterdir()):
        text = path.read_text()
        found += [shlex.split(line) for line in re.findall(r"^ExecStart\w*=(.*mulligan .*)$", text, re.MULTILINE)]
        for line in re.findall(r"^(?:CMD|\s*command:) (\[.*\])$", text, re.MULTILINE):
            found.append(re.findall(r'"([^"]*)"', line))
        found += [shlex.split(line) for line in re.findall(r"^#.*migrate (mulligan .*)$", text, re.MULTILINE)]
    return found


def test_the_commands_in_deploy_are_ours():
    assert len(commands()) >= 6
    for words in commands():
        assert Path(words[0]).name == "mulligan"
        context = click.Context(cli, info_name="mulligan")
        name, command, rest = cli.resolve_command(context, words[1:])
        assert command is not None
        if isinstance(command, click.Group):
            command, rest = command.commands[rest[0]], rest[1:]
        command.make_context(name, rest, parent=context)  # reads the words, and performs nothing


def test_the_units_are_sound_to_systemd(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    units = []
    for path in (*DEPLOY.glob("*.service"), *DEPLOY.glob("*.timer")):
        units.append(tmp_path / path.name)
        units[-1].write_text(path.read_text().replace("/opt/mulligan/bin/mulligan", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True, timeout=60)
    # What it says of other units of this machine is not ours.
    said = [line for line in done.stderr.splitlines() if "mulligan" in line]
    assert said == []


def test_the_balancer_in_the_docs_is_that_of_deploy():
    page = (DEPLOY.parent / "docs" / "operations.md").read_text()
    (example,) = re.findall(r"```nginx\n(.*?)```", page, re.DOTALL)
    lines = {line.partition("#")[0].strip() for line in (DEPLOY / "nginx.conf").read_text().splitlines()}
    assert [line for line in map(str.strip, example.splitlines()) if line not in lines] == []


def test_what_was_never_run_says_so():
    for name in ("compose.yaml", "Dockerfile", "mulligan.service", "mulligan-prune.service"):
        assert re.search(r"[Uu]ntested|never run", (DEPLOY / name).read_text()), name
