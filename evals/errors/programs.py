"""Failures of shells, compilers and test runners, provoked by running them. The label says what was provoked.

python evals/errors/programs.py    run every program that is installed and write programs.jsonl
"""

# ruff: noqa: E501 - source files of other languages, one per line
from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).with_name("programs.jsonl")
SECONDS = 60

FILES = {
    "semi.c": "int main(){ int x = 1 return x; }",
    "type.c": 'int main(){ struct {int a;} s; return s + "x"; }',
    "decl.c": "int main(){ return undeclared; }",
    "link.c": "int missing(void); int main(){ return missing(); }",
    "head.c": '#include "absent.h"\nint main(){return 0;}',
    "crash.c": "int main(){ int *p = 0; *p = 1; return 0; }",
    "ok.c": "int main(){ return 0; }",
    "bad.cpp": "#include <string>\nint main(){ std::string s = 5; return s.nope(); }",
    "tmpl.cpp": "template<class T> T f(T a, T b){return a;} int main(){ return f(1, 2.0); }",
    "type.rs": 'fn main(){ let x: i32 = "a"; }',
    "move.rs": "fn main(){ let v = vec![1]; let w = v; println!(\"{:?}\", v); }",
    "args.rs": "fn f(a: i32){} fn main(){ f(); }",
    "syn.rs": "fn main( { }",
    "panic.rs": "fn main(){ let v: Vec<i32> = vec![]; println!(\"{}\", v[3]); }",
    "test.rs": "#[test]\nfn adds(){ assert_eq!(1 + 1, 3); }",
    "Bad.java": "class Bad { int f(){ return \"x\"; } }",
    "Sym.java": "class Sym { void f(){ Strin s = null; } }",
    "Miss.java": "class Miss { int f(){ } }",
    "Run.java": 'class Run { public static void main(String[] a){ throw new IllegalStateException("closed"); } }',
    "syn.js": "function f( { return 1; }",
    "ref.js": "console.log(total + 1);",
    "throw.js": 'throw new Error("the queue is closed");',
    "mod.js": 'require("left-pad-9");',
    "read.js": 'require("fs").readFileSync("absent.json");',
    "conn.js": 'require("net").connect(9, "127.0.0.1");',
    "a.test.js": 'const t = require("node:test"); const a = require("node:assert"); t("adds", () => a.equal(1 + 1, 3));',
    "b.test.mjs": 'import t from "node:test"; t("throws", () => { throw new Error("boom"); });',
    "syn.py": "def f(:\n    pass\n",
    "indent.py": "def f():\nreturn 1\n",
    "key.py": "rows = {}\nprint(rows['name'])\n",
    "attr.py": "print(None.strip())\n",
    "imp.py": "import pandas_of_mars\n",
    "open.py": "open('absent.csv')\n",
    "conn.py": "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9/')\n",
    "exit.py": "import sys\nprint('3 records rejected', file=sys.stderr)\nsys.exit(3)\n",
    "assertion.py": "assert 1 + 1 == 3, 'sums differ'\n",
    "typed.py": "def f(a: int) -> str:\n    return a\n",
    "lint.py": "import os\nx = l\n",
    "test_equal.py": "def test_sum():\n    assert sum([1, 2]) == 4\n",
    "test_raise.py": "def test_load():\n    raise OSError('disk')\n",
    "test_fixture.py": "def test_db(db):\n    pass\n",
    "test_import.py": "import nothing_here\ndef test_a():\n    pass\n",
    "test_syntax.py": "def test_a(:\n    pass\n",
    "test_params.py": "import pytest\n@pytest.mark.parametrize('n', [1, 2, 3])\ndef test_n(n):\n    assert n < 2\n",
    "case_equal.py": "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual([1], [2])\n",
    "case_error.py": "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        {}['x']\n",
    "doc.py": 'def f():\n    """\n    >>> f()\n    2\n    """\n    return 1\n',
    "bad.pl": "my $x = ;\n",
    "die.pl": 'die "no stock left\\n";\n',
    "bad.sh": "if true; then echo x\n",
    "bad.json": '{"a": }',
    "locked.txt": "x",
    "run.sh": "#!/bin/sh\necho hi\n",
    "Makefile": "all:\n\tfalse\nlib: absent.o\n\ttouch lib\ncc:\n\tgcc -c semi.c\ncheck:\n\t@echo running; exit 2\n",
    "CMakeLists.txt": "cmake_minimum_required(VERSION 3.5)\nproject(x C)\nfind_package(Nothing9 REQUIRED)\n",
    "package.json": '{"name": "x", "version": "1.0.0", "scripts": {"build": "node syn.js", "test": "node --test a.test.js"}}',
    "wrong.patch": "--- a/ok.c\n+++ b/ok.c\n@@ -1,2 +1,2 @@\n int other(void){\n-return 1;\n+return 2;\n",
    "crate/Cargo.toml": '[package]\nname = "c"\nversion = "0.1.0"\nedition = "2021"\n',
    "crate/src/lib.rs": "pub fn add(a: i32) -> i32 { a }\n#[cfg(test)]\nmod t { #[test] fn adds() { assert_eq!(super::add(1), 2); } }\n",
    "broken/Cargo.toml": '[package]\nname = "b"\nversion = "0.1.0"\nedition = "2021"\n',
    "broken/src/main.rs": "fn main() { foo(); }\n",
    "toml/Cargo.toml": "[package\nname=",
}  # fmt: skip

BUILD, TEST, FILE, FAILED = "tool/build_failure", "tool/test_failure", "tool/file_not_found", "tool/execution_failed"
COMMANDS: dict[str, str] = {
    BUILD: """
gcc semi.c
gcc type.c
gcc decl.c
gcc link.c
gcc head.c
gcc -Werror -Wall -c ok.c -DX=1 semi.c
g++ bad.cpp
g++ tmpl.cpp
rustc type.rs
rustc move.rs
rustc args.rs
rustc syn.rs
javac Bad.java
javac Sym.java
javac Miss.java
javac Bad.java Sym.java Miss.java
node syn.js
node --check syn.js
python syn.py
python indent.py
python -m py_compile syn.py
python -m compileall -q indent.py
mypy typed.py
ruff check lint.py
ruff format --check indent.py
make
make lib
make cc
make nothing
cmake -S . -B out
npm run build
cargo build --manifest-path broken/Cargo.toml
cargo check --manifest-path toml/Cargo.toml
cargo build
perl -c bad.pl
bash -n bad.sh && echo fine || make cc
""",
    TEST: """
pytest test_equal.py
pytest -q test_raise.py
pytest -q test_fixture.py
pytest -q test_import.py
pytest test_syntax.py
pytest -q test_params.py
pytest -q --tb=no test_params.py
pytest -q --tb=line test_equal.py
pytest -x test_equal.py test_raise.py
pytest -q -rA test_params.py test_equal.py
python -m pytest -q test_equal.py
python -m unittest case_equal
python -m unittest case_error
python -m unittest -v case_equal case_error
python -m doctest doc.py
node --test a.test.js
node --test b.test.mjs
node --test --test-reporter=tap a.test.js
npm test
rustc --test test.rs -o t && ./t
cargo test --manifest-path crate/Cargo.toml
cargo test -q --manifest-path crate/Cargo.toml
pytest -q test_equal.py | tail -3; exit 1
""",
    FILE: """
cat absent.txt
ls absent/
cp absent.txt b
mv absent.txt b
cd absent
rm absent.txt
grep x absent.txt
head -3 absent.txt
sed -i s/a/b/ absent.txt
tar xf absent.tar
wc -l absent.txt
python absent.py
node absent.js
bash absent.sh
source absent.sh
perl absent.pl
python open.py
node read.js
gcc absent.c
pytest absent_test.py
patch -p1 < absent.patch
jq . absent.json
stat absent
chmod +x absent
diff ok.c absent.c
git add absent.txt
cmake -S absent -B out
ruff check absent.py
mypy absent.py
echo hi > absent/x
touch absent/x
find absent -name x
tail -f absent.log
awk 1 absent.txt
""",
    FAILED: """
python key.py
python attr.py
python imp.py
python exit.py
python assertion.py
node ref.js
node throw.js
node mod.js
rustc -O panic.rs -o p 2>/dev/null; ./p
gcc crash.c -o c 2>/dev/null; ./c
java Run.java
perl die.pl
bash bad.sh
false
exit 3
echo x > /proc/version
git checkout nothing
git commit -m x
git push
git merge nothing
git rebase nothing
git show deadbeef
git log nothing..other
sqlite3 :memory: 'select * from t'
jq . bad.json
python -m json.tool bad.json
mkdir crate
rmdir crate
kill 999999
expr 1 +
grep -P '(' ok.c
sed 's/a' ok.c
find . -nope
ls --nope
tar xf ok.c
test -f absent.txt
git branch a b c d
python -c 'import sys; sys.exit("quota file is wrong")'
pip install --no-index surely-not-a-package
npm run nothing
cargo run --manifest-path crate/Cargo.toml --bin nothing
""",
    "tool/command_not_found": """
frobnicate --now
kubectl get pods
poetry install
./node_modules/.bin/eslint . || terraform plan
env frobnicate
sudo2 ls
""",
    "tool/permission_denied": """
./run.sh
cat locked.txt
echo x > locked.txt
""",
    "tool/connection_error": """
curl -s -S http://127.0.0.1:9/
curl http://no-such-host.invalid/
wget -q -O- http://127.0.0.1:9/ || curl -sS http://127.0.0.1:9/x
python conn.py
node conn.js
psql -h 127.0.0.1 -p 9 -U x
git clone http://127.0.0.1:9/x.git
""",
    "tool/timeout": """
timeout 1 sleep 5
timeout 1 python -c 'import time; time.sleep(9)'
timeout -k 1 1 bash -c 'echo started; sleep 9'
""",
    "tool/edit_mismatch": """
patch -p1 --dry-run < wrong.patch
git apply wrong.patch
""",
}


def main() -> int:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        Path(folder, "run.sh").chmod(0o644)
        Path(folder, "locked.txt").chmod(0)
        subprocess.run(["git", "init", "-q", folder], check=True)
        for kind, commands in COMMANDS.items():
            rows += [row for command in commands.strip().splitlines() if (row := run(command, kind, folder))]
    CORPUS.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows)} failures written to {CORPUS.name}")
    return 0


def run(command: str, kind: str, folder: str) -> dict[str, object] | None:
    """Run a command as the shell tool of a coding agent does. Return its failure, or None if it did not fail."""
    program = command.split()[0]
    is_absent = kind != "tool/command_not_found" and "/" not in program and shutil.which(program) is None
    if is_absent and program not in ("cd", "exit", "source"):
        print(f"not installed: {program}", file=sys.stderr)
        return None
    ended = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL
    )
    if ended.returncode == 0:
        print(f"succeeded: {command}", file=sys.stderr)
        return None
    output = "\n".join(part.strip("\n") for part in (ended.stdout, ended.stderr) if part.strip())
    text = f"Exit code {ended.returncode}\n{output}".replace(folder, "/repo").strip()
    text = re.sub(r"/(?:root|home|opt|work|usr/lib)/[\w./-]*/", "/opt/", text)
    return {"name": command, "kind": kind, "coding": True, "tool": "Bash", "command": command, "text": text[:6000]}


if __name__ == "__main__":
    sys.exit(main())
