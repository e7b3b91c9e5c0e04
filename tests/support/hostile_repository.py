"""A cloned repository that tries to run code: its modules, settings, programs and variables leave marks when used."""

from __future__ import annotations

import os
import sys
from pathlib import Path

MODULES = (
    "__future__ argparse asyncio click codecs collections contextlib copy dataclasses difflib encodings enum functools "
    "gc importlib inspect io ipaddress json jsonschema_rs logging mcp mcp_types msgspec mulligan os pathlib platform "
    "psycopg queue re runpy shlex signal site sitecustomize sqlite3 stat string subprocess tempfile textwrap "
    "threading time tomllib types typing typing_extensions urllib usercustomize uuid warnings zlib"
).split()
"""Names that an entry may import: ours, those of packages that we depend on, and those of the standard library."""
SETTINGS = """store = {store!r}
mode = "repair"
level = "local"
record = "full"
"""


class HostileRepository:
    """A folder in which an agent or a client is started, and what its files did meanwhile."""

    def __init__(self, place: Path) -> None:
        self.folder = place / "cloned"
        self._marks = place / "marks"
        self._base = self.folder / "base"
        self._write_modules(self.folder)
        self._write_packages()
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        for library in (version, "python"):
            self._write_modules(self._base / "lib" / library / "site-packages")
        self._write_programs()
        self._write_settings()
        self._before = self._list_files()

    @property
    def variables(self) -> dict[str, str]:
        """Variables by which an interpreter finds code, as a loader of `.env` files would set them."""
        return {
            "PYTHONHOME": str(self.folder),
            "PYTHONPATH": f".{os.pathsep}{self.folder}",
            "PYTHONPLATLIBDIR": "base/lib",
            "PYTHONPYCACHEPREFIX": str(self.folder / "cache"),
            "PYTHONSTARTUP": str(self.folder / "mulligan.py"),
            "PYTHONUSERBASE": str(self._base),
            "PYTHONWARNINGS": "ignore::mulligan.Stolen",
        }

    def read_marks(self) -> set[str]:
        """Read which of its files were run."""
        return set(self._marks.read_text().split()) if self._marks.exists() else set()

    def check_untouched(self) -> None:
        """Fail if one of its files was run, or if one was added."""
        assert self.read_marks() == set()
        assert self._list_files() == self._before

    def _list_files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}

    def _build_code(self, name: str) -> str:
        """Build a line that leaves a mark, also where an interpreter has no `open` yet: it begins with `encodings`."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        line = f"{name}\n".encode()
        return f"import posix; posix.write(posix.open({str(self._marks)!r}, {flags}, 0o600), {line!r})\n"

    def _write_modules(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for name in MODULES:
            (folder / f"{name}.py").write_text(self._build_code(f"{folder.name}/{name}.py"))
        (folder / "stolen.pth").write_text(self._build_code(f"{folder.name}/stolen.pth"))

    def _write_packages(self) -> None:
        for inside in ("", "cli", "hooks"):
            folder = self.folder / "mulligan" / inside
            folder.mkdir(parents=True)
            for name in ("__init__", "__main__", "main", "start"):
                (folder / f"{name}.py").write_text(self._build_code(f"mulligan/{inside}/{name}.py"))

    def _write_programs(self) -> None:
        for name in ("mulligan", "mulligan-hook", "python", "python3"):
            path = self.folder / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\necho bin/{name} >>'{self._marks}'\n")
            path.chmod(0o755)

    def _write_settings(self) -> None:
        text = SETTINGS.format(store=str(self.folder / "stolen.db"))
        (self.folder / "mulligan.toml").write_text(text)
        (self.folder / ".env").write_text(f"MULLIGAN_STORE={self.folder / 'stolen.db'}\n")
        (self.folder / "pyproject.toml").write_text(f"[tool.mulligan]\n{text}")
