"""Alerts and their targets: what an alert says in a chat, an incident, an e-mail, a webhook and a command.

Names, messages and comments in an alert are untrusted. `neutralize_markup` replaces what chat programs and mail readers
turn into markup, mentions and links, so that the only links of an alert are those to the dashboard.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import smtplib
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable
from email.message import EmailMessage
from email.utils import make_msgid
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import parse_qs, unquote, urlsplit

from mulligan.core.failure import SettingsError
from mulligan.core.records import Record, encode
from mulligan.redaction import sanitize

AlertType = Literal[
    "person_needed", "new_pattern", "high_failure_rate", "circuit_open", "regressed_pattern", "budget_exhausted",
    "server_unhealthy", "test",
]  # fmt: skip

SELECTABLE_TYPES = tuple(name for name in get_args(AlertType) if name != "test")

DELIVERY_TIMEOUT_SECONDS = 10.0
"""Timeout of one command run, request or e-mail."""
PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
SLACK_HOST = "hooks.slack.com"
TEAMS_HOSTS = (".webhook.office.com", ".logic.azure.com", ".powerplatform.com")
MAX_GROUPED_TEXTS = 15
TARGET_FORMS = "slack:URL, teams:URL, webhook:URL, pagerduty:ROUTING_KEY, mail:ADDRESS or command:PROGRAM"


class Alert(Record, frozen=True):
    """One alert, as sent in JSON."""

    type: AlertType
    text: str
    """Summary in one sentence."""
    at: int
    tool: str = ""
    kind: str = ""
    run: str = ""
    message: str = ""
    pattern: str = ""
    link: str = ""
    """Dashboard URL of the run, if a server is configured."""
    suppressed: int = 0
    """Earlier alerts that were not sent because of the hourly limit."""
    call: int = 0
    """Number of the failed call in its run."""
    failed_at: int = 0
    """When the failed attempt started."""
    tenant: str = ""
    agent: str = ""
    environment: str = ""
    version: str = ""
    occurrences: int = 0
    """How often the pattern occurred, since `first_seen_at`."""
    first_seen_at: int = 0
    owner: str = ""
    """Who works on the pattern."""
    action: str = ""
    """What mulligan did about the failed call."""
    pattern_link: str = ""
    """Dashboard URL of the pattern."""
    resolved: bool = False
    """Whether this message says that an earlier alert is over."""
    repeats: int = 0
    """Alerts about the same since the last one, which were not sent because of the interval."""
    grouped: tuple[str, ...] = ()
    """Texts of other alerts that were sent in the same message."""

    @property
    def key(self) -> str:
        """Identity of what the alert is about. Alerts with the same key repeat each other."""
        subjects = {
            "high_failure_rate": "", "circuit_open": self.tool, "server_unhealthy": "", "budget_exhausted": "",
            "regressed_pattern": self.pattern,
        }  # fmt: skip
        subject = subjects.get(self.type, f"{self.kind} {self.tool}")
        return hashlib.blake2b(f"{self.type} {subject}".encode(), digest_size=8).hexdigest()


# Text


_LOOKALIKES = str.maketrans({
    "<": "\u2039", ">": "\u203a", "|": "\u00a6", "@": "\uff20", "&": "\uff06", "[": "\uff3b", "]": "\uff3d",
    "`": "\u02cb", "*": "\u2217", "~": "\u223c", "\\": "\uff3c", "#": "\uff03", "!": "\uff01", "^": "\uff3e",
})  # fmt: skip
_NAME_DOT = re.compile(r"(?<=\w)\.(?=[^\W\d_])")
"""A dot before a letter, as in a host name. Programs turn many words with one into links."""
_ADDRESS_COLON = re.compile(r":(?=//|[\w+-]+:)|(?<=\w):(?=\S)", re.IGNORECASE)
"""A colon of an address (`https:`, `mailto:`) or around the name of an emoji."""
_EMPHASIS = re.compile(r"(?<![^\W_])_+|_+(?![^\W_])")
"""Underscores that do not connect two letters or digits."""


def neutralize_markup(text: str, limit: int = 300) -> str:
    """Return untrusted text in one line, without markup, mentions and links for chat programs and mail readers.

    Their characters are replaced by look-alikes: a person reads the same text.
    """
    line = " ".join(sanitize(text, limit).split()).translate(_LOOKALIKES)
    line = _ADDRESS_COLON.sub("\u2236", line).replace("//", "\u2215\u2215")
    line = _NAME_DOT.sub("\u2024", line)
    return _EMPHASIS.sub(lambda match: "\uff3f" * len(match[0]), line)


def describe_alert(alert: Alert) -> list[tuple[str, str]]:
    """Return the facts of an alert as labels with texts, without links."""
    origin = {
        "agent": alert.agent, "version": alert.version, "environment": alert.environment, "tenant": alert.tenant,
    }  # fmt: skip
    facts = {
        "Failure": f"{alert.kind} in {alert.tool}" if alert.kind and alert.kind not in alert.text else "",
        "Message": alert.message,
        "Where": ", ".join(f"{name} {value}" for name, value in origin.items() if value),
        "Occurred": _describe_occurrences(alert),
        "mulligan": alert.action,
        "Owner": alert.owner,
        "Repeated": f"{alert.repeats:,} more since the last message" if alert.repeats else "",
    }
    rows = [*facts.items(), *(("Also", text) for text in alert.grouped[:MAX_GROUPED_TEXTS])]
    if len(alert.grouped) > MAX_GROUPED_TEXTS:
        rows.append(("Also", f"{len(alert.grouped) - MAX_GROUPED_TEXTS} more"))
    return [(label, neutralize_markup(text)) for label, text in rows if text]


def _describe_occurrences(alert: Alert) -> str:
    if not alert.occurrences:
        return ""
    times = "once" if alert.occurrences == 1 else f"{alert.occurrences:,} times"
    since = time.strftime("%Y-%m-%d %H\u2236%M UTC", time.gmtime(alert.first_seen_at / 1000))
    return f"{times} since {since}" if alert.first_seen_at else times


def list_links(alert: Alert) -> list[tuple[str, str]]:
    links = (("pattern", alert.pattern_link), ("alerts page" if alert.type == "test" else "run", alert.link))
    return [(name, link) for name, link in links if link]


def render_title(alert: Alert) -> str:
    return f"mulligan: {'resolved: ' if alert.resolved else ''}{neutralize_markup(alert.text, 400)}"


def render_text(alert: Alert) -> str:
    """Return the alert as lines of text. They hold no markup, and no links but those to the dashboard."""
    lines = [render_title(alert), *(f"{label}: {text}" for label, text in describe_alert(alert))]
    lines += [f"Open the {name}: {link}" for name, link in list_links(alert)]
    return "\n".join(lines)


# Formats


def build_webhook_body(alert: Alert) -> dict[str, Any]:
    return {"text": render_text(alert), "alert": json.loads(encode(alert))}


def build_slack_body(alert: Alert) -> dict[str, Any]:
    """Return the body for Slack. A `plain_text` object shows no markup, `verbatim` turns no text into links."""
    facts = "\n".join([render_title(alert), *(f"{label}: {text}" for label, text in describe_alert(alert))])
    blocks: list[dict[str, Any]] = [
        {"type": "section", "text": {"type": "plain_text", "text": facts[:2900], "emoji": False}}
    ]
    links = " \u00b7 ".join(f"<{_escape_slack(link)}|Open the {name}>" for name, link in list_links(alert))
    if links:
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": links, "verbatim": True}})
    return {**build_webhook_body(alert), "blocks": blocks, "unfurl_links": False, "unfurl_media": False}


def _escape_slack(url: str) -> str:
    return url.replace("&", "&amp;")


def build_teams_body(alert: Alert) -> dict[str, Any]:
    """Return the body for Teams, an adaptive card. A `TextRun` shows no Markdown, unlike a `TextBlock`."""

    def run(text: str, **style: Any) -> dict[str, Any]:
        return {"type": "TextRun", "text": text, **style}

    rows = [[run(f"{label}: ", weight="Bolder"), run(text)] for label, text in describe_alert(alert)]
    inlines = [[run(render_title(alert), weight="Bolder", size="Medium")], *rows]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [{"type": "RichTextBlock", "inlines": row} for row in inlines],
        "actions": [
            {"type": "Action.OpenUrl", "title": f"Open the {name}", "url": link} for name, link in list_links(alert)
        ],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return {"type": "message", "attachments": [attachment]}


def build_pagerduty_body(alert: Alert, routing_key: str) -> dict[str, Any]:
    """Return an event of PagerDuty's Events API v2. Repeated alerts belong to one incident."""
    payload = {
        "summary": render_title(alert)[:1024],
        "source": neutralize_markup(alert.agent or alert.tool or "mulligan"),
        "severity": "warning" if alert.type == "new_pattern" else "error",
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(alert.at / 1000)),
        "component": neutralize_markup(alert.tool),
        "class": neutralize_markup(alert.kind),
        "custom_details": dict(describe_alert(alert)),
    }
    return {
        "routing_key": routing_key,
        "event_action": "resolve" if alert.resolved else "trigger",
        "dedup_key": f"mulligan {alert.tenant} {alert.key}",
        "client": "mulligan",
        "payload": payload,
        "links": [{"href": link, "text": f"Open the {name}"} for name, link in list_links(alert)],
    }


def build_mail(alert: Alert, sender: str, recipient: str) -> EmailMessage:
    """Return an e-mail of plain text. Its headers are one line each, whatever the alert says."""
    mail = EmailMessage()
    mail["Subject"] = render_title(alert)[:200]
    mail["From"], mail["To"] = sender, recipient
    mail["Message-ID"] = make_msgid(domain=sender.rpartition("@")[2])
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(f"{render_text(alert)}\n")
    return mail


# Targets


class AlertTarget(NamedTuple):
    """Where alerts go, and how they get there."""

    type: Literal["slack", "teams", "webhook", "pagerduty", "mail", "command"]
    address: str
    """URL, key, e-mail address or command. It may contain a secret."""
    smtp: str = ""
    """URL of the mail server."""

    @property
    def label(self) -> str:
        """Name without secrets."""
        if self.type in ("slack", "teams", "webhook"):
            return f"{self.type} at {urlsplit(self.address).hostname}"
        if self.type == "pagerduty":
            return "pagerduty"
        return f"{self.type} {next(iter(shlex.split(self.address)), '')}"

    @property
    def id(self) -> str:
        """Identity in stored deliveries, without secrets."""
        return hashlib.blake2b(f"{self.type}:{self.address}".encode(), digest_size=8).hexdigest()

    def deliver(self, alert: Alert) -> None:
        """Send an alert. Raise an error if the target does not accept it."""
        match self.type:
            case "command":
                run_command(shlex.split(self.address), alert)
            case "mail":
                _send_mail(self.smtp, self.address, alert)
            case "pagerduty":
                _post_json(PAGERDUTY_URL, build_pagerduty_body(alert, self.address))
            case "slack" | "teams" | "webhook":
                _post_json(self.address, _BODIES[self.type](alert))


_BODIES: dict[str, Callable[[Alert], dict[str, Any]]] = {
    "slack": build_slack_body, "teams": build_teams_body, "webhook": build_webhook_body,
}  # fmt: skip


def build_targets(
    command: str = "", webhook: str = "", others: tuple[str, ...] = (), smtp: str = ""
) -> list[AlertTarget]:
    """Return the targets of settings. Raise `SettingsError` for an invalid one."""
    targets = [parse_target(f"command:{command}", smtp)] if command else []
    targets += [parse_target(f"webhook:{webhook}", smtp)] if webhook else []
    return [*targets, *(parse_target(text, smtp) for text in others)]


def parse_target(text: str, smtp: str = "") -> AlertTarget:
    """Parse a target such as `slack:https://hooks.slack.com/services/...` or `mail:oncall@example.com`."""
    name, _, address = text.strip().partition(":")
    if name in ("http", "https"):
        name, address = "webhook", text.strip()
    match name:
        case "command":
            try:
                is_valid = bool(shlex.split(address))
            except ValueError as error:
                raise SettingsError(f"Invalid alert command {address!r}: {error}. Quote it as for a shell.") from None
            if is_valid:
                return AlertTarget("command", address)
        case "webhook" | "slack" | "teams":
            host = _find_host(address)
            if not host:
                raise SettingsError(f"Invalid alert webhook {address!r}. Use an http or https URL.")
            if name == "webhook":
                is_teams = host.endswith(TEAMS_HOSTS)
                return AlertTarget("slack" if host == SLACK_HOST else "teams" if is_teams else "webhook", address)
            return AlertTarget("slack" if name == "slack" else "teams", address)
        case "pagerduty":
            if re.fullmatch(r"[A-Za-z0-9]{20,64}", address):
                return AlertTarget("pagerduty", address)
        case "mail":
            if re.fullmatch(r"[\w.+-]{1,64}@[A-Za-z0-9.-]{1,200}", address, re.ASCII):
                _parse_smtp(smtp)
                return AlertTarget("mail", address, smtp)
    raise SettingsError(f"Invalid alert target {name!r}. Use {TARGET_FORMS}.")


def check_public_target(target: AlertTarget) -> None:
    """Raise `SettingsError` unless a target may be set by users who do not operate the server.

    It cannot make the server run a program, nor send a request to an address of its own network.
    """
    is_public = target.type in ("pagerduty", "mail")
    if target.type in ("slack", "teams"):
        host = _find_host(target.address)
        has_public_host = host == SLACK_HOST if target.type == "slack" else host.endswith(TEAMS_HOSTS)
        is_public = has_public_host and target.address.startswith("https://")
    if not is_public:
        raise SettingsError(
            f"Only the operator of the server can add {target.label}: mulligan alerts set --target ... "
            "Use an https address of Slack or Teams, pagerduty or mail."
        )


def _find_host(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    is_url = parts.scheme in ("http", "https") and not re.search(r"[\s<>|\"]", url)
    return (parts.hostname or "").lower() if is_url else ""


class _MailServer(NamedTuple):
    host: str
    port: int
    is_encrypted: bool
    user: str
    password: str
    sender: str


def _parse_smtp(url: str) -> _MailServer:
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        port, host = None, None
    sender = parse_qs(parts.query).get("from", [""])[0] if host else ""
    if not host or parts.scheme not in ("smtp", "smtps") or not re.fullmatch(r"[^\s@<>,]+@[^\s@<>,]+", sender):
        raise SettingsError(
            "E-mail needs a mail server: set smtp of [alerts] to smtp://USER:PASSWORD@HOST:587/?from=ADDRESS or smtps://..."
        )
    is_encrypted = parts.scheme == "smtps"
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return _MailServer(host, port or (465 if is_encrypted else 587), is_encrypted, user, password, sender)


def run_command(command: list[str], alert: Alert) -> None:
    # No shell, and no alert text on the command line: it contains untrusted text.
    subprocess.run(
        command, input=encode(alert) + b"\n", timeout=DELIVERY_TIMEOUT_SECONDS, check=True, stdout=subprocess.DEVNULL
    )


def _post_json(url: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with _opener.open(request, timeout=DELIVERY_TIMEOUT_SECONDS) as answer:
        answer.read(1024)


def _send_mail(smtp: str, recipient: str, alert: Alert) -> None:
    server = _parse_smtp(smtp)
    context = ssl.create_default_context()
    connection: smtplib.SMTP = (
        smtplib.SMTP_SSL(server.host, server.port, timeout=DELIVERY_TIMEOUT_SECONDS, context=context)
        if server.is_encrypted
        else smtplib.SMTP(server.host, server.port, timeout=DELIVERY_TIMEOUT_SECONDS)
    )
    with connection:
        connection.ehlo()
        if not server.is_encrypted and connection.has_extn("starttls"):
            connection.starttls(context=context)
            connection.ehlo()
        elif not server.is_encrypted and server.user:
            raise SettingsError(f"The mail server {server.host} offers no TLS, so the password is not sent. Use smtps.")
        if server.user:
            connection.login(server.user, server.password)
        connection.send_message(build_mail(alert, server.sender, recipient))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None  # a redirect would send failure data to a host that is not configured


_opener = urllib.request.build_opener(_NoRedirects)
