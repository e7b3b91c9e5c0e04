"""The examples that need a framework run, and print what their README shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("folder", "package"), [("langchain_agent", "langchain"), ("pydantic_ai_agent", "pydantic_ai")]
)
def test_example_repairs_a_call_and_tells_the_model(folder: str, package: str, tmp_path: Path) -> None:
    pytest.importorskip(package, exc_type=ImportError)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / folder / "agent.py")],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (shown,) = re.findall(
        r"^```text\n(.*?)^```", (EXAMPLES / folder / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    for line in shown.splitlines():
        assert line.partition("...")[0] in done.stdout
