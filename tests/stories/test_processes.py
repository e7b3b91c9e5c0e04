"""Calls in other processes: children of the run that started them where it was carried, else one warning."""

from __future__ import annotations

import pytest

PROGRAM = """
    import multiprocessing, os, subprocess, sys
    from concurrent.futures import ProcessPoolExecutor

    import mulligan

    @mulligan.tool(effects="none")
    def double(number):
        return 2 * number

    def main():
        with mulligan.run("shop", version="2", session="s1") as run:
            {work}
        print(run.id)

    if __name__ == "__main__":
        main()
"""
PROCESS = """
            process = multiprocessing.get_context({method!r}).Process(target={function}, args=(4,))
            process.start()
            process.join()
"""
POOL = """
            with ProcessPoolExecutor(2, multiprocessing.get_context({method!r})) as pool:
                assert list(pool.map({function}, [1, 2])) == [2, 4]
"""
PLAIN, CARRIED = "double", "mulligan.carry_run(double)"


def histories(user):
    return [user.sees("show", run["id"]) for run in user.sees("runs")]


@pytest.mark.parametrize("work", [PROCESS, POOL], ids=["process", "pool"])
@pytest.mark.parametrize(
    ("method", "function"), [("fork", PLAIN), ("fork", CARRIED), ("spawn", CARRIED), ("forkserver", CARRIED)]
)
def test_calls_in_a_child_process_are_children_of_the_run(user, work, method, function):
    done = user.runs_program(PROGRAM.format(work=work.format(method=method, function=function).strip()))
    assert done.returncode == 0, done.stderr
    assert "outside any run" not in done.stderr
    parent = done.stdout.strip()
    children = [history["run"] for history in histories(user) if history["run"]["id"] != parent]
    assert len(children) == (1 if work is PROCESS else 2)
    assert {(run["parent"], run["session"]) for run in children} == {(parent, "s1")}


@pytest.mark.parametrize("work", [PROCESS, POOL], ids=["process", "pool"])
def test_a_process_that_cannot_know_the_run_says_once_how_to_carry_it(user, work):
    done = user.runs_program(PROGRAM.format(work=work.format(method="spawn", function=PLAIN).strip()))
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if "outside any run" in line]
    assert 1 <= len(warnings) <= 2  # one for each process
    assert "mulligan.carry_run(function)" in warnings[0]
    assert "traceparent=headers" in warnings[0]


def test_a_process_of_a_program_without_runs_is_not_warned_about(user):
    program = PROGRAM.replace('with mulligan.run("shop", version="2", session="s1") as run:', "if True:")
    work = PROCESS.format(method="spawn", function=PLAIN).strip()
    done = user.runs_program(program.format(work=work).replace("print(run.id)", "print()"))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_started_with_the_headers_in_its_environment_is_a_child(user):
    (user.folder / "child.py").write_text(
        "import os, mulligan\nwith mulligan.run('child', traceparent=os.environ): mulligan.tool(abs)(-1)\n"
    )
    done = user.runs_program("""
        import os, subprocess, sys, mulligan
        with mulligan.run("parent") as run:
            subprocess.run([sys.executable, "child.py"], env={**os.environ, **run.headers}, check=True)
    """)
    assert done.returncode == 0, done.stderr
    runs = {history["run"]["agent"]: history["run"] for history in histories(user)}
    assert runs["child"]["parent"] == runs["parent"]["id"]


def test_options_of_the_run_hold_in_the_other_process(user):
    program = PROGRAM.format(work=PROCESS.format(method="spawn", function=CARRIED).strip())
    done = user.runs_program(program.replace('session="s1"', 'record="off"'))
    assert done.returncode == 0, done.stderr
    assert user.sees("runs") == []
