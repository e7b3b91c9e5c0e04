"""When a later shell command is the failed one, corrected. A wrong link costs more than a missed one."""

from __future__ import annotations

import pytest

import mulligan
from mulligan.core.command_comparison import is_same_command, is_same_folder

NO_FILE = "No such file or directory"
WHO_ARE_YOU = "Author identity unknown\n*** Please tell me who you are.\nfatal: unable to auto-detect email address"
NO_PACKAGE = "npm error code ENOENT\nnpm error Could not read package.json: no such file or directory"
TEST_FAILED = "FAILED tests/test_a.py::test_b - assert 1 == 2\n1 failed in 0.1s"

SAME = [
    ("pyhton app.py", "python3 app.py", "bash: line 1: pyhton: command not found"),
    ("python app.py", "python3 app.py", "bash: python: command not found"),
    ("pip install flask", "pip3 install flask", "bash: pip: command not found"),
    ("pip install flask", "python3 -m pip install flask", "bash: pip: command not found"),
    ("gti status", "git status", "bash: gti: command not found"),
    ("kubctl get pods", "kubectl get pods", "zsh: command not found: kubctl"),
    ("docker-compose up -d", "docker compose up -d", "bash: docker-compose: command not found"),
    ("pytest tests", "uv run pytest tests", "bash: pytest: command not found"),
    ("python app.py", ".venv/bin/python app.py", "ModuleNotFoundError: No module named 'flask'"),
    ("apt-get update", "sudo apt-get update", "E: Could not open lock file - open (13: Permission denied)"),
    ("git commit -m 'start'", "git -c user.email=a@b.c -c user.name=Ada commit -m 'start'", WHO_ARE_YOU),
    ("git comit -m 'start'", "git commit -m 'start'", "git: 'comit' is not a git command. See 'git --help'."),
    ("npm test", "cd frontend && npm test", NO_PACKAGE),
    ("npm test", "npm --prefix frontend test", NO_PACKAGE),
    ("cd src && make", "cd /work/app/src && make", "bash: line 1: cd: src: No such file or directory"),
    ("cd fronted && npm test", "cd frontend && npm test", "bash: line 1: cd: fronted: No such file or directory"),
    ("git status", "git -C app status", "fatal: not a git repository (or any of the parent directories): .git"),
    ("python test.py", "python src/test.py", f"python: can't open file '/w/test.py': [Errno 2] {NO_FILE}"),
    ("mkdir a/b", "mkdir -p a/b", f"mkdir: cannot create directory 'a/b': {NO_FILE}"),
    ("rm out", "rm -r out", "rm: cannot remove 'out': Is a directory"),
    ("ln -s a b", "ln -sf a b", "ln: failed to create symbolic link 'b': File exists"),
    ("npm test", "npm test -- --watch=false", "the watcher was stopped"),
    ("pytest tests -x", "pytest tests", TEST_FAILED),
    ("pytest tests", "pytest -q tests", TEST_FAILED),
    ("pytest -n 4 tests", "pytest tests", "pytest: error: unrecognized arguments: -n"),
    ("ls --colour=always", "ls --color=always", "ls: unrecognized option '--colour=always'"),
    ("npm install", "npm install --legacy-peer-deps", "npm error ERESOLVE\nnpm error retry with --legacy-peer-deps"),

    ("sh run.sh", "API_URL=http://localhost:1 sh run.sh", "run.sh: API_URL is not set"),
    ("sh run.sh", "sh setup.sh && sh run.sh", "run.sh: config.json is missing"),
    ("sh run.sh", "export MODE=test; sh run.sh", "run.sh: MODE is not set"),
    ("pytest tests | tail -5", "pytest tests", TEST_FAILED),
    ("sleep 60", "timeout 90 sleep 60", "Command timed out after 60 s"),
    ("make build", "make build 2>&1", "make: *** [build] Error 1"),
    ("make biuld", "make build", "make: *** No rule to make target 'biuld'.  Stop."),
    ("npm run test:uint", "npm run test:unit", "npm error Missing script: \"test:uint\""),
]  # fmt: skip


@pytest.mark.parametrize(("failed", "later", "error"), SAME, ids=[f"{failed} - {later}" for failed, later, _ in SAME])
def test_corrected_command_is_the_same_command(failed, later, error):
    assert is_same_command(failed, later, mulligan.classify_error(error))


OTHER = [
    # Two commands of one program.
    ("git commit -m 'start'", "git status", WHO_ARE_YOU),
    ("git push", "git pull", "error: failed to push some refs"),
    ("git push", "git commit -m x", "error: failed to push some refs"),
    ("make tset", "make lint", "make: *** No rule to make target 'tset'.  Stop."),
    ("npm run build", "npm run lint", "npm error Missing script: build"),
    ("docker start web", "docker start db", "Error response from daemon: No such container: web"),

    ("git branch old", "git branch -d old", "fatal: a branch named 'old' already exists"),
    # Two items.
    ("cat notes/01.txt", "cat notes/02.txt", f"cat: notes/01.txt: {NO_FILE}"),
    ("pytest tests/test_a.py", "pytest tests/test_b.py", "ERROR: file or directory not found: tests/test_a.py"),
    ("cat report1", "cat report2", f"cat: report1: {NO_FILE}"),
    ("cd api && make", "cd web && make", "make: *** No targets specified and no makefile found.  Stop."),
    ("sh a/run.sh", "sh b/run.sh", f"sh: 0: cannot open a/run.sh: {NO_FILE}"),
    ("./a/run.sh", "./b/run.sh", f"bash: ./a/run.sh: {NO_FILE}"),
    ("MONTH=1 sh report.sh", "MONTH=2 sh report.sh", "report.sh: no figures for 1"),
    ("head -n 5 a", "head -n 9 a", "head: error"),
    ("kill 4711", "kill 4712", "bash: kill: (4711) - No such process"),
    ("curl http://a/1", "curl http://a/2", "curl: (22) The requested URL returned error: 404 Not Found"),
    # Another program.
    ("mysqld -V2", "mysql -V2", "bash: mysqld: command not found"),
    ("vi a.txt", "cat a.txt", "bash: vi: command not found"),
    ("wget http://a", "curl http://a", "bash: wget: command not found"),
    ("pip install x", "npm install x", "bash: pip: command not found"),
    ("npm install x", "pnpm install x", "bash: npm: command not found"),
    # A similar program, but nothing says that the first does not exist.
    ("pyhton app.py", "python3 app.py", "Segmentation fault"),
    # Something else, or less.
    ("deploy --prdo", "deploy --help", "error: unexpected argument '--prdo'\nUsage: see --help"),
    ("deploy", "deploy --dry-run", "error: not allowed"),
    ("terraform apply --dry-run", "terraform apply", "flag provided but not defined: --dry-run"),
    ("pytest tests", "pytest tests -k test_c", TEST_FAILED),
    ("pytest tests", "pytest tests --deselect tests/test_a.py::test_b", TEST_FAILED),
    ("pytest tests", "pytest --collect-only tests", TEST_FAILED),
    ("pytest tests", "pytest tests/test_b.py", TEST_FAILED),
    ("pytest tests", "pytest --last-failed tests", TEST_FAILED),
    ("pytest tests", "cd other && pytest tests", TEST_FAILED),
    ("go test ./...", "go test -short ./...", "--- FAIL: TestA (0.00s)\nFAIL"),
    ("git commit --amend -m x", "git commit -m x", "fatal: You have nothing to amend."),
    ("git checkout next", "git checkout -b next", "error: pathspec 'next' did not match any file(s) known to git"),
    ("git switch next", "git switch -c next", "fatal: invalid reference: next"),
    ("rm a.lock", "rm -f a.lock", f"rm: cannot remove 'a.lock': {NO_FILE}"),
    # Names that only resemble each other.
    ("rm notes", "rm ntoes", f"rm: cannot remove 'notes': {NO_FILE}"),
    ("npm run test:e2", "npm run test:e3", "npm error Missing script: \"test:e2\""),
    ("make test-a-x", "make test-b-x", "make: *** No rule to make target 'test-a-x'.  Stop."),
    # A check is switched off.
    ("curl -sf https://a", "curl -sf -k https://a", "curl: (60) SSL certificate problem: self-signed certificate"),
    ("curl -sf https://a", "curl -sf --insecure https://a", "curl: (60) SSL certificate problem: try --insecure"),
    ("ssh a ls", "ssh -o StrictHostKeyChecking=no a ls", "Host key verification failed."),
    ("git pull", "git -c http.sslVerify=false pull", "fatal: SSL certificate problem"),
    ("git commit -m x", "git commit --no-verify -m x", "pre-commit hook failed: trailing space"),
    ("npm run build", "SKIP_TYPECHECK=1 npm run build", "src/a.ts:1:1 - error TS2322: Type 'string' is not assignable"),
    ("npm run build", "CI=false npm run build", "Treating warnings as errors because process.env.CI = true."),
    ("gcc -Werror a.c", "gcc a.c", "a.c:3:5: error: unused variable 'x' [-Werror=unused-variable]"),
    # Success proves nothing.
    ("pytest tests", "pytest tests || true", TEST_FAILED),
    ("pytest tests", "pytest tests | tail -5", TEST_FAILED),
    ("pytest tests", "pytest tests; echo done", TEST_FAILED),
    ("pytest tests", "echo pytest tests", TEST_FAILED),
    ("make && make install", "make; make install", "make: *** [all] Error 1"),
    ("make", "for i in 1 2; do make; done", "make: *** [all] Error 1"),
    ("make > log", "make > /etc/log", "make: *** [all] Error 1"),
]  # fmt: skip


@pytest.mark.parametrize(("failed", "later", "error"), OTHER, ids=[f"{failed} - {later}" for failed, later, _ in OTHER])
def test_other_command_is_not(failed, later, error):
    assert not is_same_command(failed, later, mulligan.classify_error(error))


def test_working_folder_is_corrected_only_where_the_command_missed_its_files():
    missed, broken = mulligan.classify_error(NO_PACKAGE), mulligan.classify_error(TEST_FAILED)
    assert is_same_folder("", "/work/app", missed)
    assert is_same_folder("/work", "/work/app", missed)
    assert not is_same_folder("/work/api", "/work/app", missed)
    assert not is_same_folder("/work", "/work/app", broken)
