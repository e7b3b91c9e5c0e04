"""What is under deploy/ calls commands that there are, with options that they take."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shlex
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import click
import postgres
import pytest
from ingest import serving
from ports import free_port

from mulligan.cli import cli
from mulligan.store.urls import open_store

DEPLOY = Path(__file__).parent.parent / "deploy"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def commands() -> list[list[str]]:
    """Every call of mulligan in these files, as words."""
    found = []
    for path in sorted(DEPLOY.iterdir()):
        text = path.read_text()
        found += [shlex.split(line) for line in re.findall(r"^ExecStart\w*=(.*mulligan .*)$", text, re.MULTILINE)]
        for line in re.findall(r"^(?:CMD|\s*command:) (\[.*\])$", text, re.MULTILINE):
            found.append(re.findall(r'"([^"]*)"', line))
        found += [shlex.split(line) for line in re.findall(r"^#.*migrate (mulligan .*)$", text, re.MULTILINE)]
    return found


def test_the_commands_in_deploy_are_ours():
    assert len(commands()) >= 6
    for words in commands():
        assert Path(words[0]).name == "mulligan"
        context = click.Context(cli, info_name="mulligan")
        name, command, rest = cli.resolve_command(context, words[1:])
        assert command is not None
        if isinstance(command, click.Group):
            command, rest = command.commands[rest[0]], rest[1:]
        command.make_context(name, rest, parent=context)  # reads the words, and performs nothing


def test_the_units_are_sound_to_systemd(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    units = []
    for path in (*DEPLOY.glob("*.service"), *DEPLOY.glob("*.timer")):
        units.append(tmp_path / path.name)
        units[-1].write_text(path.read_text().replace("/opt/mulligan/bin/mulligan", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True, timeout=60)
    # What it says of other units of this machine is not ours.
    said = [line for line in done.stderr.splitlines() if "mulligan" in line]
    assert said == []


def test_the_balancer_in_the_docs_is_that_of_deploy():
    page = (DEPLOY.parent / "docs" / "operations.md").read_text()
    (example,) = re.findall(r"```nginx\n(.*?)```", page, re.DOTALL)
    lines = {line.partition("#")[0].strip() for line in (DEPLOY / "nginx.conf").read_text().splitlines()}
    assert [line for line in map(str.strip, example.splitlines()) if line not in lines] == []


def test_what_was_never_run_says_so():
    for name in ("compose.yaml", "Dockerfile", "mulligan.service", "mulligan-prune.service"):
        assert re.search(r"[Uu]ntested|never run", (DEPLOY / name).read_text()), name


# The role of compose.yaml

ROLE = "mulligan_of_compose"


@pytest.mark.postgres
def test_the_role_of_compose_migrates_serves_and_is_under_row_level_security(types):
    """PostgreSQL's image runs role.sql with psql, as a superuser and in the new database."""
    postgres.had()
    with postgres.Server(durable=True) as server:
        if not (server.bin / "psql").exists():
            pytest.skip("this PostgreSQL has no psql")
        url = f"postgresql://{ROLE}:of-compose@127.0.0.1:{server.port}/mulligan"
        psycopg = pytest.importorskip("psycopg")
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE mulligan")
        for _ in range(2):  # the second time it changes nothing
            run_role_script(postgres.named(server.url, "mulligan"))

        assert types("migrate", "--store", url)[0] == 0
        code, out, _ = types("doctor", "--store", url)
        assert (code, out.partition("\n")[0]) == (0, "Healthy.")
        assert f"row-level security in force (role {ROLE})" in out
        with serving(url) as process:
            assert "Warning" not in process.errors()
            connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=20)
            body = '{"id": "job-1", "agent": "a", "steps": [{"name": "fetch"}]}'
            connection.request("POST", "/v1/runs", body, {"Content-Type": "application/json"})
            assert connection.getresponse().status == 200
            connection.close()

        with psycopg.connect(url, autocommit=True) as connection:
            attributes = "rolsuper, rolbypassrls, rolcreatedb, rolcreaterole, rolreplication"
            sql = f"SELECT {attributes} FROM pg_roles WHERE rolname = current_user"
            assert connection.execute(sql).fetchone() == (False,) * 5
            assert connection.execute("SELECT count(*) FROM runs").fetchone() == (0,)
            connection.execute("SET mulligan.tenant = '=local'")
            assert connection.execute("SELECT count(*) FROM runs").fetchone() == (1,)


@pytest.mark.postgres
def test_the_role_script_takes_over_the_tables_of_a_superuser(types):
    postgres.had()
    with postgres.Server(durable=True) as server:
        if not (server.bin / "psql").exists():
            pytest.skip("this PostgreSQL has no psql")
        open_store(server.url).close()
        assert types("doctor", "--store", server.url)[0] == 1
        run_role_script(server.url)
        netloc = f"{ROLE}:of-compose@127.0.0.1:{server.port}"
        assert types("doctor", "--store", urlunsplit(urlsplit(server.url)._replace(netloc=netloc)))[0] == 0


def run_role_script(url: str) -> None:
    program = postgres.binaries() / "bin" / "psql"
    environment = {"MULLIGAN_ROLE": ROLE, "MULLIGAN_PASSWORD": "of-compose", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [str(program), "--no-psqlrc", "--file", str(DEPLOY / "role.sql"), url],
        capture_output=True, text=True, env=environment, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_compose_connects_as_an_ordinary_role_behind_a_trusted_proxy():
    text = (DEPLOY / "compose.yaml").read_text()
    assert "postgresql://mulligan:" in text
    assert "POSTGRES_USER" not in text  # it would be a superuser; the one of the image is postgres
    assert "./role.sql:/docker-entrypoint-initdb.d/role.sql:ro" in text
    (gateway,) = re.findall(r"gateway: ([\d.]+)", text)
    assert f'"--forwarded-allow-ips", "{gateway}"' in text
    variables = set(re.findall(r"\$\{(\w+)", text))
    assert variables == set(re.findall(r"^(\w+)=", (DEPLOY / "compose.env.example").read_text(), re.MULTILINE))


# nginx


@contextlib.contextmanager
def run_nginx(folder: Path, upstream_port: int) -> Iterator[int]:
    """Run nginx with nginx.conf: other addresses, and a certificate of its own. Yield its port."""
    if NGINX is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, which makes the certificate")
    port = free_port()
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", "mulligan.key", "-out", "mulligan.crt"],
        cwd=folder, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    text = (DEPLOY / "nginx.conf").read_text().replace("/etc/nginx/", f"{folder}/")
    text = text.replace("10.0.0.11:4700", f"127.0.0.1:{upstream_port}").replace(
        "listen 443", f"listen 127.0.0.1:{port}"
    )
    text = re.sub(r" *server 10\.0\.0\.12:4700.*\n", "", text)
    paths = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/nginx.pid; events {{}} http {{ access_log off; gzip on; {paths}\n{text}\n}}\n"
    )
    command = [NGINX, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stderr
    with subprocess.Popen(command) as process:
        try:
            yield port
        finally:
            process.terminate()


@pytest.mark.slow
def test_nginx_passes_events_at_once_and_the_address_of_the_client(tmp_path):
    with (
        serving(str(tmp_path / "a.db"), arguments=["--forwarded-allow-ips", "127.0.0.1", "--log"]) as process,
        run_nginx(tmp_path, process.port) as port,
    ):
        context = ssl.create_default_context(cafile=str(tmp_path / "mulligan.crt"))

        def connect() -> http.client.HTTPSConnection:
            connection = http.client.HTTPSConnection(
                "localhost", port, timeout=20, context=context, source_address=("127.0.0.2", 0)
            )
            deadline = time.monotonic() + 20
            while True:
                try:
                    connection.connect()
                    return connection
                except OSError:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)

        with contextlib.closing(connect()) as live, contextlib.closing(connect()) as sender:
            live.request("GET", "/live/events", headers={"Accept-Encoding": "gzip", "X-Forwarded-For": "192.0.2.7"})
            events = live.getresponse()
            assert (events.status, events.getheader("Content-Type")) == (200, "text/event-stream; charset=utf-8")
            body = '{"id": "job-1", "agent": "a", "steps": [{"name": "fetch_by_nginx"}]}'
            sender.request("POST", "/v1/runs", body, {"Content-Type": "application/json"})
            assert sender.getresponse().status == 200
            line = b""
            while b"fetch_by_nginx" not in line:  # before the stream ends, or the timeout would fail the test
                line = events.readline()
                assert line
        deadline = time.monotonic() + 20
        while "/live/events" not in process.errors():  # logged when the stream has ended
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (logged,) = [line for line in process.errors().splitlines() if "/live/events" in line]
        assert "127.0.0.2" in logged
        assert "192.0.2.7" not in logged  # what the client itself says
