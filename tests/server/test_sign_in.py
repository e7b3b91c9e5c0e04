"""People sign in with a token, once: a cookie stands for it from then on, in every process of the store."""

from __future__ import annotations

import html
import re
from urllib.parse import urlencode

import pytest

pytest.importorskip("jinja2", reason="needs the extra: pip install 'mulligan[server]'")

from servers import Client, Running, served

from mulligan.core.failure import StoreError
from mulligan.dashboard.pages import build_routes as pages
from mulligan.server import tenants as signing_in
from mulligan.server.access import AccessRules
from mulligan.server.bodies import ApiError
from mulligan.server.limits import MAX_ADDRESS_FAILURES, SignInLimiter
from mulligan.server.tenants import COOKIE_HOURS, SignInSessions, Token, Tokens
from mulligan.store.sqlite import MemoryStore

BEYOND = AccessRules(is_local=False, hosts=frozenset({"localhost"}))
RUN = {"id": "r", "agent": "their-agent", "end_reason": "finished", "steps": [{"name": "s"}]}


@pytest.fixture
def running(tmp_path):
    with served(tmp_path, BEYOND, groups=[pages]) as found:
        yield found


def signing(running: Running, secret: str, path: str = "/sign-in", **headers: str):
    own = {"Origin": f"http://127.0.0.1:{running.port}", "Content_Type": "application/x-www-form-urlencoded"}
    return Client(running.port).post(path, body=urlencode({"token": secret}).encode(), **(own | headers))


def signed_in(running: Running, secret: str) -> Client:
    came = signing(running, secret)
    assert came.status == 303, came.body
    return Client(running.port, cookie=came.headers["set-cookie"].partition(";")[0])


def test_a_person_of_a_tenant_signs_in_without_a_script_and_sees_what_is_theirs(running):
    running.holding("ingest", tenant="acme").post("/v1/runs", RUN)
    reader = running.holding("read", tenant="acme", name="ann").token

    refused = Client(running.port).get("/", Accept="text/html")
    assert refused.status == 401
    page = Client(running.port).get("/sign-in")
    assert page.status == 200
    for body in (refused.body, page.body):
        assert b"<script" not in body
        assert b'<form method="post" action="/sign-in">' in body
        assert b"dashboard.css" in body

    came = signing(running, reader)
    assert came.headers["location"] == "/"
    cookie = came.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert reader not in came.headers["set-cookie"]
    person = signed_in(running, reader)
    assert b"their-agent" in person.get("/runs").body
    assert b"ann, tenant acme" in person.get("/runs").body
    assert person.get("/v1/runs").json["runs"][0]["id"] == "r"
    assert person.post("/patterns/x", body=b"action=mute").status == 403  # to look is not to decide


def test_whoever_signs_in_is_led_to_the_page_they_wanted(running):
    reader = running.holding("read", tenant="acme").token
    refused = Client(running.port).get("/runs?status=failure&tool=a%26b", Accept="text/html").body.decode()
    (action,) = re.findall(r'action="([^"]*)"', refused)
    action = html.unescape(action)
    assert signing(running, "wrong", action).status == 401
    assert signing(running, reader, action).headers["location"] == "/runs?status=failure&tool=a%26b"


@pytest.mark.parametrize(
    "place", ["https://evil.example.com", "//evil.example.com", "/\\evil.example.com", "javascript:x", "/a\r\nb", ""]
)
def test_nobody_is_led_to_another_site(running, place):
    reader = running.holding("read", tenant="acme").token
    assert signing(running, reader, f"/sign-in?{urlencode({'next': place})}").headers["location"] == "/"


def test_a_link_on_another_site_opens_the_page_for_whoever_is_signed_in(running):
    # The browser shows a strict cookie only to what a page of ours asks for, so ours asks once more.
    came = {"Accept": "text/html", "Sec_Fetch_Mode": "navigate"}
    asked = Client(running.port).get("/runs", **came, Sec_Fetch_Site="cross-site")
    assert asked.status == 401
    assert b'http-equiv="refresh"' in asked.body
    for site in ("same-origin", "none"):
        assert b'http-equiv="refresh"' not in Client(running.port).get("/runs", **came, Sec_Fetch_Site=site).body


def test_a_tenants_cookie_opens_nothing_of_another(running):
    running.holding("ingest", tenant="acme").post("/v1/runs", RUN)
    other = signed_in(running, running.holding("admin", tenant="other").token)
    assert other.get("/runs/r").status == 404
    assert b"their-agent" not in other.get("/runs").body


def test_the_cookie_dies_with_its_token(running):
    person = signed_in(running, running.holding("read", name="ann").token)
    assert person.get("/").status == 200
    running.server.tokens.revoke("ann", 5)
    running.server.refresh()
    assert person.get("/").status == 401


def test_a_cookie_that_we_did_not_sign_is_worth_nothing(running):
    person = signed_in(running, running.holding("read", tenant="acme").token)
    admin = running.holding("admin", tenant="other")
    name, _, value = person.cookie.partition("=")
    id, until, signed = value.split(".")
    other = next(each.id for each in running.server.tokens.load_all() if each.tenant == "other")
    forged = [f"{other}.{until}.{signed}", f"{id}.{int(until) + 1}.{signed}", f"{id}.{until}.", "", "..", "é.1.x",
              f"{id}.{until}.{'0' * 64}", f"{id}.{10**40}.{signed}"]  # fmt: skip
    for cookie in forged:
        assert Client(running.port, cookie=f"{name}={cookie}".encode().decode("latin-1")).get("/").status == 401, cookie
    assert admin.get("/").status == 200


def signing_in_alone() -> tuple[MemoryStore, Tokens, Token, SignInSessions]:
    """A store with one token, whom it lets in, with no server around it."""
    shelf = MemoryStore()
    tokens = Tokens(shelf)
    token, _ = tokens.create("read", 0)
    tokens.refresh()
    sessions = SignInSessions(shelf, tokens)
    sessions.load()
    return shelf, tokens, token, sessions


def test_a_secret_has_nothing_in_common_with_what_everybody_may_see_or_with_another():
    tokens = Tokens(MemoryStore())
    made = [tokens.create("read", 0) for _ in range(30)]
    secrets = [re.fullmatch(r"mul_read_([a-z2-7]{32})", secret)[1] for _, secret in made]
    assert len(set(secrets)) == len({token.id for token, _ in made}) == 30
    for places in (slice(0, 2), slice(16, 18)):
        assert len({secret[places] for secret in secrets}) > 20
    assert sum(secret[:2] == secret[16:18] for secret in secrets) < 5
    assert len({token.id[4:6] for token, _ in made}) > 20


def test_a_cookie_has_its_time():
    shelf, tokens, token, sessions = signing_in_alone()
    cookie = sessions.create_cookie(token, 1000)
    assert sessions.find_token(cookie, 1000 + COOKIE_HOURS * 3_600_000 - 1) == token
    assert sessions.find_token(cookie, 1000 + COOKIE_HOURS * 3_600_000) is None
    elsewhere = SignInSessions(shelf, tokens)  # another process of the same store
    elsewhere.load()
    assert (elsewhere.cookie_name, elsewhere.find_token(cookie, 2000)) == (sessions.cookie_name, token)
    another = SignInSessions(MemoryStore(), tokens)
    another.load()
    assert another.cookie_name != sessions.cookie_name
    assert another.find_token(cookie, 2000) is None


def test_a_token_that_only_sends_signs_nobody_in(running):
    assert signing(running, running.holding("ingest").token).status == 403
    assert signing(running, "mul_admin_none").status == 401
    assert signing(running, "").status == 401
    assert "set-cookie" not in signing(running, "x" * 70_000).headers


def test_a_page_of_another_site_signs_nobody_in_or_out(running):
    secret = running.holding("read").token
    for path in ("/sign-in", "/sign-out"):
        for origin in ("https://evil.example.com", "null"):
            told = signing(running, secret, path, Origin=origin)
            assert told.status == 403
            assert "set-cookie" not in told.headers
    bare = Client(running.port).post("/sign-in", body=b"token=x", Content_Type="application/x-www-form-urlencoded")
    assert bare.status == 403


def test_a_token_in_an_address_is_not_looked_at(running):
    secret = running.holding("read").token
    assert Client(running.port).get(f"/sign-in?token={secret}").status == 200
    assert "set-cookie" not in Client(running.port).get(f"/sign-in?token={secret}").headers
    told = signing(running, "", f"/sign-in?token={secret}")
    assert told.status == 401


def lock_out(running: Running, **headers: str) -> None:
    """Fail to sign in until the address has to wait."""
    running.server.sign_in_limiter = SignInLimiter(lambda: 0.0)
    answers = [signing(running, f"mul_read_{number}", **headers) for number in range(MAX_ADDRESS_FAILURES + 1)]
    assert [answer.status for answer in answers] == [401] * MAX_ADDRESS_FAILURES + [429]
    assert int(answers[-1].headers["retry-after"]) >= 1


def test_correct_token_signs_in_even_from_a_locked_address(running):
    lock_out(running)
    assert signing(running, running.holding("read").token).status == 303
    assert signing(running, "mul_read_wrong").status == 429


def test_behind_a_trusted_proxy_only_the_failing_address_is_locked(tmp_path):
    with served(tmp_path, BEYOND, groups=[pages], trusted_proxies=["127.0.0.1"]) as running:
        lock_out(running, X_Forwarded_For="203.0.113.7")
        assert signing(running, "mul_read_x", X_Forwarded_For="203.0.113.7").status == 429
        assert signing(running, "mul_read_x", X_Forwarded_For="203.0.113.8").status == 401
        # The proxy appends the address it sees: what the client itself claims stands before it and does not count.
        assert signing(running, "mul_read_x", X_Forwarded_For="203.0.113.9, 203.0.113.7").status == 429


def test_without_a_trusted_proxy_a_forwarded_address_does_not_count(running):
    lock_out(running, X_Forwarded_For="203.0.113.7")
    assert signing(running, "mul_read_x", X_Forwarded_For="203.0.113.8").status == 429


def test_failures_from_many_addresses_lock_out_no_other_address():
    limiter = SignInLimiter(lambda: 0.0)
    for number in range(500):
        for _ in range(MAX_ADDRESS_FAILURES):
            limiter.record_failure(f"10.0.{number // 250}.{number % 250}")
    limiter.record_failure("192.0.2.1")


def test_who_waited_may_try_again():
    now = [0.0]
    limiter = SignInLimiter(lambda: now[0])
    for _ in range(MAX_ADDRESS_FAILURES):
        limiter.record_failure("1.2.3.4")
    with pytest.raises(ApiError) as refused:
        limiter.record_failure("1.2.3.4")
    now[0] += int(refused.value.headers["Retry-After"])
    limiter.record_failure("1.2.3.4")


def test_signing_out_takes_the_cookie_away(running):
    came = signing(running, "", "/sign-out")
    assert came.status == 303
    assert "max-age=0" in came.headers["set-cookie"].lower()


def out(running: Running, person: Client):
    own = {"Origin": f"http://127.0.0.1:{running.port}", "Content_Type": "application/x-www-form-urlencoded"}
    return person.post("/sign-out", body=b"", **own)


def test_whoever_signs_out_is_out_wherever_a_copy_of_the_cookie_is(running):
    secret = running.holding("read", name="ann").token
    person = signed_in(running, secret)
    copy = Client(running.port, cookie=person.cookie)
    elsewhere = SignInSessions(running.store, running.server.tokens)  # another process of the same store
    elsewhere.load()
    value = person.cookie.partition("=")[2]
    assert elsewhere.find_token(value, running.server.clock()) is not None
    assert out(running, person).status == 303
    assert (person.get("/").status, copy.get("/").status, copy.get("/v1/runs").status) == (401, 401, 401)
    elsewhere.load()
    assert elsewhere.find_token(value, running.server.clock()) is None
    assert Client(running.port, token=secret).get("/v1/runs").status == 200  # the token is good, and signs in again
    assert signed_in(running, secret).get("/").status == 200


def test_who_signs_out_while_the_store_is_away_is_told_so(running, monkeypatch):
    def away(cookie: str, now: int) -> None:
        raise StoreError("the store is away")

    person = signed_in(running, running.holding("read").token)
    monkeypatch.setattr(running.server.sessions, "sign_out", away)
    came = out(running, person)
    assert came.status == 503
    assert "max-age=0" in came.headers["set-cookie"].lower()


def test_whoever_came_by_the_printed_address_signs_out_too(running):
    person = running.person()
    assert person.get("/").status == 200
    assert out(running, person).status == 303
    assert person.get("/").status == 401


def test_a_cookie_that_was_signed_out_with_is_remembered_no_longer_than_it_was_good():
    _, _, token, sessions = signing_in_alone()
    for number in range(3):
        sessions.sign_out(sessions.create_cookie(token, number), number)
    sessions.sign_out("made.1.up", 0)
    assert len(sessions.signed_out) == 3
    later = COOKIE_HOURS * 3_600_000 + 10
    sessions.sign_out(sessions.create_cookie(token, later), later)
    assert len(sessions.signed_out) == 1


def test_of_more_cookies_than_are_remembered_those_are_let_go_of_that_end_the_soonest(monkeypatch):
    monkeypatch.setattr(signing_in, "MAX_SIGNED_OUT_COOKIES", 2)
    _, _, token, sessions = signing_in_alone()
    cookies = [sessions.create_cookie(token, number) for number in range(3)]
    for cookie in cookies:
        sessions.sign_out(cookie, 5)
    assert [sessions.find_token(cookie, 5) is None for cookie in cookies] == [False, True, True]


def test_behind_tls_the_cookie_never_goes_without(running):
    secret = running.holding("read").token
    assert "secure" not in signing(running, secret).headers["set-cookie"].lower()
    assert "secure" in signing(running, secret, X_Forwarded_Proto="https").headers["set-cookie"].lower()
