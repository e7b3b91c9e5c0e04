"""The dashboard in a real browser: what people do there, and what nobody may. Run with `make test-browser`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="needs the extra: pip install 'mulligan[server]'")

import dashboards
import taught
from agents_week import fill, histories
from alert_receiver import receiving
from colours import contrast, luminance
from hostile_texts import FAMILIES

from mulligan.contract.store import DAY, DEFAULT_TENANT, FixQuery, LessonQuery, PatternQuery, RunQuery
from mulligan.core.failure import Failure, Remedy
from mulligan.core.kinds import KINDS
from mulligan.core.records import Change, History, Recovery, Run, Step, lesson_id

pytestmark = pytest.mark.browser

NOW = dashboards.NOW
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dashboards.Shown]:
    with dashboards.week(tmp_path_factory.mktemp("week")) as shown:
        yield shown


class Visit:
    """A tab, and everything that happened in it which should not."""

    def __init__(self, browser: Any, shown: dashboards.Shown, **options: Any) -> None:
        self.context = browser.new_context(**({"viewport": DESK} | options))
        self.tab = self.context.new_page()
        self.ills: list[str] = []
        self.shown = shown
        home = shown.url("/")
        self.tab.on("dialog", lambda dialog: (self.ills.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.context.on(
            "request",
            lambda request: None if request.url.startswith(home) else self.ills.append(f"asked {request.url}"),
        )
        self.tab.on("console", lambda said: self.ills.append(said.text) if said.type == "error" else None)
        self.tab.on("pageerror", lambda error: self.ills.append(str(error)))
        self.tab.goto(shown.entry())

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def go(self, path: str) -> Any:
        self.tab.goto(self.shown.url(path))
        return self.tab


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_fit_for_a_screen_reader(browser, week, axe, scheme):
    with Visit(browser, week, color_scheme=scheme) as visit:
        for name, path in week.pages.items():
            tab = visit.go(path)
            tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
            tab.wait_for_timeout(150)
            tab.evaluate(axe)
            found = tab.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
            told = [(each["id"], each["nodes"][0]["html"][:200], each["nodes"][0]["failureSummary"]) for each in found]
            assert told == [], name
        assert [ill for ill in visit.ills if "400" not in ill] == []


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_no_page_is_wider_than_its_window_and_nothing_is_cut_without_a_title(browser, week, viewport):
    cut = """() => [...document.querySelectorAll('main *, header *')].filter(each => {
        const style = getComputedStyle(each);
        return each.scrollWidth > each.clientWidth + 1 && style.overflowX === 'hidden' && each.clientWidth > 1
            && !each.title && !each.closest('[title]') && !each.classList.contains('sr');
    }).map(each => each.outerHTML.slice(0, 120))"""
    with Visit(browser, week, viewport=viewport) as visit:
        for name, path in week.pages.items():
            tab = visit.go(path)
            assert tab.evaluate("document.documentElement.scrollWidth") <= viewport["width"], name
            assert tab.evaluate(cut) == [], name


def test_on_a_phone_no_table_goes_on_beyond_its_edge_and_no_word_is_broken_letter_by_letter(browser, week, axe):
    beyond = """() => [...document.querySelectorAll('main .scroll')].filter(
        each => each.scrollWidth > each.clientWidth + 1).map(each => each.innerText.slice(0, 80))"""
    broken = """() => [...document.querySelectorAll('main td')].filter(each =>
        each.offsetParent && each.innerText.trim().length > 6 && each.clientWidth < 60).map(each => each.innerText)"""
    with Visit(browser, week, viewport=PHONE) as visit:
        for name, path in week.pages.items():
            tab = visit.go(path)
            tab.wait_for_timeout(400 if name == "live" else 0)
            assert tab.evaluate(broken) == [], name
            if name.startswith("compare"):  # two dates beside each other are wider than a phone: keys must scroll them
                tab.evaluate(axe)
                assert tab.evaluate("async () => (await axe.run()).violations.map(each => each.id)") == [], name
            else:
                assert tab.evaluate(beyond) == [], name


@pytest.mark.parametrize(("path", "status"), [("/nothing-here", 404), ("/docs", 200), ("/", 401)])
def test_pages_that_are_no_part_of_the_dashboard_are_fit_to_be_read_too(browser, week, axe, path, status):
    context = browser.new_context(viewport=PHONE)
    tab = context.new_page()
    answer = tab.goto(week.url(path))
    assert answer.status == status
    assert tab.evaluate("document.styleSheets[0].cssRules.length") > 3  # its style sheet is there
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    inner = tab.eval_on_selector_all("a[href^='#']", "all => all.map(each => each.getAttribute('href'))")
    assert [each for each in inner if not tab.locator(each).count()] == []
    tab.evaluate(axe)
    assert tab.evaluate("async () => (await axe.run()).violations.map(each => each.id)") == []
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_drawn_stands_out_from_what_it_is_drawn_on(browser, week, scheme):
    with Visit(browser, week, color_scheme=scheme) as visit:
        tab = visit.go("/")
        card = tab.eval_on_selector("section", "each => getComputedStyle(each).backgroundColor")
        for selector in ("rect.ok", "rect.half", "rect.lost", ".won-fill"):
            assert contrast(tab.eval_on_selector(selector, "each => getComputedStyle(each).fill"), card) >= 3, selector
        for selector in (".line.ok", ".line.lost"):
            drawn = tab.eval_on_selector(selector, "each => getComputedStyle(each).stroke")
            assert contrast(drawn, card) >= 3, selector
        tab = visit.go(week.pages["run-partial"])
        lane = tab.eval_on_selector(".lane", "each => getComputedStyle(each).backgroundColor")
        for look in ("ok", "won", "lost"):
            bar = tab.eval_on_selector(f".lane-{look}", "each => getComputedStyle(each).fill")
            mark = tab.eval_on_selector(f".mark-{look}", "each => getComputedStyle(each).fill")
            assert contrast(bar, lane) >= 3, look
            assert contrast(mark, bar) >= 3, look
        button = tab.eval_on_selector("button", "each => getComputedStyle(each).borderTopColor")
        assert contrast(button, card) >= 3


def test_the_figures_are_those_of_the_api(browser, week):
    with Visit(browser, week) as visit:
        tab = visit.go("/")
        since = NOW // DAY * DAY - 6 * DAY
        total = tab.evaluate(f"async () => (await (await fetch('/v1/stats?since={since}&now={NOW}')).json()).total")
        figures = tab.eval_on_selector_all(".card strong", "all => all.map(each => each.textContent)")
        assert figures[0] == str(total["runs"]["partial"] + total["runs"]["failure"])
        assert figures[1] == str(total["runs"]["recovered"])
        assert figures[2].replace("\u00a0", " ") == f"{total['recovered_rate']:.1f} %"
        assert figures[4].replace("\u00a0", " ") == f"{total['first_try_rate']:.1f} %"
        read = "all => all.map(each => [each.innerText.split(' ')[0], each.querySelector('b')?.textContent])"
        legend = dict(tab.eval_on_selector_all(".legend:first-of-type li", read)[:4])
        assert legend == {status: str(runs) for status, runs in total["runs"].items()}
        tab.click("summary:has-text('Show as table')")
        numbers = "all => all.map(row => [...row.querySelectorAll('td')].map(each => +each.textContent))"
        rows = tab.eval_on_selector_all("details[open] tbody tr", numbers)
        assert [sum(column) for column in zip(*rows, strict=True)] == list(total["runs"].values())


def test_filters_ranges_and_links_keep_the_question_in_the_address(browser, week):
    with Visit(browser, week) as visit:
        tab = visit.go("/")
        tab.click("summary:has-text('Filter')")
        tab.wait_for_selector("#choices-agent option", state="attached")
        tab.fill("input[name=agent]", "gardener")
        tab.click("button:has-text('Apply')")
        tab.wait_for_url(re.compile("agent=gardener"))
        tab.wait_for_selector(".chips a:has-text('agent: gardener')")
        tab.click(".ranges a:has-text('24h')")
        assert "range=24h" in tab.url
        assert "agent=gardener" in tab.url
        tab.go_back()
        assert "range=24h" not in tab.url
        tab.click(".chips a:has-text('agent')")
        assert "agent" not in tab.url
        assert visit.ills == []


def test_a_pattern_is_muted_merged_and_split_and_a_fix_approved_by_clicking(browser, tmp_path):
    with dashboards.week(tmp_path) as week, Visit(browser, week) as visit:
        store = week.running.store
        pattern, other = store.patterns(DEFAULT_TENANT, PatternQuery(tool="find_orders"))[:2]
        tab = visit.go(f"/patterns/{pattern.id}")
        tab.fill("#note", "The shop's team looks into it.")
        tab.click("button:has-text('Save note')")
        tab.wait_for_function("document.querySelector('#note').value.startsWith('The shop')")
        assert store.pattern(DEFAULT_TENANT, pattern.id).note == "The shop's team looks into it."
        tab.click("button:has-text('Mute')")
        tab.wait_for_selector(".pill.muted")
        assert store.pattern(DEFAULT_TENANT, pattern.id).state == "muted"
        tab.click("button:has-text('Unmute')")
        tab.click("button:has-text('Mark resolved')")
        tab.wait_for_selector(".pill.resolved")
        tab.click("button:has-text('Reopen')")
        tab.select_option("#into", other.id)
        tab.click("button:has-text('Merge')")
        tab.wait_for_selector("h3:has-text('Merged patterns')")
        assert pattern.id in store.pattern(DEFAULT_TENANT, other.id).merged
        tab.click("button:has-text('Split')")
        tab.wait_for_selector("#into", state="attached")
        assert store.pattern(DEFAULT_TENANT, other.id).merged == ()
        tab.click("a:has-text('evidence and decision')")
        tab.click("summary:has-text('Approve')")
        tab.click("button:has-text('Confirm: approve')")
        tab.wait_for_selector(".pill.approved")
        assert any(fix.state == "approved" for fix in store.fixes(DEFAULT_TENANT, FixQuery(now=NOW, limit=50)))
        assert visit.ills == []


@pytest.mark.parametrize("scripted", [True, False], ids=["with scripts", "without"])
def test_a_lesson_is_approved_disabled_and_revoked_by_clicking(browser, tmp_path, scripted):
    with dashboards.week(tmp_path) as week, Visit(browser, week, java_script_enabled=scripted) as visit:
        store = week.running.store
        tab = visit.go("/learned?state=proposed&source=file")
        tab.click("tbody a >> nth=0")
        tab.click("summary:has-text('Approve')")
        tab.click("button:has-text('Confirm: approve')")
        tab.wait_for_selector("h1 + span .pill.active")
        assert store.lesson(DEFAULT_TENANT, taught.WRITTEN, NOW).state == "active"
        tab.click("summary:has-text('Disable')")
        tab.click("button:has-text('Confirm: disable')")
        tab.wait_for_selector("h1 + span .pill.disabled")
        assert store.lesson(DEFAULT_TENANT, taught.WRITTEN, NOW).state == "disabled"
        tab = visit.go(week.pages["lesson"])
        assert tab.is_visible("h2:has-text('Effect')")
        tab.click("summary:has-text('Revoke')")
        tab.click("button:has-text('Confirm: revoke')")
        tab.wait_for_selector("h1 + span .pill.disabled")
        tab.click("section a[href^='/fixes/']")
        tab.wait_for_selector("h1 + .pill.revoked")
        assert visit.ills == []


def test_keys_go_to_pages_rows_the_search_and_their_own_list(browser, week):
    with Visit(browser, week) as visit:
        tab = visit.go("/")
        tab.keyboard.press("g")
        tab.keyboard.press("r")
        tab.wait_for_url(week.url("/runs"))
        tab.keyboard.press("j")
        tab.keyboard.press("j")
        tab.keyboard.press("k")
        assert (
            tab.evaluate("[...document.querySelectorAll('main tbody tr')].findIndex(each => each.matches('.here'))")
            == 0
        )
        tab.keyboard.press("Enter")
        tab.wait_for_url(re.compile("/runs/run_"))
        tab.keyboard.press("?")
        assert tab.is_visible("#keys")
        tab.keyboard.press("Escape")
        tab.keyboard.press("/")
        tab.keyboard.type("find_orders")
        tab.keyboard.press("Enter")
        tab.wait_for_url(re.compile(r"/search\?q=find_orders"))
        assert tab.is_visible("h2:has-text('Tools')")


def test_the_menu_is_used_by_keyboard_and_closes_when_the_focus_leaves_it(browser, week):
    with Visit(browser, week) as visit:
        tab = visit.go("/")
        tab.focus(".menu summary")
        tab.keyboard.press("Enter")
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.textContent") == "Impact"
        tab.keyboard.press("Escape")
        assert not tab.is_visible(".menu a")
        assert tab.evaluate("document.activeElement.textContent") == "More"
        tab.keyboard.press("Enter")
        tab.focus("#search")
        assert not tab.is_visible(".menu a")
        tab.keyboard.press("Escape")
        tab.focus(".menu summary")
        tab.keyboard.press("g")
        tab.keyboard.press(",")
        tab.wait_for_url(week.url("/settings"))
        assert visit.ills == []


def test_the_focus_stays_on_the_page_when_filters_are_applied_and_shortcuts_are_asked_for_twice(browser, week):
    with Visit(browser, week) as visit:
        tab = visit.go("/runs")
        tab.keyboard.press(".")
        assert tab.evaluate("document.activeElement.name") == "agent"
        tab.keyboard.type("gardener")
        tab.press("button:has-text('Apply')", "Enter")
        tab.wait_for_selector(".chips a:has-text('agent: gardener')")
        tab.wait_for_function("document.activeElement.id === 'main'")
        tab.keyboard.press("?")
        tab.keyboard.press("?")
        tab.keyboard.press("Escape")
        assert not tab.is_visible("#keys")
        assert visit.ills == []


def test_times_are_those_of_the_browser_and_the_footer_names_its_zone(browser, week):
    run = week.running.store.runs(DEFAULT_TENANT, RunQuery(limit=1))[0].run
    for zone, hours in (("Asia/Tokyo", 9), ("UTC", 0)):
        with Visit(browser, week, timezone_id=zone) as visit:
            tab = visit.go("/runs")
            local = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(run.started_at / 1000 + hours * 3600))
            assert tab.inner_text("tbody time >> nth=0") == local
            assert zone in tab.inner_text("footer")
            assert tab.get_attribute("tbody time >> nth=0", "title").endswith(" UTC")


def test_the_theme_is_chosen_and_remembered(browser, week):
    with Visit(browser, week, color_scheme="light") as visit:
        tab = visit.go("/")
        card = "getComputedStyle(document.querySelector('section')).backgroundColor"
        assert luminance(tab.evaluate(card)) > 0.9
        tab.select_option("#theme", "dark")
        assert luminance(tab.evaluate(card)) < 0.1
        tab = visit.go("/runs")
        assert luminance(tab.evaluate(card)) < 0.1
        assert tab.input_value("#theme") == "dark"
        tab.select_option("#theme", "system")
        assert luminance(tab.evaluate(card)) > 0.9


def test_the_live_tail_shows_what_comes_and_waits_while_it_is_paused(browser, tmp_path):
    with dashboards.week(tmp_path) as week, Visit(browser, week) as visit:
        tab = visit.go("/live")
        tab.wait_for_selector("#live-state:has-text('connected')")
        before = tab.locator("#events tr").count()
        assert before
        new = History(
            run=Run(id="run_new", agent="newcomer", started_at=NOW - 2000, ended_at=NOW, end_reason="finished"),
            steps=(Step(run="run_new", seq=1, call=1, name="just_now", started_at=NOW - 1500),),
        )
        fill(week.running.store, [new], journal="new")
        tab.wait_for_selector("#events a:has-text('just_now')")
        tab.click("#pause")
        step = Step(run="run_newer", seq=1, call=1, name="while_paused", started_at=NOW - 800)
        newer = History(run=Run(id="run_newer", agent="newcomer", started_at=NOW - 900), steps=(step,))
        fill(week.running.store, [newer], journal="newer")
        tab.wait_for_selector("#live-state:has-text('new')")
        assert not tab.locator("#events a:has-text('while_paused')").count()
        tab.click("#pause")
        tab.wait_for_selector("#events a:has-text('while_paused')")
        assert visit.ills == []


def test_after_a_broken_connection_the_live_tail_tells_nothing_twice(browser, week):
    with Visit(browser, week) as visit:
        tab = visit.go("/live")
        tab.wait_for_selector("#live-state:has-text('connected')")
        before = tab.locator("#events tr").count()
        assert before
        week.running.server.is_stopping = True  # which ends the stream
        tab.wait_for_selector("#live-state:has-text('reconnecting')")
        week.running.server.is_stopping = False
        tab.wait_for_selector("#live-state:has-text('connected')", timeout=10_000)
        assert tab.locator("#events tr").count() == before


def test_a_live_tail_with_nothing_to_tell_says_so(browser, tmp_path):
    with dashboards.empty(tmp_path) as shown, Visit(browser, shown) as visit:
        visit.go("/live").wait_for_selector("text=No attempts ended in the last hour")
        assert not visit.tab.is_visible("#tail")


def test_a_page_that_waits_for_the_first_run_shows_it_by_itself(browser, tmp_path):
    with dashboards.empty(tmp_path) as shown, Visit(browser, shown) as visit:
        visit.tab.wait_for_selector("h2:has-text('No runs yet')")
        visit.tab.evaluate("getSelection().selectAllChildren(document.querySelector('.steps pre'))")
        visit.tab.wait_for_timeout(2600)
        assert "import mulligan" in visit.tab.evaluate("getSelection().toString()"), "it can be copied meanwhile"
        fill(shown.running.store, histories(shown.running.server.clock()))
        visit.tab.wait_for_selector("h2:has-text('Runs by status')", timeout=8000)
        assert visit.ills == []


def test_on_call_sees_what_broke_takes_it_and_has_it_told_in_a_chat(browser, tmp_path):
    with receiving() as chat, dashboards.week(tmp_path) as week, Visit(browser, week) as visit:
        tab = visit.go("/")
        tab.click(".changes tbody tr >> nth=0 >> a:text-matches('^(first|newest)$')")
        tab.wait_for_selector("tr:has(#first-failure:target)")
        tab = visit.go("/")
        tab.click(".changes tbody a.said >> nth=0")
        tab.fill("#owner", "me")
        tab.click("button:has-text('Assign')")
        tab.wait_for_selector("dt:has-text('owner')")
        tab.goto(week.url("/patterns"))
        tab.click("a:has-text('mine')")
        tab.wait_for_url(re.compile("owner=me"))
        assert tab.locator("tbody tr").count() == 1

        tab = visit.go("/alerts")
        tab.fill("input[name=target]", f"slack:{chat.url}")
        tab.click("button:has-text('Add target')")
        week.running.server.alerts.start()
        tab.click("button:has-text('Send a test message')")
        tab.wait_for_selector("#history .pill.sent")  # without a click: the page waits for it
        assert "this target works" in chat.wait_for(1)[0]["text"]
        tab.uncheck("label:has-text('a failure pattern is new') input")
        tab.click("button:has-text('Save rules')")
        tab.wait_for_selector("label:has-text('a failure pattern is new') input:not(:checked)")
        assert visit.ills == []
        week.running.server.alerts.close()


def test_two_versions_are_compared_by_choosing_them(browser, week):
    with Visit(browser, week) as visit:
        tab = visit.go("/compare")
        tab.select_option("select[name=a]", "2.1")
        tab.select_option("select[name=b]", "2.0")
        tab.click("button:has-text('Compare')")
        tab.wait_for_url(re.compile("a=2.1"))
        assert tab.is_visible("td:has-text('first-try success')")


def test_everything_but_the_live_tail_works_without_a_script(browser, tmp_path):
    with dashboards.week(tmp_path) as week, Visit(browser, week, java_script_enabled=False) as visit:
        for name, path in week.pages.items():
            tab = visit.go(path)
            assert tab.locator("h1").count() == 1, name
        tab = visit.go("/live")
        assert "needs JavaScript" in tab.content()
        tab = visit.go("/")
        tab.click("summary:has-text('Filter')")
        tab.fill("input[name=tool]", "find_orders")
        tab.click("button:has-text('Apply')")
        assert "Calls by outcome" in tab.content()
        pattern = week.running.store.patterns(DEFAULT_TENANT, PatternQuery())[0]
        tab = visit.go(f"/patterns/{pattern.id}")
        tab.click("button:has-text('Mute')")
        assert week.running.store.pattern(DEFAULT_TENANT, pattern.id).state == "muted"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dashboards.Shown]:
    """A store in which every name, id, message, argument and value is an attack."""
    with dashboards.empty(tmp_path_factory.mktemp("hostile"), clock=lambda: NOW) as shown:
        for number, text in enumerate(FAMILIES):
            fill(shown.running.store, [attack(number, text)], journal=f"hostile-{number}")
            names = ("tool", "kind", "mistake", "correction", "error", "failing_example", "working_example", "origin")
            lesson = taught.written(lesson_id("any", str(number)), **dict.fromkeys(names, text))
            shown.running.store.save_lesson(DEFAULT_TENANT, lesson)
        yield shown


def attack(number: int, text: str) -> History:
    started = NOW - 600_000 + number * 1000
    failure = Failure.of(KINDS["tool/invalid_arguments"], text, fingerprint=f"f-{number}", hint=text, detail=text,
                         code=text, evidence=(text,))  # fmt: skip
    change = Change(path=text, operation="substitute", before=text, after=f"{text}!", source="call")
    after = Recovery(remedy=Remedy.REPAIR, changes=(change,), source="memory", fix_id=text, confidence=0.9)
    steps = (
        Step(run=text, seq=1, call=1, name=text, server=text, arguments={text: text}, started_at=started,
             outcome="failure", failure=failure),
        Step(run=text, seq=2, call=1, attempt=2, name=text, arguments={text: f"{text}!"}, result={text: text},
             started_at=started + 10, recovery=after),
        Step(run=text, seq=3, call=3, name=text, arguments={text: number}, started_at=started + 20, outcome="failure",
             failure=failure),
        Step(run=text, seq=4, call=4, type="model", name=text, metadata={"model": text}, started_at=started + 30),
        # The caller's own correction: only that teaches a fix, which has a page of its own.
        Step(run=text, seq=5, call=5, name=text, arguments={text: str(number)}, started_at=started + 40),
    )  # fmt: skip
    run = Run(id=text, agent=text, version=text, environment=text, session=text, parent=text, context=text,
              started_at=started, ended_at=started + 60, end_reason="finished")  # fmt: skip
    return History(run=run, steps=steps)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hostile_texts_open_no_dialog_break_no_policy_and_reach_nobody(browser, hostile, scheme):
    store = hostile.running.store
    paths = [
        "/",
        "/?range=24h",
        "/runs",
        "/patterns",
        "/tools",
        "/agents",
        "/models",
        "/sessions",
        "/learned",
        "/live",
        "/health",
        "/alerts",
        "/audit",
        "/settings",
    ]
    paths += ["/compare?by=agent", "/compare?by=version", "/search?q=alert"]
    paths += [f"/patterns/{each.id}" for each in store.patterns(DEFAULT_TENANT, PatternQuery(limit=100))]
    paths += [f"/fixes/{each.id}" for each in store.fixes(DEFAULT_TENANT, FixQuery(now=NOW, limit=100))]
    paths += [f"/lessons/{each.id}" for each in store.lessons(DEFAULT_TENANT, LessonQuery(now=NOW, limit=100))]
    assert len(paths) > 3 * len(FAMILIES)
    with Visit(browser, hostile, color_scheme=scheme) as visit:
        visit.tab.add_init_script(
            "document.addEventListener('securitypolicyviolation', e => console.error('policy: ' + e.violatedDirective))"
        )
        links: set[str] = set()
        for path in paths:
            tab = visit.go(path)
            links |= set(look_around(tab))
        inner = sorted(link for link in links if re.match(r"/(runs|tools|agents)[/?]", link) and "name=" in link)
        assert len(inner) > len(FAMILIES)
        for path in inner if scheme == "light" else inner[::5]:
            tab = visit.go(path)
            look_around(tab)
            assert tab.title()
        assert visit.ills == []
        assert tab.evaluate("document.querySelectorAll('img, iframe, object, embed, base').length") == 0


def look_around(tab: Any) -> list[str]:
    """Opens and passes over whatever there is, and answers where the page leads."""
    tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    tab.mouse.move(300, 300)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert "<script>alert" not in tab.content()
    return list(tab.eval_on_selector_all("main a", "all => all.map(each => each.getAttribute('href'))"))


def test_hostile_names_lead_to_their_own_pages(browser, hostile):
    with Visit(browser, hostile) as visit:
        tab = visit.go("/runs")
        names = tab.eval_on_selector_all("tbody a.said", "all => all.map(each => each.getAttribute('href'))")
        for link in names:
            tab = visit.go(link)
            assert tab.locator(".lanes > tbody > tr").count() == 4, link


def test_the_overview_is_one_chain_of_few_requests(browser, week):
    asked: list[tuple[str, int]] = []
    with Visit(browser, week) as visit:
        visit.tab.wait_for_load_state("networkidle")
        visit.context.on(
            "response", lambda answer: asked.append((answer.url, int(answer.headers.get("content-length", 0))))
        )
        tab = visit.go("/")
        tab.wait_for_load_state("networkidle")
        first = next(number for number, (url, _) in enumerate(asked) if url == tab.url)
        asked = asked[first:]  # without an icon that the page before was still loading
        assert len(asked) <= 5, asked  # the page, the style sheet, two scripts and the icon, all named in the page
        assert sum(size for _, size in asked) < 100_000


def test_it_prints_without_what_is_for_the_screen(browser, week, tmp_path: Path):
    with Visit(browser, week, color_scheme="dark") as visit:
        tab = visit.go("/")
        tab.emulate_media(media="print")
        assert not tab.is_visible("header nav")
        assert not tab.is_visible("footer")
        assert luminance(tab.evaluate("getComputedStyle(document.body).backgroundColor")) > 0.9
        assert tab.is_visible("svg.chart")
