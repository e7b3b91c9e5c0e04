"""Rows from real commands: each is run in a folder of its own, and its output stands without its exit code.

Commands whose program is not installed are failures too: the shell says so. `python evals/unflagged --commands`.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from unflagged.rows import Row

FILES = {
    "app.log": "2026-01-04 10:00:01 ERROR worker: connection refused\n2026-01-04 10:00:04 INFO worker: up\n",
    "plain.log": "Error: connection refused\nFailed to open the queue\nPermission denied\n",
    "fixture.json": '{"status": "error", "message": "invalid api key"}\n',
    "notes.md": "# Errors\n\nWhen it says `No such file or directory`, the path is wrong.\n",
    "broken.py": "def f(:\n    pass\n",
    "raises.py": "import json\njson.loads('{')\n",
    "report.py": "print('errors: 0')\nprint('Failed jobs: 2')\n",
    "test_sum.py": "def test_sum():\n    assert 1 + 1 == 3\n",
    "Makefile": "all:\n\tfalse\n",
    "a.c": "int main(void) { return x; }\n",
    "locked.txt": "secret\n",
    "data.csv": "id,error\n1,timeout\n2,refused\n",
}
FAILURES = """
cat nothing.txt
cat app.log nothing.txt > /dev/null
cp nothing.txt copy.txt
mv nothing.txt other.txt
rm nothing.txt
rmdir folder
mkdir notes.md
cd nowhere
ls --nonsense
ls nowhere
head -n x app.log
tail -n 5 nothing.log
grep -E '(' app.log
sed 's/a/b' app.log
awk '{print' app.log
find . -nonsense
sort --nonsense app.log
tar xf nothing.tar
tar xf app.log
gzip -d app.log
unzip nothing.zip
chmod 999 app.log
chown nobody:nogroup /etc/hosts
ln -s app.log notes.md
touch nowhere/a.txt
git status
git log
git clone ./nothing
git nonsense
python3 nothing.py
python3 broken.py
python3 raises.py
python3 -c 'import nothing'
python3 -c '1/0'
python3 -m nothing
python3 --nonsense
python3 -m json.tool app.log
node nothing.js
npm run nothing
make
make nothing
gcc a.c
gcc nothing.c
kubectl get pods
docker ps
psql -c 'select 1'
sqlite3 x.db 'select nothing'
frobnicate --help
./app.log
bash broken.py
source nothing.sh
kill 99999999
curl -sS http://127.0.0.1:9/
curl nonsense://a
wget -q http://127.0.0.1:9/
ssh -o BatchMode=yes -p 9 127.0.0.1
diff nothing.txt app.log
date --nonsense
base64 -d notes.md
xargs nonsense < app.log
id nobodyhere
su nobodyhere
mount /dev/nothing /mnt
dd if=nothing of=copy
jq . app.log
openssl x509 -in app.log
perl -e 'die "no\\n"'
perl nothing.pl
timeout 1 sleep 5; echo done | nonsense
"""
SHOWN = """
cat app.log
cat plain.log
cat fixture.json
cat notes.md
cat broken.py
cat raises.py
head -1 plain.log
tail -1 plain.log
grep -n Error plain.log
grep -c ERROR app.log
grep -rn denied .
grep ERROR app.log | sort | uniq -c
sed -n 1,2p plain.log
awk '/Failed/' plain.log
awk -F, '{print $2}' data.csv
cut -d, -f2 data.csv
sort plain.log
nl plain.log
tac plain.log
wc -l plain.log
diff app.log plain.log
ls
ls -l
find . -name '*.log'
echo 'Error: test'
printf 'fatal: %s\\n' test
python3 report.py
python3 -c 'print(open("plain.log").read())'
python3 -c 'print("Error rate: 0.2 %")'
python3 -m json.tool fixture.json
cat app.log plain.log | head -3
cat plain.log 2>/dev/null
fold -w 20 plain.log
base64 plain.log | base64 -d
tr a-z A-Z < plain.log
md5sum plain.log
file plain.log
du -a .
stat plain.log
date
"""


def read_rows() -> Iterator[Row]:
    """Run the commands and yield their outputs. A command without output says nothing about itself."""
    for commands, is_error in ((FAILURES, True), (SHOWN, False)):
        for command in commands.strip().splitlines():
            with tempfile.TemporaryDirectory() as folder:
                for name, text in FILES.items():
                    (Path(folder) / name).write_text(text)
                (Path(folder) / "folder" / "inner").mkdir(parents=True)
                done = subprocess.run(
                    ["bash", "-c", command],
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    timeout=60,
                    check=False,
                )
            output = done.stdout.decode("utf-8", "replace")
            if output.strip() and (done.returncode != 0 or not is_error):
                yield Row("bash", {"command": command}, output, is_error)
