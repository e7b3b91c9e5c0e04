"""Twelve whole agents at ordinary work, written without knowledge of how the library decides.

Eight have something that a colleague would learn (most of them beside choices and other innocent failures),
four have nothing to learn. What is right for a user is decided by the world that each function builds, before any call.
"""

import asyncio
import contextlib

from kit import GONE, Want, shape, sleep
from mulligan import AgentError


def talk(s, limit=24):
    s.open_turns.append(iter(s.m.turns(limit=limit)))
    return s.open_turns[-1]


def pick(s, *options):
    """One of (weight, value), drawn for this run."""
    return s.rng.choices([value for _, value in options], [weight for weight, _ in options])[0]


def again(asked):
    return asked


# 1-8: something can be learned


@shape("lesson", follows=True)
def travel_cabin_codes(s):
    """travel desk: the fare search takes cabin letters, the model says words; another seat is the traveller's choice"""
    letters = {"economy": "Y", "premium economy": "W", "business": "C"}
    cabin = pick(s, (5, "economy"), (2, "premium economy"), (4, "business"))
    origin, destination = s.rng.sample(["OSL", "LHR", "CDG", "FRA", "MAD", "VIE", "CPH", "ZRH", "AMS", "LIS"], 2)
    date = f"2026-05-{s.rng.randint(1, 28):02}"
    flight = f"XQ{s.rng.randint(100, 999)}"
    rows = s.rng.sample(range(5, 30), 3)
    seat, other = f"{rows[0]}{s.rng.choice('ACDF')}", f"{rows[1]}{s.rng.choice('ACDF')}"
    taken = seat
    is_taken, has_choice = s.often("taken", 0.4), s.often("other seat", 0.75)

    @s.tool(effects="none")
    def search_fares(origin: str, destination: str, date: str, cabin: str):
        if cabin not in letters.values():
            raise AgentError("NO FARES FILED - CHECK CABIN")
        return [{"flight": flight, "fare": 100 + len(destination) * rows[2], "cabin": cabin}]

    @s.tool
    def hold_seat(flight: str, seat: str, traveller: str):
        if is_taken and seat == taken:
            return {"error": f"UC {seat}"}
        return {"held": seat, "flight": flight}

    letter = letters[cabin]
    wrong = {"economy": "M", "premium economy": "P", "business": "J"}[cabin]
    own = pick(
        s,
        (45, [{"cabin": letter}]),
        (20, [{"cabin": cabin.upper()}, {"cabin": letter}]),
        (15, [{"cabin": wrong}, {"cabin": letter}]),
        (10, [{"cabin": cabin.upper()}]),
        (10, []),
    )
    first = letter if s.often("read the manual", 0.12) else cabin
    with s.run("travel-desk"):
        turns = talk(s)
        if s.pursue(
            turns,
            Want(
                search_fares,
                {"origin": origin, "destination": destination, "date": date, "cabin": first},
                [{"cabin": letter}],
                own=own,
                lesson=f"{cabin}={letter}",
            ),
        ):
            s.pursue(
                turns,
                Want(
                    hold_seat,
                    {"flight": flight, "seat": seat, "traveller": f"traveller {s.k}"},
                    [{}, {"seat": other}] if has_choice else [{}],
                    own=[{"seat": other}] if has_choice else [],
                ),
            )


@shape("lesson", follows=True)
def ledger_period_names(s):
    """accounting: periods are named P03-26, the model writes 2026-03; blocked accounts are the bookkeeper's choice"""
    month = pick(s, (6, 3), (3, 2), (1, 1))
    period = f"P{month:02}-26"
    account, other = s.rng.sample(["4400", "6310", "6815", "1576", "4930", "0650"], 2)
    is_blocked, has_other = s.often("blocked", 0.25), s.often("has other", 0.7)
    blocked = account
    net = round(s.rng.uniform(20, 4000), 2)

    @s.tool
    def post_journal(account: str, net: float, period: str, memo: str):
        if period not in ("P01-26", "P02-26", "P03-26", "P04-26"):
            raise ValueError("E4102")
        if is_blocked and account == blocked:
            raise ValueError(f"Account {account} is blocked for posting.")
        return {"document": f"J{s.k:05}"}

    @s.tool(effects="none")
    def list_periods(company: str):
        return [{"month": each, "period": f"P{each:02}-26", "state": "open"} for each in (1, 2, 3, 4)]

    @s.tool(effects="none")
    def get_account(account: str):
        return {"account": account, "name": "an account"}

    def use(got):
        return {"period": next(each["period"] for each in got if each["month"] == month)}

    def other_account(asked):
        return {**asked, "account": other} if has_other and asked["period"] == period else None

    looks_up = ([(list_periods, {"company": "main"})], use)
    own = pick(
        s,
        (40, [{"period": period}]),
        (20, [looks_up]),
        (15, [{"period": f"{month:02}/2026"}, looks_up]),
        (10, [([(get_account, {"account": account})], lambda got: {"period": period})]),
        (5, [{"period": f"{month:02}/2026"}]),
        (10, []),
    )
    with s.run("bookkeeper"):
        s.pursue(
            talk(s),
            Want(
                post_journal,
                {"account": account, "net": net, "period": f"2026-{month:02}", "memo": f"receipt {s.k * 3}"},
                lambda a: (
                    a["period"] == period
                    and a["net"] == net
                    and a["account"] in ((account, other) if is_blocked and has_other else (account,))
                ),
                own=[*own, other_account],
                pre=("list_periods",),
                how={"list_periods": {"company": "main"}},
                use=use,
                lesson=f"{month}={period}",
            ),
        )


@shape("lesson", follows=True)
def warehouse_release_zone(s):
    """warehouse: nothing can be picked in a zone before its wave is released (some are already); stock may be short"""
    zone = s.rng.choice(["A", "B", "C", "D", "H"])
    order, sku = f"SO-{40000 + s.k * 7}", f"{s.rng.randint(1000, 9999)}-{s.rng.choice(['BLK', 'RED', 'GRN'])}"
    quantity = s.rng.randint(2, 40)
    stock = s.rng.randint(1, quantity - 1) if s.often("short", 0.25) else quantity + 5
    takes_fewer = s.often("takes fewer", 0.6)
    state = {"released": s.often("released by a colleague", 0.2)}

    @s.tool
    def create_pick(order: str, sku: str, zone: str, quantity: int):
        if not state["released"]:
            return {"error": "WMS-2207 ZONE NOT STAGED"}
        if quantity > stock:
            return {"error": f"WMS-1010 INSUFFICIENT STOCK, ON HAND {stock}"}
        return {"pick": f"P{s.k}", "quantity": quantity}

    @s.tool(effects="idempotent")
    def release_wave(zone: str):
        state["released"] = True
        return {"zone": zone, "wave": "released"}

    @s.tool(effects="none")
    def get_order(order: str):
        return {"order": order, "sku": sku, "quantity": quantity, "state": "open"}

    @s.tool(effects="none")
    def print_label(order: str):
        return f"label of {order}"

    looks, releases = (get_order, {"order": order}), (release_wave, {"zone": zone})
    own = pick(
        s,
        (45, [([releases], None)]),
        (20, [([looks, releases], None)]),
        (15, [([looks], None), ([releases], None)]),
        (8, [([looks], None)]),
        (12, []),
    )

    def fewer(asked):
        return {**asked, "quantity": stock} if takes_fewer and state["released"] and stock < quantity else None

    with s.run("picker"):
        turns = talk(s)
        done = s.pursue(
            turns,
            Want(
                create_pick,
                {"order": order, "sku": sku, "zone": zone, "quantity": quantity},
                [{}, {"quantity": stock}] if takes_fewer and stock < quantity else [{}],
                own=[*own, fewer],
                pre=() if state["released"] else ("release_wave",),
                how={"release_wave": {"zone": zone}, "get_order": {"order": order}, "print_label": {"order": order}},
                lesson=None if state["released"] else "release_wave first",
                budget=5,
            ),
        )
        if done:
            s.pursue(turns, Want(print_label, {"order": order}))


@shape("lesson")
def devops_change_gate(s):
    """DevOps: deploying to production needs the number of an opened change; smoke tests may be flaky or red"""
    service = s.rng.choice(["cart", "search", "billing", "mailer", "auth", "images"])
    version = f"{s.rng.randint(1, 4)}.{s.rng.randint(0, 30)}.{s.rng.randint(0, 9)}"
    before = f"{version}-previous"
    environment = "production" if s.often("production", 0.75) else "staging"
    number, opened = f"CHG{s.rng.randint(10000, 99999)}", []
    is_red = s.often("red", 0.12)

    @s.tool
    def deploy(service: str, version: str, environment: str, change: str = ""):
        if environment == "production" and change not in opened:
            raise PermissionError("403 Forbidden: denied by policy prod-change-gate")
        return {"deployment": f"{service}@{version}"}

    @s.tool
    def open_change(service: str, summary: str):
        opened.append(number)
        return {"number": number, "state": "implement"}

    @s.tool(effects="none")
    def list_deployments(service: str):
        return [{"version": before, "environment": "production"}]

    @s.tool(effects="none")
    def smoke_test(service: str, environment: str):
        if s.chance("flaky", 0.15):
            raise ConnectionError("503 Service Unavailable: no healthy upstream")
        if is_red:
            raise RuntimeError("1 of 14 checks failed: GET /health/deep returned 500")
        return "14 checks passed"

    change = {"service": service, "summary": f"deploy {version}"}
    opens = ([(open_change, change)], lambda got: {"change": got["number"]})
    looks = ([(list_deployments, {"service": service})], None)
    own = pick(
        s,
        (50, [opens]),
        (15, [{"change": "standard"}, opens]),
        (10, [looks, opens]),
        (10, [{"change": "emergency"}]),
        (15, []),
    )
    needs = environment == "production"
    with s.run("release-bot"):
        turns = talk(s)
        if s.pursue(
            turns,
            Want(
                deploy,
                {"service": service, "version": version, "environment": environment},
                lambda a: (
                    (a["service"], a["version"], a["environment"]) == (service, version, environment)
                    and a["change"] in (opened if needs else ["", *opened])
                ),
                own=own,
                pre=("open_change",) if needs else (),
                how={"open_change": change},
                use=lambda got: {"change": got["number"]},
                lesson="open_change, its number" if needs else None,
            ),
        ):
            tested = s.pursue(
                turns,
                Want(
                    smoke_test,
                    {"service": service, "environment": environment},
                    own=[again, again],
                    retry=not is_red,
                    fine="retry",
                ),
            )
            if not tested:
                s.pursue(
                    turns,
                    Want(
                        deploy,
                        {
                            "service": service,
                            "version": before,
                            "environment": environment,
                            **({"change": number} if needs else {}),
                        },
                    ),
                )


@shape("lesson")
def school_absence_field(s):
    """school office: in the second week `reason` is called `absence_reason`; guardians cannot always be reached"""
    is_new = s.day >= 6
    pupil = f"{s.rng.choice(['Ada', 'Ben', 'Cem', 'Dua', 'Eli', 'Fay', 'Gus'])} {s.rng.choice('KLMNPRST')}."
    reason = pick(s, (6, "ill"), (2, "medical appointment"), (1, "family"), (1, "bereavement"))
    date = f"2026-02-{2 + s.day:02}"
    channels = s.rng.sample(["phone", "sms", "email"], 3)
    silent = {channels[0], *([channels[2]] if s.often("both", 0.5) else [])} if s.often("unreachable", 0.35) else set()
    tries_other = s.often("tries other", 0.7)

    @s.tool(effects="idempotent")
    def record_absence(pupil: str, date: str, reason: str = "", absence_reason: str = ""):
        if absence_reason if not is_new else reason:
            return {"error": "400 data must NOT have additional properties"}
        if not reason and not absence_reason:
            return {"error": f"400 data must have required property '{'absence_reason' if is_new else 'reason'}'"}
        return {"recorded": pupil, "date": date}

    @s.tool
    def notify_guardian(pupil: str, channel: str, text: str):
        if channel in silent:
            raise (
                TimeoutError(f"The guardian did not answer by {channel}.")
                if channel == "phone"
                else AgentError("Delivery failed.")
            )
        return f"told by {channel}"

    renamed = {"reason": GONE, "absence_reason": reason}
    own = pick(
        s,
        (45, [renamed]),
        (25, [{"reason": GONE}, renamed]),
        (15, [{"reason": reason.upper()}, renamed]),
        (15, [{"reason": reason.upper()}]),
    )
    with s.run("school-office"):
        turns = talk(s)
        s.pursue(
            turns,
            Want(
                record_absence,
                {"pupil": pupil, "date": date, "reason": reason},
                [renamed, {**renamed, "absence_reason": reason.upper()}] if is_new else [{}],
                own=own,
                lesson="reason is absence_reason" if is_new else None,
            ),
        )
        s.pursue(
            turns,
            Want(
                notify_guardian,
                {"pupil": pupil, "channel": channels[0], "text": f"{pupil} is recorded as absent."},
                [{"channel": each} for each in channels],
                own=[{"channel": channels[1]}] if tries_other else [],
                fine="retry",
            ),
        )


@shape("lesson")
def crm_import_etags(s):
    """CRM: a nightly import has the etags of yesterday; for contacts that changed it must read the new etag first"""
    numbers = s.rng.sample(range(1000, 9000), 4)
    tags = {f"c-{number}": f'W/"{s.rng.randint(10**6, 10**7)}"' for number in numbers}
    deleted = f"c-{numbers[3]}" if s.often("deleted", 0.3) else None
    stale = {contact for contact in list(tags)[:3] if s.rng.random() < 0.4}

    @s.tool
    def update_contact(contact: str, phone: str, etag: str):
        if contact == deleted:
            raise LookupError(f"404 Not Found: /contacts/{contact}")
        if etag != tags[contact]:
            raise ValueError("412 Precondition Failed")
        return {"contact": contact, "phone": phone}

    @s.tool(effects="none")
    def get_contact(contact: str):
        return {"id": contact, "etag": tags[contact], "phone": "+47 000"}

    repairs = s.often("new worker", 0.8)  # one of five workers still runs the version that only logs
    with s.run("crm-import"):
        for contact, tag in tags.items():
            given = f'W/"{s.rng.randint(10**6, 10**7)}"' if contact in stale else tag
            want = Want(
                update_contact,
                {"contact": contact, "phone": f"+47 {s.rng.randint(10**7, 10**8)}", "etag": given},
                [{"etag": tag}],
                pre=("get_contact",) if contact in stale else (),
                how={"get_contact": {"contact": contact}},
                use=lambda got: {"etag": got["etag"]},
                lesson="get_contact, its etag" if contact in stale else None,
            )
            s.wants.append(want)
            try:
                s.do(want, **want.first)
            except LookupError:
                pass  # gone since yesterday: the report lists it
            except ValueError:
                if repairs:
                    seen = s.do(None, get_contact, contact=contact)
                    s.do(want, **{**want.first, "etag": seen["etag"]})
            s.lose(want)


@shape("lesson", follows=True)
def analyst_too_many_points(s):
    """data analysis: long series need days or weeks, previews at most 1000 rows; a chart's name may be in use"""
    metric = s.rng.choice(["orders", "sessions", "refund_rate", "latency_p95", "signups", "churn"])
    days = pick(s, (3, 90), (2, 180), (2, 365), (3, 14), (1, 60))
    is_long = days * 24 > 1000
    table = f"{s.rng.choice(['stg', 'dim', 'fct'])}_{metric}_{s.rng.randint(1, 6)}"
    name, other = f"{metric} {days} days", f"{metric} {days} days {s.rng.choice(['v2', 'new', 'final', 'for Kim'])}"
    is_used, renames = s.often("name in use", 0.3), s.often("renames", 0.7)

    @s.tool(effects="none")
    def get_series(metric: str, days: int, granularity: str = "hour"):
        points = {"hour": days * 24, "day": days, "week": days // 7}.get(granularity)
        if points is None:
            raise ValueError("granularity must be one of hour, day, week")
        if points > 1000:
            raise ValueError(f"Query would return {points} data points.")
        return {"metric": metric, "points": points}

    @s.tool(effects="none")
    def preview_table(table: str, rows: int):
        if rows > 1000:
            return {"error": "RESULT_TOO_LARGE"}
        return {"table": table, "rows": rows}

    @s.tool
    def save_chart(name: str, folder: str, overwrite: bool = False):
        if is_used and name != other and not overwrite:
            raise FileExistsError(f"A chart named '{name}' exists in this folder.")
        return {"saved": name}

    cuts = s.often("cuts the range", 0.12)  # the model settles for a shorter range than was asked for
    own = (
        [{"days": 30}]
        if cuts
        else pick(
            s,
            (60, [{"granularity": "day"}]),
            (12, [{"granularity": "week"}]),
            (10, [{"granularity": "daily"}, {"granularity": "day"}]),
            (18, []),
        )
    )
    few = pick(s, (50, [{"rows": 1000}]), (20, [{"rows": 500}]), (15, [{"rows": 2000}, {"rows": 1000}]), (15, []))
    asked = pick(s, (5, 5000), (3, 10000), (2, 500))
    overwrites = renames and s.often("overwrites", 0.35)
    way = {"overwrite": True} if overwrites else {"name": other}
    with s.run("analyst") as run:
        turns = talk(s)
        if s.often("looks first", 0.6):
            s.pursue(
                turns,
                Want(
                    preview_table,
                    {"table": table, "rows": asked},
                    lambda a: (
                        a["table"] == table and (a["rows"] == asked or (asked > 1000 and 100 <= a["rows"] <= 1000))
                    ),
                    own=few,
                    lesson="rows<=1000" if asked > 1000 else None,
                ),
            )
        found = s.pursue(
            turns,
            Want(
                get_series,
                {"metric": metric, "days": days, "granularity": "hour"},
                [{"granularity": "day"}, {"granularity": "week"}] if is_long else [{}],
                own=own,
                lesson="granularity=day" if is_long else None,
            ),
        )
        if found:
            s.pursue(
                turns,
                Want(
                    save_chart,
                    {"name": name, "folder": "Weekly review"},
                    [{}, way] if is_used and renames else [{}],
                    own=[way] if renames else [],
                ),
            )
        elif cuts:
            run.is_true("partial", "failure", "recovered")  # nobody could tell from the calls that the range was meant


@shape("lesson", follows=True)
def clinic_specimen_codes(s):
    """clinic: a lab order needs the specimen's code, which depends on the panel; the hour is the patient's choice"""
    codes = {"lipids": "SER", "cbc": "EDT", "a1c": "EDT", "urinalysis": "URI", "coagulation": "CIT"}
    panel = pick(s, (4, "lipids"), (5, "cbc"), (3, "a1c"), (2, "urinalysis"), (1, "coagulation"))
    hour, other = s.rng.sample(["07:30", "08:00", "08:30", "09:00", "10:15", "11:00"], 2)
    is_full, takes_other = s.often("full", 0.4), s.often("takes other", 0.8)
    full = {hour, *(each for each in ("07:30", "08:00", "10:15") if each != other and s.rng.random() < 0.4)}
    patient = f"MRN{s.rng.randint(100000, 999999)}"

    @s.tool
    def order_panel(patient: str, panel: str, priority: str = "routine", specimen: str = ""):
        if not specimen:
            raise AgentError("ORM rejected: AE|OBR-15|101")
        if specimen != codes[panel]:
            raise AgentError("ORM rejected: AE|OBR-15|103")
        return {"order": f"L{s.k:06}"}

    @s.tool
    def book_draw(patient: str, hour: str):
        if is_full and hour in full:
            return {"error": "No phlebotomist is available at this time."}
        return {"patient": patient, "hour": hour}

    plain = {"lipids": "serum", "cbc": "blood", "a1c": "blood", "urinalysis": "urine", "coagulation": "plasma"}[panel]
    knows = {"specimen": codes[panel]}
    own = pick(
        s,
        (45, [knows]),
        (25, [{"specimen": plain}, knows]),
        (10, [{"specimen": panel}, knows]),
        (10, [{"specimen": plain}]),
        (10, []),
    )
    with s.run("clinic-desk"):
        turns = talk(s)
        if s.pursue(
            turns,
            Want(
                order_panel,
                {"patient": patient, "panel": panel, "priority": "routine"},
                [knows],
                own=own,
                lesson=f"{panel}={codes[panel]}",
            ),
        ):
            s.pursue(
                turns,
                Want(
                    book_draw,
                    {"patient": patient, "hour": hour},
                    [{}, {"hour": other}] if takes_other else [{}],
                    own=[{"hour": other}] if takes_other else [],
                ),
            )


# 9-12: nothing can be learned


@shape("plain")
def home_evening_routine(s):
    """smart home: a routine sets each device for the evening; some are offline tonight, the hub is at times busy"""
    devices = s.rng.sample(
        [
            "hall lamp",
            "porch lamp",
            "blinds south",
            "blinds west",
            "radiator bath",
            "radiator study",
            "speaker kitchen",
            "socket tv",
            "socket aquarium",
        ],
        5,
    )
    settings = {device: s.rng.choice(["on", "off", "dim", "eco"]) for device in devices}
    offline = {device for device in devices if s.rng.random() < 0.15}

    @s.tool(effects="idempotent")
    def set_device(device: str, setting: str):
        if device in offline:
            raise AgentError(f"{device}: EHOSTUNREACH")
        if s.chance("busy", 0.12):
            raise TimeoutError("The hub did not answer within 5 s.")
        return {"device": device, "setting": setting}

    @s.tool(effects="none")
    def get_device(device: str):
        return {"device": device, "online": device not in offline}

    with s.run("evening-routine"):
        for device in devices:
            want = Want(
                set_device, {"device": device, "setting": settings[device]}, retry=device not in offline, fine="retry"
            )
            s.wants.append(want)
            try:
                s.do(want, **want.first)
            except TimeoutError:
                sleep(20)
                with contextlib.suppress(TimeoutError):  # otherwise the next evening
                    s.do(want, **want.first)
            except AgentError:
                s.do(None, get_device, device=device)  # for the report
            s.lose(want)


@shape("trap", follows=True)
def recruiting_interview_slots(s):
    """recruiting: calendars are busy; the candidate picks another slot (often Thursday), any free room will do"""
    slots = ["Mon 09:00", "Mon 15:00", "Tue 10:00", "Wed 11:00", "Wed 16:00", "Thu 14:00", "Fri 09:30"]
    slot = s.rng.choice(["Tue 10:00", "Tue 10:00", "Mon 15:00", "Wed 11:00"])
    left = [each for each in slots if each != slot]
    chosen = "Thu 14:00" if s.often("thursday", 0.5) else s.rng.choice(left)
    is_busy, agrees = s.often("busy", 0.55), s.often("agrees", 0.8)
    taken = {slot, *(each for each in left if each != chosen and s.rng.random() < 0.3)}
    rooms = ["Aspen", "Birch", "Cedar", "Elm"]
    free = [room for room in rooms if s.rng.random() < 0.7] or ["Elm"]
    candidate = f"{s.rng.choice(['R.', 'T.', 'W.', 'Y.'])} {s.rng.choice(['Olsen', 'Novak', 'Reyes', 'Sato', 'Khan'])}"
    room = s.rng.choice(["Aspen", "Aspen", "Birch", "Cedar"])
    bounces = s.often("bounces", 0.1)

    @s.tool
    def schedule_interview(candidate: str, interviewer: str, slot: str):
        if is_busy and slot in taken:
            return {"error": "CONFLICT"}
        return {"event": f"ev{s.k}", "slot": slot}

    @s.tool
    def book_room(event: str, room: str):
        if room not in free:
            raise AgentError(f"{room} is booked at that time.")
        return {"event": event, "room": room}

    @s.tool
    def send_invitation(event: str, to: str):
        if bounces:
            raise ValueError("550 5.1.1 mailbox unavailable")
        return "sent"

    with s.run("recruiter"):
        turns = talk(s)
        if s.pursue(
            turns,
            Want(
                schedule_interview,
                {"candidate": candidate, "interviewer": f"lead {s.rng.randint(1, 5)}", "slot": slot},
                [{"slot": chosen}] if is_busy and agrees else [{}],
                own=[{"slot": chosen}] if agrees else [],
            ),
        ):
            s.pursue(
                turns,
                Want(
                    book_room,
                    {"event": f"ev{s.k}", "room": room},
                    [{"room": each} for each in rooms],
                    own=[{"room": each} for each in s.rng.sample(rooms, 4)],
                    budget=5,
                ),
            )
            s.pursue(turns, Want(send_invitation, {"event": f"ev{s.k}", "to": f"candidate{s.k}@example.org"}))


@shape("trap", follows=True)
def shop_customer_choices(s):
    """e-commerce: sold-out sizes, vouchers that do not fit, declined cards; the customer decides each time"""
    sku = f"{s.rng.choice(['shirt', 'parka', 'boots', 'jeans'])}-{s.rng.randint(10, 40)}"
    colours = s.rng.sample(["black", "blue", "green", "sand"], 2)
    size = pick(s, (5, "M"), (3, "L"), (2, "S"))
    choice = pick(s, (5, {"colour": colours[1]}), (4, {"size": {"S": "M", "M": "L", "L": "XL"}[size]}), (2, None))
    is_out = s.often("sold out", 0.45)
    code = s.rng.choice(["SPRING15", "SPRING15", "FRIENDS20"])
    is_refused, second = (
        s.often("refused", 0.5),
        pick(s, (4, "WELCOME10"), (2, f"BDAY{s.rng.randint(100, 999)}"), (4, None)),
    )
    is_new = s.often("new customer", 0.5)
    is_declined, pays = s.often("declined", 0.3), pick(s, (5, "paypal"), (3, "invoice"), (2, None))

    @s.tool
    def add_to_cart(sku: str, size: str, colour: str):
        if is_out and (size, colour) == (wanted["size"], wanted["colour"]):
            return {"error": "Out of stock."}
        return {"cart": [sku, size, colour]}

    @s.tool(effects="none")
    def ask_customer(question: str):
        return {"answer": choice}

    @s.tool(effects="idempotent")
    def apply_voucher(code: str):
        if is_refused and code not in (second, "WELCOME10" if is_new else second):
            raise ValueError("This voucher is not valid for your basket.")
        return {"code": code}

    @s.tool
    def check_out(method: str):
        if is_declined and method == "card":
            return {"error": "card_declined: do_not_honor"}
        return {"order": f"W{s.k}"}

    wanted = {"sku": sku, "size": size, "colour": colours[0]}
    asks = (
        [(ask_customer, {"question": "It is sold out. What would you like instead?"})],
        lambda got: got["answer"] or {},
    )
    with s.run("shop-assistant"):
        turns = talk(s)
        if s.pursue(
            turns,
            Want(
                add_to_cart,
                wanted,
                [choice] if is_out and choice else [{}],
                own=[asks if s.often("asks", 0.6) else choice] if choice else [],
                pre=("ask_customer",),
                how={"ask_customer": {"question": "What would you like instead?"}},
                use=lambda got: got["answer"] or {},
            ),
        ):
            if s.often("has a voucher", 0.6):
                s.pursue(
                    turns,
                    Want(
                        apply_voucher,
                        {"code": code},
                        [{"code": second}] if is_refused and second else [{}],
                        own=[{"code": second}] if second else [],
                    ),
                )
            s.pursue(
                turns,
                Want(
                    check_out,
                    {"method": "card"},
                    [{"method": pays}] if is_declined and pays else [{}],
                    own=[{"method": pays}] if pays else [],
                ),
            )


@shape("trap")
def legal_citations(s):
    """legal research: cited opinions are fetched together, some are missing; an empty search is widened at will"""
    cited = [
        f"{s.rng.randint(100, 599)} {s.rng.choice(['U.S.', 'F.3d', 'F. Supp. 2d'])} {s.rng.randint(1, 990)}"
        for _ in range(4)
    ]
    missing = {each for each in cited if s.rng.random() < 0.2}
    query = s.rng.choice(["duty to mitigate", "forum non conveniens", "implied warranty", "laches", "trade dress"])
    court = s.rng.choice(["ca2", "ca9", "nysd", "cand"])
    is_empty = s.often("empty", 0.5)
    wider = pick(s, (5, {"court": "all"}), (3, {"year_from": 1990}), (2, {"court": "scotus"}))
    widens = s.often("widens", 0.75)

    @s.tool(effects="none")
    async def fetch_opinion(citation: str):
        await asyncio.sleep(0)
        if citation in missing:
            raise LookupError(f"404: no opinion is published at {citation}")
        if s.chance("throttled", 0.06):
            raise ConnectionError("429 Too Many Requests")
        return {"citation": citation, "pages": len(citation)}

    @s.tool(effects="none")
    async def search_cases(query: str, court: str, year_from: int = 2015):
        if is_empty and (court, year_from) == (asked["court"], 2015):
            raise LookupError("0 results")
        return {"count": 3, "court": court}

    async def fetch(want):
        for _ in range(2):
            try:
                return await s.ado(want, **want.first)
            except LookupError:
                return None  # listed as missing in the memo
            except ConnectionError:
                await asyncio.sleep(0)
        return None

    async def work(search, opinions):
        await asyncio.gather(*(fetch(each) for each in opinions))
        try:
            await s.ado(search, **search.first)
        except LookupError:
            if widens:
                await s.ado(search, **{**search.first, **wider})

    asked = {"query": query, "court": court}
    with s.run("paralegal"):
        opinions = [Want(fetch_opinion, {"citation": each}, retry=each not in missing) for each in dict.fromkeys(cited)]
        search = Want(search_cases, asked, [wider] if is_empty and widens else [{}])
        s.wants.extend([*opinions, search])
        asyncio.run(work(search, opinions))
        for each in s.wants:
            s.lose(each)
