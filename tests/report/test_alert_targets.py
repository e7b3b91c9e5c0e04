"""What an alert says to people: every fact, and no markup, mention or link of the texts in it."""

from __future__ import annotations

import email
import email.policy
import json
import re
import socketserver
import threading

import pytest
from alert_receiver import receiving
from hostile_texts import CHAT_FAMILIES, FAMILIES
from msgspec.structs import replace

from mulligan.core.failure import SettingsError
from mulligan.report.alert_targets import (
    Alert,
    build_mail,
    build_pagerduty_body,
    build_slack_body,
    build_teams_body,
    build_webhook_body,
    neutralize_markup,
    parse_target,
    render_text,
)

BASE = "https://mulligan.example.com"
FACTS = Alert(
    type="person_needed", text="tool/auth_error in pay_api2: a person must act", at=1_763_500_000_000, tool="pay_api2",
    kind="tool/auth_error", run="run_1", message="401: key expired", pattern="pat_1", tenant="acme", agent="cashier",
    environment="production", version="1.4", occurrences=1234, first_seen_at=1_763_400_000_000, owner="ann",
    action="made 3 attempts, then stopped: the limit of 3 attempts is reached", link=f"{BASE}/runs/run_1",
    pattern_link=f"{BASE}/patterns/pat_1",
)  # fmt: skip
MARKUP = re.compile(r"[<>|@&\[\]`*~\\#]|://|\w:\S|//|www\.|\w\.[^\W\d_]|(?<![^\W_])_|_(?![^\W_])|:\w+:")


def hostile(text: str) -> Alert:
    return Alert(
        type="new_pattern", text=f"tool/x in {text}: new failure pattern", at=1, tool=text, kind="tool/x", run="r",
        message=text, tenant="acme", agent=text, environment=text, version=text, occurrences=2, owner=text,
        action=f"made 2 attempts, then stopped: {text}", link=f"{BASE}/runs/r",
        pattern_link=f"{BASE}/patterns/p",
    )  # fmt: skip


def bodies(alert: Alert) -> dict[str, dict]:
    return {
        "slack": build_slack_body(alert), "teams": build_teams_body(alert), "webhook": build_webhook_body(alert),
        "pagerduty": build_pagerduty_body(alert, "k" * 32),
    }  # fmt: skip


def texts(value, path=""):
    """Every text in a body with its path; not the alert as data, which no program renders."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name != "alert":
                yield from texts(item, f"{path}/{name}")
    elif isinstance(value, list):
        for item in value:
            yield from texts(item, path)
    elif isinstance(value, str):
        yield path, value


def test_every_form_names_what_a_person_on_call_needs_with_links_to_pattern_and_run():
    forms = {name: json.dumps(body, ensure_ascii=False) for name, body in bodies(FACTS).items()}
    forms["mail"] = build_mail(FACTS, "m@example.com", "ann@example.com").get_content()
    for name, text in forms.items():
        for fact in ("tool/auth_error", "pay_api2", "401", "key expired", "acme", "cashier", "production", "1.4",
                     "1,234 times since 2025-11-17 17", "ann", "made 3 attempts, then stopped", FACTS.link,
                     FACTS.pattern_link):  # fmt: skip
            assert fact in text, (name, fact)


def test_text_reads_as_a_person_would_write_it():
    assert render_text(FACTS).splitlines()[0] == "mulligan: tool/auth_error in pay_api2: a person must act"
    assert "Where: agent cashier, version 1.4, environment production, tenant acme" in render_text(FACTS)


def test_an_alert_about_many_calls_names_the_latest_failure():
    alert = replace(FACTS, type="high_failure_rate", text="23 of the last 30 calls are unrecovered")
    assert "Failure: tool/auth_error in pay_api2" in render_text(alert)
    assert "Failure: " not in render_text(FACTS)


@pytest.mark.parametrize("text", [*FAMILIES, *CHAT_FAMILIES])
def test_texts_of_strangers_add_no_markup_mention_or_link(text):
    line = neutralize_markup(text)
    assert not MARKUP.search(line), line
    assert len(line.splitlines()) <= 1
    assert line.isprintable()


@pytest.mark.parametrize("text", [*FAMILIES, *CHAT_FAMILIES])
def test_no_form_has_a_link_or_mention_but_its_own(text):
    for name, body in bodies(hostile(text)).items():
        for path, shown in texts(body):
            if path.endswith(("_key", "/timestamp", "/$schema", "/contentType", "/actions/type")):
                continue
            remainder = re.sub(rf"<?{BASE}/(runs|patterns)/[rp](\|Open the (run|pattern)>)?", "", shown)
            assert not MARKUP.search(remainder), (name, path, shown)
    mail = build_mail(hostile(text), "m@example.com", "ann@example.com")
    parsed = email.message_from_bytes(mail.as_bytes(), policy=email.policy.default)
    assert set(parsed.keys()) == {
        "Subject", "From", "To", "Message-ID", "Auto-Submitted", "Content-Type", "Content-Transfer-Encoding",
        "MIME-Version",
    }  # fmt: skip
    assert parsed["To"] == "ann@example.com"
    assert parsed.get_content_type() == "text/plain"
    assert not MARKUP.search(re.sub(rf"{BASE}/\S+", "", parsed.get_content()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slack", "teams", "webhook"])
def test_a_real_server_receives_the_alert(name):
    with receiving() as receiver:
        parse_target(f"{name}:{receiver.url}").deliver(FACTS)
    (body,) = receiver.bodies
    assert body == bodies(FACTS)[name]


class MailServer(socketserver.StreamRequestHandler):
    """Takes one e-mail, as RFC 5321 says, without TLS."""

    def handle(self):
        self.say("220 ready")
        while line := self.rfile.readline().decode().strip():
            self.server.lines.append(line)
            if line.upper().startswith("EHLO"):
                self.say("250 mail.example")
            elif line.upper() == "DATA":
                self.say("354 go on")
                while (line := self.rfile.readline().decode()) != ".\r\n":
                    self.server.mail += line
                self.say("250 taken")
            elif line.upper() == "QUIT":
                return self.say("221 bye")
            else:
                self.say("250 ok")
        return None

    def say(self, line):
        self.wfile.write(f"{line}\r\n".encode())


@pytest.mark.slow
def test_a_mail_server_receives_one_message_for_one_person():
    with socketserver.TCPServer(("127.0.0.1", 0), MailServer) as server:
        server.lines, server.mail = [], ""
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        smtp = f"smtp://127.0.0.1:{server.server_address[1]}/?from=mulligan@example.com"
        parse_target("mail:oncall@example.com", smtp).deliver(hostile(CHAT_FAMILIES[12]))
        thread.join(20)
    assert [line for line in server.lines if line.upper().startswith("RCPT")] == ["rcpt TO:<oncall@example.com>"]
    message = email.message_from_string(server.mail, policy=email.policy.default)
    assert message["Bcc"] is None
    assert "tenant acme" in message.get_content()


@pytest.mark.slow
def test_password_is_not_sent_to_a_mail_server_without_tls():
    with socketserver.TCPServer(("127.0.0.1", 0), MailServer) as server:
        server.lines, server.mail = [], ""
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        smtp = f"smtp://ann:hunter2@127.0.0.1:{server.server_address[1]}/?from=mulligan@example.com"
        with pytest.raises(SettingsError, match="no TLS"):
            parse_target("mail:oncall@example.com", smtp).deliver(FACTS)
        thread.join(20)
    assert not [line for line in server.lines if "AUTH" in line]


def test_known_hosts_get_their_own_form():
    hosts = {
        "https://hooks.slack.com/services/T/B/x": "slack",
        "https://acme.webhook.office.com/webhookb2/x": "teams",
        "https://prod-1.westeurope.logic.azure.com/workflows/x": "teams",
        "https://chat.example.com/hook": "webhook",
    }
    assert {url: parse_target(url).type for url in hosts} == hosts


@pytest.mark.parametrize(
    "text",
    ["", "slack", "slack:ftp://x", "pagerduty:short", "mail:a b@c", "mail:a@b.c", "webhook:http://h/a b", "fax:1",
     "webhook:http://[", "command:", "mail:a@b.c,d@e.f"],
)  # fmt: skip
def test_target_that_cannot_be_reached_is_refused(text):
    with pytest.raises(SettingsError):
        parse_target(text)


def test_labels_and_ids_have_no_secrets():
    for text in ("slack:https://hooks.slack.com/services/hunter2", "command:notify --key hunter2",
                 "pagerduty:hunter2hunter2hunter2hunter2"):  # fmt: skip
        target = parse_target(text)
        assert "hunter2" not in target.label + target.id
