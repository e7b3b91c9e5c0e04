"""Print files and lines by package of src/mulligan, largest first, and the totals of src, tests and docs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "mulligan"
TOTALS = {"src": ("src", "*.py"), "tests": ("tests", "*.py"), "docs": ("docs", "*.md")}


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def measure(paths: Iterable[Path]) -> tuple[int, int]:
    """Return the number of files and of lines."""
    sizes = [count_lines(path) for path in paths]
    return len(sizes), sum(sizes)


def measure_packages() -> dict[str, tuple[int, int]]:
    """Return files and lines of every folder of the package, without those of its subfolders."""
    folders: dict[str, list[Path]] = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.parent.relative_to(PACKAGE).as_posix()
        folders.setdefault("mulligan" if name == "." else name, []).append(path)
    sizes = {name: measure(paths) for name, paths in folders.items()}
    return dict(sorted(sizes.items(), key=lambda item: item[1][1], reverse=True))


def main() -> None:
    print(f"{'files':>6} {'lines':>7}  package")
    for name, (files, lines) in measure_packages().items():
        print(f"{files:6} {lines:7,}  {name}")
    print(f"\n{'files':>6} {'lines':>7}  total")
    for name, (folder, pattern) in TOTALS.items():
        files, lines = measure((ROOT / folder).rglob(pattern))
        print(f"{files:6} {lines:7,}  {name}")


if __name__ == "__main__":
    main()
