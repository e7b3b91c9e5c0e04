"""What is under deploy/ calls commands that there are, with options that they take."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import importlib
import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

import click
import jsonschema_rs
import msgspec
import postgres
import pytest
import yaml
from ingest import serving
from ports import free_port

from mulligan.cli import cli
from mulligan.contract.store import Worker
from mulligan.core.kinds import KIND_PROPERTIES
from mulligan.report.stats import render_workers
from mulligan.store.urls import open_store

DEPLOY = Path(__file__).parent.parent / "deploy"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def commands() -> list[list[str]]:
    """Every call of mulligan in these files, as words."""
    found = []
    for path in sorted(path for path in DEPLOY.rglob("*") if path.is_file()):
        text = path.read_text()
        found += [shlex.split(line) for line in re.findall(r"^ExecStart\w*=(.*mulligan .*)$", text, re.MULTILINE)]
        for line in re.findall(r"^(?:CMD|\s*command:) (\[.*\])$", text, re.MULTILINE):
            found.append(re.findall(r'"([^"]*)"', line))
        found += [shlex.split(line) for line in re.findall(r"^#.*(?:migrate|--) (mulligan .*)$", text, re.MULTILINE)]
    return [words for words in found if words[0] != "sleep"]


def test_the_commands_in_deploy_are_ours():
    assert len(commands()) >= 9
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
    for name in (
        "compose.yaml",
        "Dockerfile",
        "mulligan.service",
        "mulligan-prune.service",
        "kubernetes/servers.yaml",
    ):
        assert re.search(r"[Uu]ntested|never (?:run|applied)", (DEPLOY / name).read_text()), name


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


# Kubernetes

OBJECT_MODULES = {
    "v1": "core_v1", "apps/v1": "apps_v1", "policy/v1": "policy_v1", "networking.k8s.io/v1": "networking_v1",
}  # fmt: skip


def load_objects() -> list[dict[str, Any]]:
    return [item for path in sorted((DEPLOY / "kubernetes").iterdir()) for item in yaml.safe_load_all(path.read_text())]


def load_pods() -> dict[str, dict[str, Any]]:
    """Return the specification of each pod by the name of its object."""
    owners = {
        item["metadata"]["name"]: item["spec"] for item in load_objects() if item["kind"] in ("Deployment", "Pod")
    }
    return {name: spec.get("template", {}).get("spec", spec) for name, spec in owners.items()}


def validate_object(item: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is wrong with the fields of an object: unknown, missing, or of another type."""
    core = types.ModuleType("lightkube.core.schema")  # of a client that the dataclasses are made for
    core.__dict__.update(dataclass=dataclasses.dataclass, field=dataclasses.field, DictMixin=object)
    monkeypatch.setitem(sys.modules, "lightkube.core", types.ModuleType("lightkube.core"))
    monkeypatch.setitem(sys.modules, "lightkube.core.schema", core)
    models = importlib.import_module(f"lightkube.models.{OBJECT_MODULES[item['apiVersion']]}")
    text = msgspec.json.encode(msgspec.json.schema(getattr(models, item["kind"]))).decode()
    schema = msgspec.json.decode(text.replace('"from_":', '"from":'))  # a word of Python
    for definition in schema["$defs"].values():
        definition["additionalProperties"] = False
    return [f"{error.instance_path}: {error.message}" for error in jsonschema_rs.iter_errors(schema, item)]


def test_kubernetes_objects_have_only_fields_of_their_kind(monkeypatch):
    objects = load_objects()
    assert {item["kind"] for item in objects} >= {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}
    assert [error for item in objects for error in validate_object(item, monkeypatch)] == []
    (deployment,) = (item for item in objects if item["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["failures"] = 3
    assert "failures" in "".join(validate_object(deployment, monkeypatch))


def test_pods_are_restricted_and_have_resources():
    assert set(load_pods()) == {"mulligan", "mulligan-shell"}
    images = set()
    for spec in load_pods().values():
        assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            context = container["securityContext"]
            assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert set(container["resources"]["requests"]) >= {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]
            (store,) = (entry for entry in container["env"] if entry["name"] == "MULLIGAN_STORE")
            assert store["valueFrom"] == {"secretKeyRef": {"name": "mulligan-database", "key": "url"}}
            mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert {"/tmp", "/var/lib/mulligan"} <= mounts  # the root file system is read-only
            images.add(container["image"])
    (image,) = images
    assert re.search(r"/[a-z]+:\d+\.\d+\.\d+$", image)  # a version, never latest
    user = next(iter(load_pods().values()))["securityContext"]["runAsUser"]
    assert f"--uid {user} " in (DEPLOY / "Dockerfile").read_text()


def test_the_deployment_migrates_probes_drains_and_survives_a_drained_node():
    by_kind = {item["kind"]: item for item in load_objects()}
    services = [item["spec"] for item in load_objects() if item["kind"] == "Service"]
    deployment, spec = by_kind["Deployment"]["spec"], load_pods()["mulligan"]
    (server,) = spec["containers"]
    assert [container["command"] for container in spec["initContainers"]] == [["mulligan", "migrate"]]
    paths = {name: server[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    drain = float(server["command"][server["command"].index("--drain") + 1])
    readiness = server["readinessProbe"]
    assert drain >= readiness["periodSeconds"] * readiness["failureThreshold"]
    assert spec["terminationGracePeriodSeconds"] >= drain + 20
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["replicas"] >= 2
    assert deployment["selector"]["matchLabels"] == labels
    for service in services:
        assert service["selector"] == labels
        assert service["ports"][0].get("targetPort", "http") == server["ports"][0]["name"] == "http"
    assert by_kind["PodDisruptionBudget"]["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    policy = by_kind["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["ingress"][0]["ports"] == [{"port": server["ports"][0]["name"]}]
    host = by_kind["Ingress"]["spec"]["rules"][0]["host"]
    assert host in server["command"]


# Prometheus and Grafana

SCRAPE_LABELS = {"job", "instance"}
"""Labels that Prometheus adds to every metric."""


class Expression(NamedTuple):
    """A query of a rule or a panel, and the labels that its text shows."""

    title: str
    query: str
    shown_labels: set[str]


def load_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "mulligan.rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def load_panels() -> list[dict[str, Any]]:
    panels = json.loads((DEPLOY / "grafana" / "mulligan.json").read_text())["panels"]
    return [panel for panel in panels if panel["type"] != "row"]


def list_expressions() -> list[Expression]:
    expressions = [
        Expression(rule["alert"], rule["expr"], set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])))
        for rule in load_rules()
    ]
    for panel in load_panels():
        for target in panel["targets"]:
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            expressions.append(Expression(panel["title"], target["expr"], labels))
    return expressions


def parse_metrics(text: str) -> dict[str, dict[str, set[str]]]:
    """Return the values of each label of each metric."""
    metrics: dict[str, dict[str, set[str]]] = {}
    for name, labels in re.findall(r"^(mulligan_\w+)(\{.*\})? [^ ]+$", text, re.MULTILINE):
        values = metrics.setdefault(name, {})
        for label, value in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels):
            values.setdefault(label, set()).add(value)
    return metrics


def find_unknown_names(expression: Expression, metrics: dict[str, dict[str, set[str]]]) -> list[str]:
    """Return the metrics, labels and values of an expression that the servers do not have."""
    unknown: list[str] = []
    labels = set(SCRAPE_LABELS)
    for name, matchers in re.findall(r"\b(mulligan_\w+)(\{[^}]*\})?", expression.query):
        if name not in metrics:
            unknown.append(name)
        labels |= set(metrics.get(name, ()))
        for label, text in re.findall(r'(\w+)=~?"([^"]*)"', matchers):
            values = metrics.get(name, {}).get(label, set())
            if label == "kind":
                values = {str(kind) for kind in KIND_PROPERTIES}
            if label not in SCRAPE_LABELS:
                unknown += [f"{name} {label}={value}" for value in text.split("|") if value not in values]
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"\b(?:by|on) \(([^)]*)\)", expression.query))))
    return unknown + sorted((grouped | expression.shown_labels) - labels)


def send_examples(port: int) -> None:
    """Send runs with calls of every outcome, a rejected request and a span that describes no call."""
    span = {"traceId": "a" * 32, "spanId": "b" * 16, "name": "GET /", "startTimeUnixNano": "1"}
    spans = {"resourceSpans": [{"scopeSpans": [{"scope": {"name": "http"}, "spans": [span]}]}]}
    failure = {"message": "Read timed out after 3 s"}
    steps: list[dict[str, Any]] = [
        {"name": "search", "failure": failure, "duration_seconds": 0.1},
        {"name": "search", "call": 1, "attempt": 2, "duration_seconds": 0.1},
        {"name": "fetch", "failure": {"message": "invalid API key"}},
        {"name": "list", "duration_seconds": 0.2},
    ]
    run = {"agent": "a", "end_reason": "finished", "steps": steps}
    for path, payload, host in (("/v1/runs", run, "localhost"), ("/v1/traces", spans, "localhost"), ("/", {}, "evil")):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        headers = {"Content-Type": "application/json", "Host": host}
        connection.request("POST", path, json.dumps(payload), headers)
        assert connection.getresponse().status in (200, 421)
        connection.close()


def read_metrics(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


@pytest.mark.slow
def test_rules_and_panels_use_metrics_and_labels_of_the_servers():
    with serving("memory:") as process:
        send_examples(process.port)
        text = read_metrics(process.port)
    worker = Worker("10.0.0.1:5432", True, shards=32, bytes=9, shard_bytes=8, largest_shard_bytes=1)
    metrics = parse_metrics(text + "\n".join(render_workers([worker])))
    for expression in list_expressions():
        assert find_unknown_names(expression, metrics) == [], expression.title
    for query in (
        'mulligan_call_total{outcome="unrecovered"}', 'mulligan_calls_total{outcome="lost"}',
        'mulligan_calls_total{status="unrecovered"}', "sum by (tool) (mulligan_calls_total)",
        'mulligan_unrecovered_total{kind="tool/lost"}',
    ):  # fmt: skip
        assert find_unknown_names(Expression("", query, set()), metrics), query
    assert find_unknown_names(Expression("", "mulligan_calls_total", {"tool"}), metrics) == ["tool"]


def run_promtool(*arguments: object) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    finished = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_promtool_accepts_rules_queries_and_configuration(tmp_path):
    (tmp_path / "token").write_text("x")
    configuration = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    configuration = configuration.replace("/etc/prometheus/mulligan.token", str(tmp_path / "token"))
    configuration = configuration.replace(
        "/etc/prometheus/mulligan.rules.yml", str(DEPLOY / "prometheus" / "mulligan.rules.yml")
    )
    (tmp_path / "static.yml").write_text(configuration)
    with_pods = re.sub(r"^    # ( *(?:- |dns_sd_configs))", r"    \1", configuration, flags=re.MULTILINE)
    assert "\n    dns_sd_configs:\n" in with_pods
    (tmp_path / "kubernetes.yml").write_text(with_pods)
    run_promtool("check", "config", tmp_path / "static.yml")
    run_promtool("check", "config", tmp_path / "kubernetes.yml")
    rules = [
        {"record": f"panel:{number}", "expr": fill_variables(expression.query)}
        for number, expression in enumerate(list_expressions())
    ]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    run_promtool("check", "rules", tmp_path / "rules.yml")


CITUS_PANELS = {"Workers that answer", "Size of shards"}


@pytest.mark.slow
def test_a_real_prometheus_answers_each_panel(tmp_path):
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    with serving("memory:") as process:
        text = (DEPLOY / "prometheus" / "prometheus.yml").read_text().replace("30s", "1s")
        text = re.sub(r" *authorization:\n.*\n", "", text)  # the server runs without tokens
        text = text.replace('"10.0.0.11:4700", "10.0.0.12:4700"', f'"127.0.0.1:{process.port}"')
        text = text.replace("/etc/prometheus", str(DEPLOY / "prometheus"))
        (tmp_path / "prometheus.yml").write_text(text)
        port = free_port()
        command = [
            program, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
        ]  # fmt: skip
        expressions = [item for item in list_expressions() if not item.title.startswith("Mulligan")]
        unanswered = [item for item in expressions if item.title not in CITUS_PANELS]
        with subprocess.Popen(command) as prometheus:
            try:
                deadline = time.monotonic() + 90
                while unanswered:
                    assert time.monotonic() < deadline, unanswered
                    send_examples(process.port)
                    time.sleep(1)
                    unanswered = [item for item in unanswered if not query_prometheus(port, item.query)]
            finally:
                prometheus.terminate()


def query_prometheus(port: int, query: str) -> list[Any]:
    """Return the series that a query selects, none while Prometheus starts."""
    path = f"/api/v1/query?query={quote(fill_variables(query))}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    except OSError:
        return []
    finally:
        connection.close()
    result: list[Any] = json.loads(body)["data"]["result"] if response.status == 200 else []
    return result


def fill_variables(query: str) -> str:
    """Replace the variables of Grafana by values that it would use."""
    return query.replace("$__rate_interval", "15s").replace("$__range", "1m").replace("$job", "mulligan.*")


ALERT_EXAMPLES: dict[str, tuple[list[tuple[str, str]], list[tuple[str, str]]]] = {
    "MulliganUnavailable": (
        [('up{job="mulligan",instance="a"}', "0x300"), ('up{job="mulligan",instance="b"}', "0x300")],
        [('up{job="mulligan",instance="a"}', "1x300"), ('up{job="mulligan",instance="b"}', "0x300")],
    ),
    "MulliganServerDown": ([('up{job="mulligan"}', "0x300")], [('up{job="mulligan"}', "1x300")]),
    "MulliganRecordsWait": (
        [("mulligan_server_waiting_bytes", "30000000x300")], [("mulligan_server_waiting_bytes", "9000000x300")]
    ),
    "MulliganRejectsRequests": (
        [('mulligan_rejected_requests_total{reason="429"}', "0+60x300")],
        [('mulligan_rejected_requests_total{reason="429"}', "0+1x300")],
    ),
    "MulliganReceivesNothing": (
        [("mulligan_server_records", "0+9x1400 12600x300")], [("mulligan_server_records", "0+9x1700")]
    ),
    "MulliganStoreWorkerDown": (
        [('mulligan_store_worker_up{worker="w"}', "0x300")], [('mulligan_store_worker_up{worker="w"}', "1x300")]
    ),
    "MulliganCallsUnrecovered": (
        [
            ('mulligan_calls_total{outcome="unrecovered"}', "0+2x300"),
            ('mulligan_calls_total{outcome="first_try"}', "0+8x300"),
        ],
        # A call that recovers later: the count falls, which rate() would take for a restart.
        [
            ('mulligan_calls_total{outcome="unrecovered"}', " ".join(["900 899"] * 120)),
            ('mulligan_calls_total{outcome="first_try"}', "0+8x300"),
        ],
    ),
    "MulliganToolFails": (
        [
            ('mulligan_tool_calls_total{tool="t",outcome="unrecovered"}', "0+1x300"),
            ('mulligan_tool_calls_total{tool="t",outcome="first_try"}', "5x300"),
        ],
        [
            ('mulligan_tool_calls_total{tool="t",outcome="unrecovered"}', "9x300"),
            ('mulligan_tool_calls_total{tool="t",outcome="first_try"}', "0+1x300"),
        ],
    ),
    "MulliganNeedsPerson": (
        [
            ('mulligan_unrecovered_total{kind="model/auth_error",job="m"}', "_x230 1x60"),
            ('mulligan_attempts_total{job="m"}', "0+1x300"),
        ],
        [
            ('mulligan_unrecovered_total{kind="model/auth_error",job="m"}', "7x300"),
            ('mulligan_attempts_total{job="m"}', "0+1x300"),
        ],
    ),
}  # fmt: skip
"""Series of each alert with a sample a minute: those for which it fires, then those for which it does not."""


def test_each_alert_fires_and_stays_silent_as_it_should(tmp_path):
    assert set(ALERT_EXAMPLES) == {rule["alert"] for rule in load_rules()}
    rules = DEPLOY / "prometheus" / "mulligan.rules.yml"
    for alert, examples in ALERT_EXAMPLES.items():
        minute = 1685 if alert == "MulliganReceivesNothing" else 240
        for should_fire, series in zip((True, False), examples, strict=True):
            lines = [{"series": name, "values": values} for name, values in series]
            query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0'
            samples = [{"labels": "{}", "value": 1}] if should_fire else []
            checks = [{"expr": query, "eval_time": f"{minute}m", "exp_samples": samples}]
            test = {"interval": "1m", "input_series": lines, "promql_expr_test": checks}
            path = tmp_path / f"{alert}-{should_fire}.yml"
            path.write_text(json.dumps({"rule_files": [str(rules)], "tests": [test]}))
            run_promtool("test", "rules", path)


def test_panels_have_an_id_a_description_and_a_free_area():
    panels = load_panels()
    areas = [panel["gridPos"] for panel in panels]
    cells = [
        (x, y)
        for area in areas
        for x in range(area["x"], area["x"] + area["w"])
        for y in range(area["y"], area["y"] + area["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) <= 23
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["description"] for panel in panels)


def test_the_docs_explain_each_alert_and_panel():
    page = (DEPLOY.parent / "docs" / "operations.md").read_text()
    assert [rule["alert"] for rule in load_rules() if f"| `{rule['alert']}` |" not in page] == []
    assert [panel["title"] for panel in load_panels() if panel["title"] not in page] == []


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
