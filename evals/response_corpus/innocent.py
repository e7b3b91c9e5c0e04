"""Successes that mention errors: data about failures, documents, logs, listings, statistics, tables of codes.

Each template is a case. Its rows differ by values from a seeded generator, so they are the same at every run.
"""

# ruff: noqa: E501 - tables with one case per line
from __future__ import annotations

import csv
import errno
import http
import io
import json
import random
import re
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from response_corpus.rows import MAX_TEXT_CHARS, Row

ROOT = Path(__file__).resolve().parents[2]
ROWS_PER_TEMPLATE = 12
CITIES = "Oslo Turin Graz Lyon Porto Riga Bern Gent Brno Cork".split()
NAMES = "Ada Ben Cleo Dan Eva Finn Gil Hana Ivo Jana".split()
SERVICES = "billing search mail checkout images login reports stock maps queue".split()
FAULTS = (
    "disk full", "card expired", "connection refused", "timeout after 30 s", "invalid postal code", "file not found",
    "permission denied", "out of memory", "unexpected end of input", "certificate expired",
)  # fmt: skip


class Draw:
    """Values for one row."""

    def __init__(self, template: str, number: int) -> None:
        self.random = random.Random(f"{template}:{number}")
        self.number = number
        self.id = self.random.randint(100, 9999)
        self.city, self.name = self.random.choice(CITIES), self.random.choice(NAMES)
        self.service, self.fault = self.random.choice(SERVICES), self.random.choice(FAULTS)
        self.count = self.random.randint(0, 40)
        self.status = self.random.choice([200, 201, 204, 301, 400, 401, 403, 404, 409, 422, 429, 500, 502, 503])
        self.time = f"2026-11-{self.random.randint(1, 28):02}T{self.random.randint(0, 23):02}:15:00Z"
        self.has_passed = self.random.random() < 0.5


TEMPLATES: dict[str, Callable[[Draw], Any]] = {
    # Things that were asked about
    "job": lambda d: {"id": d.id, "status": "failed", "created_at": d.time, "error": d.fault},
    "job with message": lambda d: {"job_id": d.id, "state": "FAILED", "message": d.fault, "finished_at": d.time},
    "job short": lambda d: {"job": d.id, "status": "failed"},
    "job with status error": lambda d: {"id": d.id, "status": "error", "name": d.service, "started_at": d.time},
    "job failed with reason": lambda d: {"id": d.id, "status": "failed", "reason": d.fault, "retries": d.count % 4},
    "pipeline": lambda d: {"pipeline": d.id, "conclusion": "failure", "url": f"https://ci.example/{d.id}", "sha": "4f2a"},
    "build step": lambda d: {"name": "lint", "conclusion": "failure", "status": "completed", "number": d.count},
    "order": lambda d: {"order": d.id, "status": "failed", "amount": d.count, "currency": "EUR"},
    "payment": lambda d: {"id": f"pay_{d.id}", "status": "failed", "failure_code": "card_declined", "amount": d.count},
    "payment intent": lambda d: {"id": f"pi_{d.id}", "status": "requires_payment_method",
                                 "last_payment_error": {"code": "card_declined", "message": d.fault}},
    "delivery": lambda d: {"tracking": d.id, "status": "exception", "city": d.city, "note": d.fault},
    "webhook delivery": lambda d: {"id": d.id, "event": "order.paid", "status_code": d.status, "duration_ms": d.count},
    "webhook with message": lambda d: {"id": d.id, "status": "Invalid HTTP Response: 502", "status_code": 502,
                                       "delivered_at": d.time},
    "link check": lambda d: {"url": f"https://shop.example/{d.id}", "status": d.status},
    "link check with text": lambda d: {"url": f"https://shop.example/{d.id}", "status": d.status, "checked": d.time},
    "monitor": lambda d: {"monitor": d.service, "status": "down", "last_error": d.fault, "since": d.time},
    "email": lambda d: {"id": d.id, "subject": f"Error: {d.fault}", "from": f"{d.name}@shop.example".lower(), "unread": True},
    "ticket": lambda d: {"key": f"SHOP-{d.id}", "title": f"Error: {d.fault} in {d.service}", "status": "open"},
    "ticket with description": lambda d: {"id": d.id, "type": "bug", "description": f"Failed to open {d.service}: {d.fault}"},
    "incident": lambda d: {"id": d.id, "severity": 2, "message": f"{d.service}: {d.fault}", "status": "resolved"},
    "event": lambda d: {"event_id": f"{d.id:08x}", "level": "error", "message": d.fault, "count": d.count},
    "sensor": lambda d: {"sensor": d.id, "error": d.has_passed, "value": d.count / 2},
    "sensor code": lambda d: {"sensor": d.id, "code": d.count, "error": 0.02, "unit": "C"},
    "measurement": lambda d: {"mean": d.count, "error": round(d.random.random(), 3), "samples": d.id},
    "model fit": lambda d: {"coefficients": [1.5, d.count], "error": round(d.random.random(), 4), "iterations": d.id},
    "quiz": lambda d: {"question": d.id, "success": d.has_passed, "answer": d.city},
    "login attempt": lambda d: {"user": d.name, "success": False, "at": d.time, "address": "192.0.2.7"},
    "experiment": lambda d: {"variant": "B", "success": False, "p_value": 0.4, "visitors": d.id},
    "feature flag": lambda d: {"flag": f"new_{d.service}", "ok": False, "rollout": d.count},
    "dns": lambda d: {"Status": 0, "TC": False, "Answer": [{"name": "shop.example", "data": "192.0.2.7"}]},
    "dns missing": lambda d: {"name": f"{d.service}.example", "rcode": "NXDOMAIN", "answers": []},
    "weather": lambda d: {"city": d.city, "code": d.random.choice([0, 3, 61, 500, 501, 502, 800]), "temperature": d.count},
    "weather with text": lambda d: {"city": d.city, "cod": 200, "weather": [{"id": 502, "main": "Rain"}], "message": 0},
    "weather detail": lambda d: {"code": 500, "description": "light rain", "temperature": d.count},
    "flight": lambda d: {"flight": f"XY{d.id}", "status": "cancelled", "reason": "strike", "from": d.city},
    "member": lambda d: {"name": d.name, "role": "error analyst", "city": d.city, "active": d.has_passed},
    "book": lambda d: {"title": "A Comedy of Errors", "year": 1594, "copies": d.count},
    "document": lambda d: {"title": f"Error {d.status}", "content": f"When {d.service} answers {d.status}, wait.", "page": d.count},
    "document, message": lambda d: {"path": "errors.md", "message": f"Failed to connect: {d.fault}", "lines": d.count},
    "chat message": lambda d: {"user": d.name, "text": f"Error: {d.fault}. Can somebody look?", "ts": d.time},
    "chat message key": lambda d: {"id": d.id, "author": d.name, "message": f"Failed again: {d.fault}"},
    "commit": lambda d: {"sha": f"{d.id:x}", "message": f"Fix error: {d.fault}", "author": d.name},
    "commit failing": lambda d: {"sha": f"{d.id:x}", "message": f"Failed to close the {d.service}: fix", "author": d.name},
    "setting": lambda d: {"retries": d.count, "on_error": "continue", "errors": "ignore", "timeout": 30},
    "setting codes": lambda d: {"retry_statuses": [429, 500, 503], "status": "active", "error_page": "/500.html"},
    "policy": lambda d: {"success": "2xx", "error": "5xx", "window": d.count},
    "budget": lambda d: {"service": d.service, "objective": 99.9, "error_budget": 0.4, "errors": d.count},
    "counts": lambda d: {"total": d.id, "success": d.id - d.count, "error": d.count},
    "counts failed": lambda d: {"passed": d.id, "failed": d.count, "errors": d.count % 3},
    "counts by status": lambda d: {"200": d.id, "404": d.count, "500": d.count % 5},
    "count list": lambda d: {"errors": d.count, "warnings": 2, "files": d.id},
    "lint": lambda d: {"errors": [{"line": d.count, "message": d.fault, "rule": "E501"}], "warnings": [], "file": "a.py"},
    "lint clean": lambda d: {"errors": [], "warnings": [], "files": d.count},
    "validation": lambda d: {"valid": False, "errors": [{"field": "postcode", "message": "wrong format"}]},
    "validation texts": lambda d: {"valid": False, "errors": [f"line {d.count}: {d.fault}"], "document": d.id},
    "validation ok": lambda d: {"valid": True, "errors": [], "checked": d.count},
    "tests": lambda d: {"suite": d.service, "tests": [{"name": "test_error", "success": False}], "failed": 1},
    "tests listed": lambda d: {"tests": [f"test_{d.service}_error", "test_failure"], "count": 2},
    "list of trials": lambda d: {"trials": [{"number": 1, "success": False}, {"number": 2, "success": True}]},
    "batch": lambda d: {"results": [{"id": d.id, "status": 201}, {"id": d.id + 1, "status": 404, "error": "not_found"}]},
    "batch with errors": lambda d: {"took": d.count, "errors": True, "items": [{"index": {"_id": str(d.id), "status": 409}}]},
    "batch with failures": lambda d: {"Successful": [{"Id": str(d.id)}], "Failed": [{"Id": "2", "Code": "Internal"}]},
    "partial": lambda d: {"data": {"order": d.id}, "errors": [{"message": d.fault}]},
    "partial import": lambda d: {"imported": d.id, "skipped": d.count, "errors": [f"row {d.count}: {d.fault}"]},
    "bulk message": lambda d: {"sent": d.id, "failed": d.count, "message": f"{d.count} mails failed"},
    "null error": lambda d: {"error": None, "items": [d.id]},
    "null error only": lambda d: {"error": None, "request": d.id},
    "false error": lambda d: {"error": False, "message": "Saved.", "id": d.id},
    "empty error": lambda d: {"error": "", "result": d.count},
    "empty error object": lambda d: {"error": {}, "data": [d.id]},
    "zero error": lambda d: {"error": 0, "errmsg": "", "data": d.id},
    "errcode zero": lambda d: {"errcode": 0, "errmsg": "ok", "openid": d.id},
    "code zero": lambda d: {"code": 0, "msg": "success", "data": {"id": d.id}},
    "code 200": lambda d: {"code": 200, "message": "OK", "data": [d.id]},
    "status 200": lambda d: {"status": 200, "data": d.count}, "status 201": lambda d: {"status": 201, "id": d.id},
    "statusCode 200": lambda d: {"statusCode": 200, "body": json.dumps({"error": d.fault, "id": d.id})},
    "statusCode 302": lambda d: {"statusCode": 302, "headers": {"location": f"/{d.id}"}, "body": ""},
    "success true": lambda d: {"success": True, "message": f"Deleted {d.count} errors"},
    "ok true": lambda d: {"ok": True, "channel": d.id, "warning": "missing_charset"},
    "status ok": lambda d: {"status": "ok", "errors": [], "count": d.id},
    "status success": lambda d: {"status": "success", "data": {"error_rate": 0.1, "id": d.id}},
    "message": lambda d: {"message": f"{d.count} orders were sent to {d.city}."},
    "message about errors": lambda d: {"message": f"Cleared {d.count} failed jobs."},
    "message resolved": lambda d: {"message": f"The error '{d.fault}' was resolved by {d.name}."},
    "detail": lambda d: {"detail": f"Mail sent to {d.name}."}, "detail text": lambda d: {"detail": f"{d.city}: {d.count} rooms, no lift"},
    "detail logged out": lambda d: {"detail": "Successfully logged out.", "user": d.id},
    "reason": lambda d: {"decision": "deny", "reason": d.fault, "score": d.count},
    "access check": lambda d: {"allowed": False, "reason": f"{d.name} may not delete", "user": d.name},
    "availability": lambda d: {"available": False, "message": f"No rooms in {d.city}", "dates": [d.time]},
    "coupon": lambda d: {"valid": False, "reason": "expired", "code": f"SAVE{d.count}"},
    "health": lambda d: {"status": "unhealthy", "checks": {d.service: {"status": "error", "message": d.fault}}},
    "health flat": lambda d: {"database": "ok", d.service: f"error: {d.fault}", "uptime": d.id},
    "health short": lambda d: {"status": "down", "service": d.service},
    "uptime": lambda d: {"service": d.service, "up": False, "statusCode": d.status, "latency": d.count},
    "api description": lambda d: {"responses": {"404": {"description": "not found"}, "200": {"description": "ok"}}, "id": d.id},
    "schema": lambda d: {"type": "object", "properties": {"error": {"type": "string"}, "id": {"const": d.id}}, "title": "Error"},
    "status table": lambda d: {"code": d.status, "phrase": http.HTTPStatus(d.status).phrase},
    "status lookup": lambda d: {"status": d.status, "meaning": http.HTTPStatus(d.status).phrase, "class": f"{d.status // 100}xx"},
    "translations": lambda d: {"error": "Fehler", "success": "Erfolg", "message": "Nachricht", "id": d.id},
    "words": lambda d: {"word": "error", "forms": ["errors"], "count": d.id},
    "status history": lambda d: {"issue": d.id, "history": [{"from": "open", "to": "failed"}]},
    "search hits": lambda d: {"query": d.fault, "results": [{"title": f"Error: {d.fault}", "score": 0.9}], "total": d.count},
    "search nothing": lambda d: {"query": d.fault, "results": [], "message": "No results", "total": 0},
    "not there": lambda d: {"exists": False, "path": f"/srv/{d.service}", "checked": d.time},
    "found false": lambda d: {"_index": "orders", "_id": str(d.id), "found": False},
    "retry report": lambda d: {"attempts": 3, "last_error": d.fault, "succeeded": True, "id": d.id},
    "classification": lambda d: {"label": "error", "score": 0.93, "text": d.fault},
    "kind": lambda d: {"kind": "tool/timeout", "message": d.fault, "remedy": "retry", "confidence": 0.8},
    "exception group": lambda d: {"exception": d.fault.title(), "occurrences": d.count, "first_seen": d.time},
    "run": lambda d: {"run_id": f"run_{d.id:04x}", "status": "failure", "steps": d.count, "agent": d.service},
    "execution": lambda d: {"executionArn": f"arn:x:{d.id}", "status": "FAILED", "error": "Timeout", "cause": d.fault, "startDate": d.time},
    "container": lambda d: {"container": d.service, "state": "exited", "exit_code": d.count % 3 + 1, "finished": d.time},
    "process table": lambda d: {"pid": d.id, "command": d.service, "exit_status": 1, "ended": d.time},
    # Texts
    "text counts": lambda d: f"{d.count} errors, {d.count % 7} warnings in {d.service}",
    "text no errors": lambda d: f"No errors found in {d.count} files.",
    "text errors none": lambda d: f"Errors: 0\nWarnings: {d.count}\nFiles: {d.id}",
    "text error rate": lambda d: f"Error rate of {d.service}: {d.count / 10} %",
    "text error count": lambda d: f"Error count: {d.count}",
    "text error budget": lambda d: f"Error budget left for {d.service}: {d.count} minutes",
    "text failed jobs": lambda d: f"Failed jobs: {d.count}\nRunning jobs: {d.id}",
    "text failed logins": lambda d: f"Failed logins of {d.name}: {d.count}",
    "text failure rate": lambda d: f"Failure rate by city\n{d.city}: {d.count}\n",
    "text article": lambda d: f"# Error handling\n\nAn error such as '{d.fault}' is a value. Return it to the caller of {d.service}.",
    "text article opening": lambda d: f"Error handling in {d.service}: a short guide\n\nEvery call may fail. Decide first who acts.",
    "text article messages": lambda d: f"Error messages: what they should say\n\nName the value ({d.count}) and the limit.",
    "text article failed": lambda d: f"Failed to connect? Five things to check\n\n1. The name of the host\n2. Port {d.id}\n",
    "text article cannot": lambda d: f"Cannot decide between {d.city} and Rome? Both have good trains.\n\nThe first one is smaller.",
    "text article unable": lambda d: f"Unable to sleep, {d.name} walked through {d.city} and counted {d.count} lamps.",
    "text article exceptions": lambda d: f"Exceptions in {d.city}: a travel story\n\nThe rule is simple, the exceptions are {d.count}.",
    "text faq": lambda d: f"Q: What does '{d.fault}' mean?\nA: The {d.service} service could not finish. Try again later.",
    "text known problems": lambda d: f"Known problems\n- Error: {d.fault} (fixed in {d.count}.1)\n- Failed to save: open",
    "text release notes": lambda d: f"Version {d.count}.2\n\nFixed: '{d.fault}' after a restart of {d.service}.",
    "text log": lambda d: f"{d.time} INFO {d.service} started\n{d.time} ERROR {d.fault}\n{d.time} INFO recovered",
    "text log error first": lambda d: f"{d.time} ERROR {d.service}: {d.fault}\n{d.time} INFO retry {d.count}",
    "text log level first": lambda d: f"ERROR {d.time} {d.service}: {d.fault}\nINFO {d.time} {d.service}: retry",
    "text log colon": lambda d: f"ERROR: {d.service}: {d.fault}\nINFO: retry {d.count}\nINFO: done",
    "text log python": lambda d: f"ERROR:{d.service}:{d.fault}\nINFO:{d.service}:retry {d.count}",
    "text log bracket": lambda d: f"[{d.time}] [error] {d.fault}\n[{d.time}] [info] retry of {d.service}",
    "text log brackets first": lambda d: f"[ERROR] {d.fault}\n[INFO] retry {d.count}\n[INFO] {d.service} is up",
    "text grep": lambda d: f"src/{d.service}.py:{d.id}:    raise ValueError('Error: {d.fault}')",
    "text grep number": lambda d: f"{d.id}:Error: {d.fault}\n{d.id + 4}:Failed to open {d.service}",
    "text transcript": lambda d: f"{d.name}: Failed to connect again.\nEva: Which host?\n{d.name}: {d.service}.",
    "text transcript time": lambda d: f"[00:0{d.count % 10}] Failed to connect, said the radio.\n[00:12] {d.name} laughed.",
    "text mail": lambda d: f"From: {d.name}\nSubject: Error: {d.fault}\n\nHi, {d.service} shows this since {d.time}.",
    "text test run": lambda d: f"test_error_page PASSED\ntest_{d.service} PASSED\n{d.count} passed",
    "text test names": lambda d: f"tests/test_errors.py::test_{d.service}_failed\ntests/test_errors.py::test_404\n",
    "text status table": lambda d: f"| status | count |\n| --- | --- |\n| 404 | {d.count} |\n| 500 | {d.id} |",
    "text status line": lambda d: f"{d.status} {http.HTTPStatus(d.status).phrase}: {d.count} responses",
    "text csv": lambda d: f"id,status,error\n{d.id},failed,{d.fault}\n{d.id + 1},done,\n",
    "text code": lambda d: f"def fail():\n    raise RuntimeError('{d.fault}')  # {d.count}\n",
    "text code throw": lambda d: f"throw new Error(`{d.fault} {d.id}`);",
    "text code error": lambda d: f"error = {d.count}\nif error:\n    print('Error:', error)\n",
    "text diff": lambda d: f"--- a/{d.service}.py\n+++ b/{d.service}.py\n@@ -1 +1 @@\n-raise ValueError\n+return {d.count}",
    "text yaml": lambda d: f"error:\n  retries: {d.count}\n  page: /500.html\n",
    "text yaml status": lambda d: f"status: failed\njob: {d.id}\nreason: {d.fault}\n",
    "text ini": lambda d: f"[errors]\nlog = /var/log/{d.service}.log\nlevel = {d.count}\n",
    "text json list": lambda d: json.dumps([{"id": d.id, "error": d.fault}, {"id": d.id + 1, "success": False}]),
    "text json job": lambda d: json.dumps({"id": d.id, "status": "failed", "updated_at": d.time, "error": d.fault}),
    "text json counts": lambda d: json.dumps({"errors": d.count, "ok": True}),
    "text json null": lambda d: json.dumps({"error": None, "value": d.id}, indent=2),
    "text json lines": lambda d: json.dumps({"level": "error", "message": d.fault, "time": d.time}) + "\n" + json.dumps({"level": "info"}),
    "text xml": lambda d: f"<errors><error id='{d.id}'>{d.fault}</error></errors>",
    "text html": lambda d: f"<html><head><title>404 Not Found: how to write a good page - {d.name}</title></head><body>{d.count}</body></html>",
    "text html shop": lambda d: f"<!doctype html><title>{d.city} shop</title><h1>Error cards, {d.count} EUR</h1>",
    "text sentence": lambda d: f"The last deployment of {d.service} failed: {d.fault}. The one before succeeded.",
    "text sentence job": lambda d: f"Job {d.id} failed with: {d.fault}",
    "text sentence status": lambda d: f"Status of order {d.id}: failed",
    "text root cause": lambda d: f"Root cause: {d.fault}. The error appeared {d.count} times on {d.time}.",
    "text summary": lambda d: f"Summary: {d.name} reported an error in {d.service} ({d.fault}) and fixed it.",
    "text explanation": lambda d: f"This error means that the {d.service} service has {d.fault}.",
    "text removed": lambda d: f"Removed {d.count} failed jobs and {d.count % 5} error logs.",
    "text created": lambda d: f"Created ticket SHOP-{d.id}: Error: {d.fault}",
    "text stored": lambda d: f"Stored /srv/errors/{d.id}.txt ({d.count} bytes)",
    "text nothing": lambda d: f"No results for '{d.fault}' in {d.city}",
    "text unknown": lambda d: f"Unknown artist, {d.city}, oil on canvas, {d.id}",
    "text invalid": lambda d: f"Invalid ballots in {d.city}: {d.count} of {d.id}",
    "text command": lambda d: f"Command line tools of {d.service}\n\nmake, git, tar ({d.count})",
    "text request": lambda d: f"Request log of {d.service}: {d.count} requests, {d.count % 4} failed",
    "text tool": lambda d: f"Tool catalog: {d.count} tools, none failed this week",
    "text timeout": lambda d: f"Timeout settings: connect {d.count} s, read {d.id} s",
    "text access": lambda d: f"Access denied events in {d.city}: {d.count}",
    "text permission": lambda d: f"Permission matrix\n{d.name}: read, write\nGuest: denied ({d.count})",
    "text database": lambda d: f"Database error log entries: {d.count}",
    "text error code": lambda d: f"Error code E{d.id} means: {d.fault}. Ask the {d.service} team.",
    "text exit": lambda d: f"Exit code 0 means success, 1 means failure, {d.count + 2} is not used",
    "text exit signs": lambda d: f"Exit {d.count}: {d.city}. Exit {d.count + 1}: airport",
    "text poem": lambda d: f"To fail is to learn, said {d.name} of {d.city},\nand wrote the error down, {d.count} times.",
    "text correct": lambda d: f"An error in chapter {d.count} was corrected by {d.name}.",
    "text a error": lambda d: f"A small error bar, {d.count} percent, is drawn for {d.city}.",
    "text an exception": lambda d: f"An exception to the rule: shops in {d.city} open at {d.count % 24}:00.",
}  # fmt: skip


def fill_templates() -> Iterator[Row]:
    for name, template in TEMPLATES.items():
        for number in range(ROWS_PER_TEMPLATE):
            draw = Draw(name, number)
            value = template(draw)
            yield Row("template", name, False, value)
            if isinstance(value, dict) and number == 0:
                yield Row("template", name, False, json.dumps(value))


def read_repository(count: int = 450) -> Iterator[Row]:
    """Yield parts of this repository's own files, as a file tool returns them: raw, or with line numbers."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    paths = [
        path for path in listed if path.endswith((".py", ".md", ".toml", ".yml", ".html")) and "evals/" not in path
    ]
    pick = random.Random("repository")
    for path in sorted(pick.sample(paths, min(count, len(paths)))):
        lines = (ROOT / path).read_text(encoding="utf-8", errors="replace").splitlines()
        if not lines:
            continue
        likely = [number for number, line in enumerate(lines) if re.search(r"\b(error|fail|exception)", line, re.I)]
        start = pick.choice(likely) if likely and pick.random() < 0.5 else pick.randrange(len(lines))
        part = lines[start : start + 12]
        yield Row("file", path, False, "\n".join(part)[:MAX_TEXT_CHARS])
        if pick.random() < 0.3:
            numbered = "\n".join(f"{number:5}\t{line}" for number, line in enumerate(part, start + 1))
            yield Row("file", path, False, numbered)
        if pick.random() < 0.2:
            yield Row("file", path, False, {"path": path, "content": "\n".join(part), "lines": len(lines)})
    for word in ("error", "failed", "Failed to", "exception", "not found", "timeout", "refused", "denied", "invalid"):
        found = subprocess.run(
            ["git", "grep", "-n", "-m", "3", word, "--", "docs", "src"], cwd=ROOT, capture_output=True, text=True
        ).stdout
        for number, line in enumerate(found.splitlines()[:12]):
            yield Row("search of files", f"{word} {number}", False, line.partition(":")[2].partition(":")[2].strip())


def query_databases() -> Iterator[Row]:
    database = sqlite3.connect(":memory:")
    database.row_factory = sqlite3.Row
    database.execute("create table jobs (id integer, status text, error text, code integer, message text)")
    pick = random.Random("jobs")
    for number in range(60):
        status = pick.choice(["done", "failed", "error", "running"])
        fault = pick.choice(FAULTS)
        database.execute(
            "insert into jobs values (?, ?, ?, ?, ?)",
            (number, status, fault if status in ("failed", "error") else None, pick.choice([0, 1, 404, 500]), fault),
        )
    for number, row in enumerate(database.execute("select * from jobs")):
        yield Row("database", f"row {number % 10}", False, dict(row))
    statements = {
        "counts": "select status, count(*) as count from jobs group by status",
        "failed": "select id, error from jobs where status = 'failed'",
        "codes": "select code, count(*) from jobs group by code",
        "messages": "select message from jobs limit 5",
        "one error": "select error from jobs where error is not null limit 1",
    }
    for name, statement in statements.items():
        rows = [dict(row) for row in database.execute(statement)]
        yield Row("database", name, False, {"columns": list(rows[0]), "rows": [list(row.values()) for row in rows]})
        yield Row("database", name, False, {"row_count": len(rows), "rows": rows, "error": None})
        yield Row("database", name, False, json.dumps(rows))
        text = io.StringIO()
        csv.writer(text).writerows([list(rows[0]), *(row.values() for row in rows)])
        yield Row("database", name, False, text.getvalue())


def list_codes() -> Iterator[Row]:
    """Yield rows of tables of codes, as a lookup tool returns them."""
    for status in http.HTTPStatus:
        yield Row("codes", f"http {status // 100}", False, {"value": int(status), "phrase": status.phrase})
        yield Row("codes", f"http text {status // 100}", False, f"{status.value} {status.phrase} is an HTTP status")
    for number, name in sorted(errno.errorcode.items())[:60]:
        yield Row("codes", f"errno {number % 6}", False, {"errno": number, "name": name})
    for name in list(signal.Signals)[:20]:
        yield Row("codes", "signal", False, {"signal": name.name, "number": int(name)})


PRODUCERS = (fill_templates, read_repository, query_databases, list_codes)
