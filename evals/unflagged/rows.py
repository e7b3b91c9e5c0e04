"""Results of tools without an error flag: errors of the tool itself, and content that is about errors.

A row has the tool's name, its arguments, the result and whether the tool itself failed. The texts were written from
what such tools print, before the rules for these results were measured. `is_opened` divides them by a hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One result."""

    tool: str
    arguments: dict[str, Any]
    result: Any
    is_error: bool

    @property
    def is_opened(self) -> bool:
        """Whether the row may be read while rules are written."""
        key = json.dumps([self.tool, self.arguments, self.result], default=str, sort_keys=True)
        return hashlib.sha256(key.encode()).digest()[0] < 128


SHELL_ERRORS = """
$ kubectl get pods
bash: kubectl: command not found
$ rg TODO src
/bin/sh: 1: rg: not found
$ ./deploy.sh
bash: ./deploy.sh: Permission denied
$ ./tool
bash: ./tool: cannot execute binary file: Exec format error
$ cp a.txt /root/
cp: cannot create regular file '/root/a.txt': Permission denied
$ mv x y z
mv: target 'z': No such file or directory
$ ls /srv/none
ls: cannot access '/srv/none': No such file or directory
$ cat missing.txt
cat: missing.txt: No such file or directory
$ rm build
rm: cannot remove 'build': Is a directory
$ mkdir a/b/c
mkdir: cannot create directory ‘a/b/c’: No such file or directory
$ cd nowhere
bash: cd: nowhere: No such file or directory
$ git push
To github.com:shop/app.git
 ! [rejected]        main -> main (fetch first)
error: failed to push some refs to 'github.com:shop/app.git'
$ git checkout featur
error: pathspec 'featur' did not match any file(s) known to git
$ git commit -m x
fatal: not a git repository (or any of the parent directories): .git
$ git merge dev
Auto-merging app.py
CONFLICT (content): Merge conflict in app.py
Automatic merge failed; fix conflicts and then commit the result.
$ npm install
npm ERR! code ERESOLVE
npm ERR! ERESOLVE unable to resolve dependency tree
$ npm run build
> app@1.0.0 build
> vite build
sh: 1: vite: not found
$ npm start
npm error Missing script: "start"
$ yarn test
error Command "test" not found.
$ pip install nosuchthing
ERROR: Could not find a version that satisfies the requirement nosuchthing (from versions: none)
ERROR: No matching distribution found for nosuchthing
$ python app.py
Traceback (most recent call last):
  File "app.py", line 3, in <module>
    import flask
ModuleNotFoundError: No module named 'flask'
$ python -m nothing
/usr/bin/python: No module named nothing
$ python x.py
  File "x.py", line 2
    def f(:
          ^
SyntaxError: invalid syntax
$ python nope.py
python: can't open file '/work/nope.py': [Errno 2] No such file or directory
$ node index.js
node:internal/modules/cjs/loader:1080
  throw err;
  ^

Error: Cannot find module '/work/index.js'
$ node server.js
/work/server.js:4
app.listen(PORT);
           ^

ReferenceError: PORT is not defined
    at Object.<anonymous> (/work/server.js:4:12)
    at node:internal/main/run_main_module:23:47
$ pytest
=================================== FAILURES ===================================
E       assert 2 == 3
tests/test_a.py:3: AssertionError
=========================== short test summary info ============================
FAILED tests/test_a.py::test_sum - assert 2 == 3
========================= 1 failed, 4 passed in 0.12s =========================
$ go test ./...
--- FAIL: TestSum (0.00s)
    sum_test.go:9: got 4, want 5
FAIL
FAIL	example.com/sum	0.003s
$ go build
./main.go:12:5: undefined: foo
$ cargo build
   Compiling app v0.1.0
error[E0425]: cannot find value `x` in this scope
error: could not compile `app` due to previous error
$ make
make: *** No rule to make target 'all'.  Stop.
$ make test
gcc -c a.c
a.c:3:5: error: unknown type name 'foo'
make: *** [Makefile:4: a.o] Error 1
$ tsc
src/a.ts(4,7): error TS2322: Type 'string' is not assignable to type 'number'.
$ curl http://localhost:9
curl: (7) Failed to connect to localhost port 9: Connection refused
$ curl https://nope.invalid
curl: (6) Could not resolve host: nope.invalid
$ wget http://nope.invalid
wget: unable to resolve host address ‘nope.invalid’
$ ssh host
ssh: connect to host host port 22: Connection timed out
$ ssh git@host
git@host: Permission denied (publickey).
$ docker ps
Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?
$ docker run x
Unable to find image 'x:latest' locally
docker: Error response from daemon: pull access denied for x, repository does not exist.
$ docker logs none
Error response from daemon: No such container: none
$ kubectl get pod a
Error from server (NotFound): pods "a" not found
$ kubectl apply -f a.yaml
error: the path "a.yaml" does not exist
$ psql -c 'select 1'
psql: error: connection to server at "localhost" (127.0.0.1), port 5432 failed: Connection refused
$ mysql -e 'select 1'
ERROR 2002 (HY000): Can't connect to local MySQL server through socket '/run/mysqld/mysqld.sock' (2)
$ redis-cli ping
Could not connect to Redis at 127.0.0.1:6379: Connection refused
$ sqlite3 a.db 'select x'
Error: in prepare, no such column: x
$ aws s3 ls
Unable to locate credentials. You can configure credentials by running "aws configure".
$ aws s3 ls s3://b
An error occurred (AccessDenied) when calling the ListObjectsV2 operation: Access Denied
$ terraform plan
╷
│ Error: No configuration files
│
╵
$ gcloud projects list
ERROR: (gcloud.projects.list) You do not currently have an active account selected.
$ apt install x
E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)
$ apt-get install nosuch
Reading package lists...
E: Unable to locate package nosuch
$ sudo ls
sudo: a terminal is required to read the password
$ grep
usage: grep [-abcdDEFGHhIiJLlMmnOopqRSsUVvwXxZz]
$ grep -P '(' a.txt
grep: missing closing parenthesis
$ tar xf a.tgz
tar: a.tgz: Cannot open: No such file or directory
tar: Error is not recoverable: exiting now
$ unzip a.zip
unzip:  cannot find or open a.zip, a.zip.zip or a.zip.ZIP.
$ jq .a x.json
jq: error: Could not open file x.json: No such file or directory
$ systemctl start x
Failed to start x.service: Unit x.service not found.
$ java -jar a.jar
Error: Unable to access jarfile a.jar
$ javac A.java
error: file not found: A.java
$ ./run
Segmentation fault (core dumped)
$ ./eat
Killed
$ dir nope
'dri' is not recognized as an internal or external command,
operable program or batch file.
$ Get-Foo
Get-Foo : The term 'Get-Foo' is not recognized as the name of a cmdlet, function, script file, or operable program.
$ helm install a
Error: INSTALLATION FAILED: must either provide a name or specify --generate-name
$ poetry install
Poetry could not find a pyproject.toml file in /work or its parents
$ ruby a.rb
a.rb:1:in `<main>': undefined local variable or method `x' for main:Object (NameError)
$ php a.php
PHP Fatal error:  Uncaught Error: Call to undefined function f() in /work/a.php:2
$ find / -name a
find: ‘/root’: Permission denied
$ dd if=a of=b
dd: failed to open 'a': No such file or directory
$ echo "x
bash: -c: line 1: unexpected EOF while looking for matching `"'
$ timeout 1 foo
timeout: failed to run command ‘foo’: No such file or directory
$ gh pr list
To get started with GitHub CLI, please run:  gh auth login
$ ping nope
ping: nope: Name or service not known
$ mvn test
[ERROR] Tests run: 4, Failures: 1, Errors: 0, Skipped: 0
[INFO] BUILD FAILURE
$ gradle build
FAILURE: Build failed with an exception.
$ eslint .
/work/a.js
  1:7  error  'x' is assigned a value but never used  no-unused-vars

✖ 1 problem (1 error, 0 warnings)
$ mypy .
a.py:3: error: Incompatible return value type (got "str", expected "int")  [return-value]
Found 1 error in 1 file (checked 4 source files)
"""

SHELL_CONTENT = """
$ cat app.log
Error: connection refused
$ tail -n 3 app.log
2026-01-04 10:00:01 ERROR worker: connection refused
2026-01-04 10:00:02 ERROR worker: connection refused
2026-01-04 10:00:04 INFO worker: up
$ grep -rn Error src
src/a.py:4:    raise ValueError("Error: no such order")
src/b.py:9:    # Error: permission denied
$ cat npm-debug.log
npm ERR! code E404
npm ERR! 404 Not Found
$ git log --oneline -3
4f2a1b Fix error: permission denied
77aa01 Failed logins are counted
0011aa Unable to open: better text
$ git diff
-    print("Error: no")
+    raise RuntimeError("no")
$ git status
On branch main
nothing to commit, working tree clean
$ docker logs web
Error: connect ECONNREFUSED 127.0.0.1:5432
    at TCPConnectWrap.afterConnect [as oncomplete] (node:net:1278:16)
$ kubectl logs web
panic: runtime error: invalid memory address
$ journalctl -n 2
Jan 04 10:00:01 host sshd[1]: Failed password for root
Jan 04 10:00:02 host kernel: Out of memory: Killed process 4
$ pytest
..........                                                               [100%]
10 passed in 0.31s
$ pytest -q
1 passed, 1 xfailed in 0.05s
$ npm test
Tests:       12 passed, 12 total
$ npm run lint
0 errors, 2 warnings
$ ls
error.log  failed_jobs  errors.py  fatal.txt
$ ls -l
-rw-r--r-- 1 a a 12 Jan  4 10:00 error.log
$ find . -name '*error*'
./src/errors.py
./docs/error_handling.md
$ echo 'Error: test'
Error: test
$ sed -n 1,5p errors.md
# Errors
Error: 404 means that nothing is there.
$ head -2 log.txt
FATAL: could not connect
FATAL: retrying
$ python count.py
errors: 0
$ python report.py
Error rate: 0.4 %
Failed jobs: 3
$ python check.py
All checks passed. No errors found.
$ wc -l error.log
12 error.log
$ jq .error response.json
"invalid api key"
$ jq . response.json
{
  "error": {"code": 401, "message": "invalid api key"}
}
$ cat fixture.json
{"status":"error","message":"invalid api key"}
$ cat exit.txt
Exit code: 1
$ make
gcc -Wall -o error error.c
$ cargo test
test result: ok. 3 passed; 0 failed; 0 ignored
$ go test ./...
ok  	example.com/error	0.003s
$ tsc --noEmit
Found 0 errors.
$ curl -s https://api.example/errors
[{"id": 1, "error": "timeout"}]
$ ps aux
root 1 0.0 error-reporter --fatal
$ env
ON_ERROR=fail
ERROR_PAGE=/500.html
$ man errno
ENOENT          No such file or directory
EACCES          Permission denied
$ grep -c Error app.log
14
$ diff a b
1c1
< Error: no such order
---
> Error: unknown order
$ sqlite3 a.db 'select message from log'
Error: no such order
Failed to connect
$ psql -c 'select * from errors'
 id | message
----+-------------------
  1 | permission denied
(1 row)
$ systemctl status web
web.service - Web
   Active: failed (Result: exit-code)
$ gh run view 4 --log
build	Run tests	FAILED tests/test_a.py::test_a
$ awk '/fatal/' app.log
fatal: disk full
$ git show HEAD:errors.txt
fatal: not a git repository
$ less notes.txt
command not found: what to do
$ ruff check .
All checks passed!
$ apt list --installed
liberror-perl/stable 0.17029-2 all
$ which python
/usr/bin/python
$ date
Sun Jan  4 10:00:00 UTC 2026
$ python train.py
epoch 1 loss 0.31 error 0.12
epoch 2 loss 0.22 error 0.09
$ npm audit
found 0 vulnerabilities
$ docker ps
CONTAINER ID   IMAGE     STATUS
4f2a           web       Exited (1) 3 minutes ago
$ history
  1  cat: missing
  2  sudo ls
$ tail -f /var/log/nginx/error.log
2026/01/04 10:00:01 [error] 31#31: *1 connect() failed (111: Connection refused) while connecting to upstream
"""

OTHER_ERRORS: list[tuple[str, dict[str, Any], Any]] = [
    ("read_file", {"path": "/srv/a.json"}, "Error: ENOENT: no such file or directory, open '/srv/a.json'"),
    ("read_file", {"path": "notes.md"}, "File not found: notes.md"),
    ("read_file", {"path": "notes.md"}, "Error reading file: [Errno 13] Permission denied: 'notes.md'"),
    (
        "read_file",
        {"path": "/etc/shadow"},
        "Access denied - path outside allowed directories: /etc/shadow not in /work",
    ),
    ("read_file", {"path": "src"}, "EISDIR: illegal operation on a directory, read"),
    ("Read", {"file_path": "/a/b.py"}, "File does not exist."),
    ("Read", {"file_path": "/a/b.bin"}, "This tool cannot read binary files."),
    ("view", {"path": "x.py"}, "The path x.py does not exist. Please provide a valid path."),
    ("open_file", {"path": "big.csv"}, "File content (41234 tokens) exceeds maximum allowed tokens (25000)."),
    ("get_file_contents", {"path": "README.rst"}, "failed to get file contents: 404 Not Found"),
    ("list_directory", {"path": "/none"}, "Error: ENOENT: no such file or directory, scandir '/none'"),
    ("read_document", {"id": "d41"}, {"error": "Document d41 not found"}),
    ("read_file", {"path": "a.txt"}, '{"error": "File not found: a.txt"}'),
    ("load_document", {"name": "plan.docx"}, "Could not open plan.docx: the file is encrypted."),
    ("read_pdf", {"path": "a.pdf"}, "Failed to parse PDF: EOF marker not found"),
    ("get_logs", {"service": "web"}, "Error: failed to fetch logs: permission denied"),
    ("read_emails", {"folder": "inbox"}, "Error: authentication failed (invalid credentials)"),
    ("fetch", {"url": "https://a.example"}, "<html><head><title>Just a moment...</title></head><body></body></html>"),
    (
        "fetch",
        {"url": "https://a.example"},
        "<!DOCTYPE html><html><head><title>Attention Required! | Cloudflare</title></head><body>blocked</body></html>",
    ),
    ("fetch", {"url": "https://a.example"}, "<html><head><title>403 Forbidden</title></head><body></body></html>"),
    ("fetch", {"url": "https://a.example"}, "<html><title>404 Not Found</title><h1>Not Found</h1></html>"),
    (
        "fetch",
        {"url": "https://a.example"},
        "<html><head><title>502 Bad Gateway</title></head><center>nginx</center></html>",
    ),
    (
        "fetch_page",
        {"url": "https://a.example/x"},
        '<html><head><title>Sign in - Shop</title></head><body><form><input type="password"></form></body></html>',
    ),
    ("fetch_page", {"url": "https://a.example/x"}, "Please log in to continue"),
    ("web_fetch", {"url": "https://a.example"}, "Failed to fetch https://a.example: status code 403"),
    ("web_fetch", {"url": "https://a.example"}, "Request failed with status code 429"),
    ("web_fetch", {"url": "https://a.example"}, "HTTP 503: Service Unavailable"),
    ("web_fetch", {"url": "https://a.example"}, "Error: getaddrinfo ENOTFOUND a.example"),
    (
        "WebFetch",
        {"url": "https://a.example"},
        'Access Denied\nYou don\'t have permission to access "/" on this server.',
    ),
    (
        "scrape",
        {"url": "https://a.example"},
        "# Verify you are human\n\nComplete the security check to access a.example",
    ),
    ("scrape", {"url": "https://a.example"}, "Our systems have detected unusual traffic from your computer network."),
    ("scrape", {"url": "https://a.example"}, {"success": False, "error": "Timed out after 30 s"}),
    ("http_request", {"url": "https://a.example"}, {"status": 500, "body": "oops"}),
    ("http_request", {"url": "https://a.example"}, {"status_code": 401, "text": "unauthorized"}),
    ("http_get", {"url": "https://api.example/o/4"}, '{"error": {"code": 404, "message": "no such order"}}'),
    ("http_get", {"url": "https://api.example/o/4"}, '{"message": "Not Found", "status": "404"}'),
    ("browser_navigate", {"url": "https://a.example"}, "page.goto: net::ERR_NAME_NOT_RESOLVED at https://a.example"),
    ("browser_navigate", {"url": "https://a.example"}, "Error: Timeout 30000ms exceeded."),
    ("browser_click", {"selector": "#a"}, "Error: locator.click: Timeout 5000ms exceeded."),
    ("browser_click", {"ref": "e4"}, "Error: Ref e4 not found in the current page snapshot."),
    ("browse", {"url": "https://a.example"}, "Navigation failed: the server closed the connection"),
    ("web_search", {"q": "tea"}, "Search failed: API quota exceeded for this month"),
    ("web_search", {"q": "tea"}, "Error: 429 Too Many Requests"),
    ("web_search", {"q": "tea"}, {"error": "Invalid API key"}),
    ("web_search", {"q": "tea"}, "Your account has run out of searches."),
    ("web_search", {"q": "tea"}, "Search is currently unavailable. Please try again later."),
    ("search", {"query": "("}, "Invalid regular expression: missing closing )"),
    ("search_docs", {"query": "a"}, "Index not found: docs"),
    ("retrieve", {"query": "a"}, "Error: connection to the vector store failed"),
    ("search", {"query": "a"}, [{"type": "text", "text": '{"error": "index is being rebuilt"}'}]),
    (
        "query",
        {"sql": "select * from orders"},
        'ERROR:  relation "orders" does not exist\nLINE 1: select * from orders',
    ),
    ("query", {"sql": "selec 1"}, 'Error: syntax error at or near "selec"'),
    ("execute_sql", {"sql": "select x"}, "(sqlite3.OperationalError) no such column: x"),
    ("execute_sql", {"sql": "select x"}, 'Error executing query: column "x" does not exist'),
    ("run_query", {"query": "select 1"}, "ORA-00942: table or view does not exist"),
    ("run_query", {"query": "select 1"}, "ERROR 1146 (42S02): Table 'shop.orders' doesn't exist"),
    ("run_query", {"query": "select 1"}, "Query failed: canceling statement due to statement timeout"),
    ("read_query", {"query": "drop table a"}, "Only SELECT queries are allowed for read_query"),
    ("bigquery", {"sql": "select 1"}, '400 Syntax error: Unexpected identifier "selec" at [1:1]'),
    (
        "snowflake_query",
        {"sql": "select 1"},
        "SQL compilation error: Object 'ORDERS' does not exist or not authorized.",
    ),
    (
        "python",
        {"code": "df"},
        "Traceback (most recent call last):\n  File \"<stdin>\", line 1, in <module>\nNameError: name 'df' is not defined",
    ),
    ("run_code", {"code": "1/0"}, "ZeroDivisionError: division by zero"),
    ("run_code", {"code": "while True: pass"}, "Execution timed out after 60 seconds."),
    ("code_interpreter", {"code": "import x"}, "ModuleNotFoundError: No module named 'x'"),
    ("javascript", {"code": "a"}, "Uncaught ReferenceError: a is not defined"),
    ("get_weather", {"city": "Oslo"}, "Error: city not found"),
    ("get_weather", {"city": "Oslo"}, {"error": "upstream timeout"}),
    ("get_weather", {"city": "Oslo"}, {"detail": "Not Found"}),
    ("get_order", {"id": 4}, "Order 4 not found."),
    ("get_order", {"id": 4}, {"success": False, "message": "no such order"}),
    ("get_order", {"id": 4}, "Sorry, something went wrong while loading the order."),
    ("lookup", {"id": 4}, "Unable to connect to the database"),
    ("lookup", {"id": 4}, {"message": "Internal Server Error"}),
    ("convert", {"amount": "x"}, "Invalid amount: 'x'"),
    ("send_email", {"to": "a@b.example"}, "Failed to send email: recipient rejected"),
    ("send_email", {"to": "a@b.example"}, {"ok": False, "error": "channel_not_found"}),
    ("create_ticket", {"title": "a"}, "Error: permission denied"),
    ("write_file", {"path": "/a"}, "Error: EACCES: permission denied, open '/a'"),
    ("update_record", {"id": 1}, {"errors": [{"message": "field 'name' is required"}]}),
    ("ask_llm", {"prompt": "a"}, "API Error: 529 Overloaded"),
]

LONG_PAGE = "".join(f"<p>Cause {number}: the host refuses, and the client says so.</p>" for number in range(60))
OTHER_CONTENT: list[tuple[str, dict[str, Any], Any]] = [
    ("read_file", {"path": "app.log"}, "Error: connection refused"),
    ("read_file", {"path": "app.log"}, "ERROR could not open /srv/a: permission denied\nERROR retry\n" * 8),
    ("read_file", {"path": "app.log"}, "Error: ENOENT: no such file or directory, open '/srv/config.json'"),
    ("read_file", {"path": "fixture.json"}, '{"status":"error","message":"invalid api key"}'),
    ("read_file", {"path": "fixture.json"}, '{"error": {"code": 404, "message": "not found"}}'),
    ("read_file", {"path": "fixture.json"}, '{"isError": true, "content": []}'),
    ("read_file", {"path": "errors.md"}, "# Errors\n\n`File not found` means that the path is wrong.\n"),
    ("read_file", {"path": "a.py"}, "raise FileNotFoundError('no such file')\n"),
    ("read_file", {"path": "trace.txt"}, 'Traceback (most recent call last):\n  File "a.py", line 1\nKeyError: 4\n'),
    ("read_file", {"path": "out.txt"}, "Exit code: 2\nbash: x: command not found\n"),
    ("read_file", {"path": "page.html"}, "<html><head><title>404 Not Found</title></head></html>"),
    ("read_file", {"path": "todo.txt"}, "unable to reproduce: ask Eva"),
    ("read_file", {"path": "faq.txt"}, "Cannot log in? Ask for a new password."),
    ("Read", {"file_path": "/a.sh"}, "     1→#!/bin/sh\n     2→echo 'Error: no such file' >&2\n     3→exit 1"),
    ("Grep", {"pattern": "Error"}, "src/a.py:3:    raise Error('not found')\nsrc/b.py:1:# Error"),
    ("Glob", {"pattern": "*error*"}, "src/errors.py\ndocs/error.md"),
    ("get_logs", {"service": "web"}, "2026-01-04T10:00:00Z ERROR could not connect\n2026-01-04T10:00:02Z INFO up"),
    ("get_logs", {"service": "web"}, "[error] upstream timed out\n[info] ok\n[info] ok\n[info] ok\n[info] ok"),
    ("read_emails", {"folder": "inbox"}, "From: Eva\nSubject: Error: permission denied\n\nCan you look?"),
    ("read_emails", {"folder": "inbox"}, [{"subject": "Failed delivery", "error": "mailbox full"}]),
    ("list_directory", {"path": "."}, "[FILE] error.log\n[DIR] failed"),
    ("fetch", {"url": "https://a.example"}, f"<html><head><title>How to fix 403 errors</title></head>{LONG_PAGE}</html>"),
    ("fetch", {"url": "https://a.example"}, f"<html><head><title>Error: connection refused - Forum</title></head>{LONG_PAGE}</html>"),
    ("fetch", {"url": "https://a.example"}, f"<html><head><title>Access control - Guide</title></head>{LONG_PAGE}</html>"),
    ("fetch", {"url": "https://a.example"}, "<html><title>Fix login problems</title><p>Enter your password twice.</p></html>"),
    ("fetch", {"url": "https://a.example"}, "# 404 in theory\n\nA page that is not found has the status 404.\n\n## Causes\n\nMany."),
    ("fetch", {"url": "https://a.example"}, "# Connection refused: five causes\n\n1. Nothing listens.\n2. A firewall.\n"),
    ("fetch", {"url": "https://a.example/raw/log"}, "2026-01-04 10:00 ERROR timeout\n2026-01-04 10:01 ERROR timeout"),
    ("fetch_page", {"url": "https://a.example"}, "Sign language for beginners\n\nLesson 1: hello."),
    ("fetch_page", {"url": "https://a.example"}, "Login systems compared: passwords, keys, tokens.\n\nWe tried nine of them."),
    ("web_fetch", {"url": "https://api.example/jobs"}, '{"jobs": [{"id": 1, "status": "failed", "error": "timeout"}]}'),
    ("web_fetch", {"url": "https://api.example/job/1"}, '{"id": 1, "status": "failed", "started_at": "2026", "error": "timeout"}'),
    ("web_fetch", {"url": "https://a.example"}, "Error messages: what they should say\n\nName the value and the limit.\n\nThen the fix."),
    ("http_request", {"url": "https://a.example"}, {"status": 200, "body": '{"error": null}'}),
    ("http_request", {"url": "https://a.example"}, {"status_code": 200, "text": "Error: 4 open tickets"}),
    ("browser_navigate", {"url": "https://a.example"}, "### Page state\n- Page Title: Status of our errors\n- heading 'Error log'\n- link 'Retry'"),
    ("browser_snapshot", {}, "- heading \"Invalid input\" [level=2]\n- textbox \"Name\"\n- button \"Send\""),
    ("web_search", {"q": "connection refused"}, "1. Error: connection refused - Forum\n2. How to fix it - Docs\n3. Causes\n4. More"),
    ("web_search", {"q": "a"}, [{"title": "Error: connection refused", "url": "https://a.example"}]),
    ("web_search", {"q": "a"}, {"results": [{"title": "Permission denied (publickey)"}], "total": 1}),
    ("web_search", {"q": "zzz"}, "No results found."),
    ("search", {"query": "zzz"}, {"results": [], "message": "No results"}),
    ("search_docs", {"query": "quota"}, "Quota limits\n\nEach project has a quota of 10. To raise it, ask.\n\nRate limits\n\nMore."),
    ("search_code", {"query": "raise"}, "a.py: raise RuntimeError('failed')\nb.py: raise ValueError('invalid')"),
    ("search_issues", {"query": "crash"}, "#4 Error: cannot open file (open)\n#7 Fatal: crash at start (closed)"),
    ("query", {"sql": "select level, message from log"}, " error | connection refused\n fatal | disk full"),
    ("query", {"sql": "select message from log"}, [{"message": "Error: connection refused"}]),
    ("query", {"sql": "select * from jobs"}, '[{"id": 1, "error": "timeout", "status": "failed"}]'),
    ("execute_sql", {"sql": "delete from a"}, "Query OK, 0 rows affected"),
    ("execute_sql", {"sql": "select count(*) from errors"}, "count\n-----\n 12"),
    ("run_query", {"query": "select 1"}, "(0 rows)"),
    ("python", {"code": "print(errors)"}, "['timeout', 'refused']"),
    ("python", {"code": "model.fit()"}, "epoch 1 - error: 0.21\nepoch 2 - error: 0.18"),
    ("run_code", {"code": "print(log)"}, "2026-01-04 ERROR failed to open\n2026-01-04 INFO ok"),
    ("run_code", {"code": "x"}, "Warning: errors='ignore' is deprecated\n[1, 2]"),
    ("code_interpreter", {"code": "print(1)"}, "1"),
    ("get_weather", {"city": "Oslo"}, {"city": "Oslo", "error": 0.4, "temperature": 3}),
    ("get_weather", {"city": "Oslo"}, "Rain, 3 degrees. No warnings."),
    ("get_order", {"id": 4}, {"id": 4, "status": "failed", "reason": "card declined", "created_at": "2026-01-04"}),
    ("get_order", {"id": 4}, "Order 4: delivery failed on Monday, second attempt on Tuesday."),
    ("get_incident", {"id": 4}, {"id": 4, "severity": 2, "message": "Database: connection refused", "status": "resolved"}),
    ("get_ticket", {"id": 4}, {"key": "SHOP-4", "title": "Error: cannot log in", "status": "open"}),
    ("list_builds", {}, [{"id": 1, "conclusion": "failure"}, {"id": 2, "conclusion": "success"}]),
    ("check_url", {"url": "https://a.example"}, {"url": "https://a.example", "status": 404, "checked": "2026-01-04"}),
    ("validate", {"document": "a"}, {"valid": False, "errors": [{"line": 3, "message": "wrong format"}]}),
    ("count_errors", {}, "Errors: 0\nWarnings: 2"),
    ("lookup", {"id": 4}, "Eva Berg, error analyst, Oslo"),
    ("translate", {"text": "Fehler"}, "error"),
    ("translate", {"text": "Zugriff verweigert"}, "Access denied"),
    ("summarize", {"text": "a"}, "The report says that the server failed twice and could not be restarted."),
    ("send_email", {"to": "a@b.example"}, "Email sent to a@b.example with subject 'Error report'."),
    ("send_email", {"to": "a@b.example"}, {"ok": True, "warning": "missing_charset"}),
    ("create_ticket", {"title": "a"}, {"id": 7, "title": "Error: cannot pay", "status": "open"}),
    ("delete_job", {"id": 1}, "Deleted 4 failed jobs."),
    ("write_file", {"path": "errors.md"}, "Wrote 120 bytes to errors.md"),
    ("Edit", {"file_path": "a.py"}, "The file a.py has been updated. 3: raise ValueError('invalid')"),
    ("book", {"hotel": "Ritz"}, {"message": "Payment is required on arrival"}),
    ("ask_llm", {"prompt": "a"}, "Error: that is what the log says. The disk is full."),
    ("Task", {"prompt": "a"}, "The tests failed because the fixture is missing. I could not find it."),
    ("ask_llm", {"prompt": "a"}, "I cannot open files, but I can explain the error."),
]  # fmt: skip


def read_rows() -> Iterator[Row]:
    """Yield all rows."""
    for text, is_error in ((SHELL_ERRORS, True), (SHELL_CONTENT, False)):
        for block in text.strip().split("\n$ "):
            command, _, output = block.removeprefix("$ ").partition("\n")
            yield Row("Bash", {"command": command}, output, is_error)
    for rows, is_error in ((OTHER_ERRORS, True), (OTHER_CONTENT, False)):
        for tool, arguments, result in rows:
            yield Row(tool, arguments, result, is_error)
