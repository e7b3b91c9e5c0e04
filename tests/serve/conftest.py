"""The command, typed: in this process, where nothing of the process itself is tested."""

from __future__ import annotations

import sys

import pytest

from mulligan.serve.cli import main


@pytest.fixture
def types(capsys, monkeypatch):
    def typed(*words):
        monkeypatch.setattr(sys, "argv", ["mulligan", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return typed
