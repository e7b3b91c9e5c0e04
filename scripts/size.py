"""Print files, lines and statements by package of src/mulligan, and the totals of src, tests and docs.

The files in additions.txt came after 0.1.0. Their totals are printed apart.

A statement is a node `ast.stmt` of the syntax tree: it counts the same however densely it is written.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "mulligan"
ADDITIONS = ROOT / "scripts" / "additions.txt"
TOTALS = {"src": ("src", "*.py"), "tests": ("tests", "*.py"), "docs": ("docs", "*.md")}
HEADER = f"{'files':>6} {'lines':>8} {'statements':>11}"


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def count_statements(path: Path) -> int:
    if path.suffix != ".py":
        return 0
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(path.read_bytes())))


def measure(paths: Iterable[Path]) -> tuple[int, int, int]:
    """Return the number of files, of lines and of statements."""
    sizes = [(count_lines(path), count_statements(path)) for path in paths]
    return len(sizes), sum(lines for lines, _ in sizes), sum(statements for _, statements in sizes)


def measure_packages() -> dict[str, tuple[int, int, int]]:
    """Return the sizes of every folder of the package, without those of its subfolders, largest first."""
    folders: dict[str, list[Path]] = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.parent.relative_to(PACKAGE).as_posix()
        folders.setdefault("mulligan" if name == "." else name, []).append(path)
    sizes = {name: measure(paths) for name, paths in folders.items()}
    return dict(sorted(sizes.items(), key=lambda item: item[1][2], reverse=True))


def print_size(name: str, size: tuple[int, int, int]) -> None:
    files, lines, statements = size
    print(f"{files:6} {lines:8,} {f'{statements:,}' if statements else '-':>11}  {name}")


def main() -> None:
    print(f"{HEADER}  package")
    for name, size in measure_packages().items():
        print_size(name, size)
    print(f"\n{HEADER}  total")
    additions = {ROOT / line for line in ADDITIONS.read_text().splitlines() if line and not line.startswith("#")}
    for name, (folder, pattern) in TOTALS.items():
        paths = set((ROOT / folder).rglob(pattern))
        print_size(name, measure(paths))
        if added_paths := paths & additions:
            print_size(f"  {name} that existed in 0.1.0", measure(paths - added_paths))
            print_size(f"  {name} added since", measure(added_paths))


if __name__ == "__main__":
    main()
