"""What mulligan learns from programs whose authors have not read its rules, batch by batch.

    python evals/programs --kit DIR            # all batches; DIR has kit.py and run.py, by default ../shared/programs
    python evals/programs --batch a --only travel_cabin_letters

A batch is a file of whole agents in the notation of the kit: tools, what the user wants, which calls give that, what
the model tries by itself. Each is played 50 times over 14 simulated days: with one store, with an empty memory for each
run, and without mulligan. The authors read the README of the project and the kit, nothing else.

The last line of each batch is JSON: `misled` (wrong actions by models that follow advice), `false_recovered`,
`adv_wrong` and `adv_good`, `helped` of `chances` (real corrections told from the third occurrence on).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent.parent / "src"
BATCHES = {path.stem.removeprefix("batch_"): path for path in sorted(HERE.glob("batch_*.py"))}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kit", type=Path, default=HERE.parent.parent.parent / "shared" / "programs", metavar="DIR")
    options.add_argument("--batch", choices=sorted(BATCHES), help="one batch; without it, all")
    options.add_argument("--only", nargs="*", default=[], metavar="NAME", help="programs of the batch")
    options.add_argument("--jobs", default="2", help="processes")
    choices = options.parse_args()
    if not (choices.kit / "run.py").is_file():
        options.error(f"{choices.kit} has no run.py. Use --kit DIR.")
    for name, path in BATCHES.items():
        if choices.batch in (None, name):
            print(f"== batch {name}", flush=True)
            play_batch(path, choices.kit, choices.only, choices.jobs)


def play_batch(batch: Path, kit: Path, names: list[str], jobs: str) -> None:
    """Play the programs of a batch with the kit, which imports them under the name of its own."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(kit, folder, dirs_exist_ok=True)
        shutil.copy(batch, Path(folder) / "shapes2.py")
        only = ["--only", *names] if names else []
        command = [sys.executable, "run.py", "--python", sys.executable, "--jobs", jobs, *only]
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "SOAK_PATH": f":{SOURCES}"}
        subprocess.run(command, cwd=folder, env=environment, check=True)


if __name__ == "__main__":
    main()
