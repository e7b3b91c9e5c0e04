"""Batch A: 24 ordinary programs of 24 domains, written with only the README and the harness in view.

12 lessons (a real correction), 8 traps (looks like one, is none), 4 plain. `right` is what the user of that run wants.
"""
import asyncio
import time

from kit import GONE, Want, shape, sleep
from mulligan import AgentError


def chat(s, limit=16):
    s.open_turns.append(iter(s.m.turns(limit=limit)))
    return s.open_turns[-1]


# 1-12: a real correction is there to be learned


@shape("lesson", follows=True)
def travel_cabin_letters(s):
    """travel: fares are asked with the airline's one-letter booking class; the model uses the traveller's words (several
    words for the same class). An airport is looked up before, a hotel search comes after; both just work."""
    letters = {"business": "C", "Business Class": "C", "premium": "W", "premium economy": "W", "economy": "Y", "coach": "Y"}

    @s.tool(effects="none")
    def airport_of(city: str):
        return {"city": city, "iata": city[:3].upper()}

    @s.tool(effects="none")
    def search_fares(origin: str, destination: str, cabin: str, adults: int = 1):
        if cabin not in ("F", "C", "W", "Y"):
            raise ValueError(f"invalid cabin '{cabin}', expected one of F, C, W, Y")
        return [{"fare": 120 + 7 * adults, "cabin": cabin}]

    @s.tool(effects="none")
    def search_hotels(city: str, nights: int):
        return [{"hotel": f"{city} Central", "price": 90 * nights}]

    city = ["Lisbon", "Vienna", "Athens", "Dublin", "Riga", "Seville"][s.rng.randrange(6)]
    word = s.rng.choice(list(letters))
    adults = s.rng.randint(1, 4)
    knows = s.often("knows", .7)
    half = s.often("half", .4)
    with s.run("travel-desk"):
        turns = chat(s, 20)
        s.ask(next(turns), None, airport_of, {"city": city})
        s.pursue(turns, Want(
            search_fares, {"origin": "FRA", "destination": city[:3].upper(), "cabin": word, "adults": adults},
            [{"cabin": letters[word]}],
            own=([{"cabin": word.upper()}] if half else []) + ([{"cabin": letters[word]}] if knows else []),
            lesson=f"cabin {word} is {letters[word]}"))
        s.pursue(turns, Want(search_hotels, {"city": city, "nights": s.rng.randint(1, 6)}))


@shape("lesson", follows=True)
def pharmacy_article_number(s):
    """pharmacy: article numbers are eight digits with leading zeros; customers read them off the box as 'PZN-1234567'.
    The number is another one in each run, only the form repeats. Interactions are looked up by name and always work."""

    @s.tool(effects="none")
    def interactions(drug: str, other: str):
        return {"pair": [drug, other], "severity": "minor"}

    @s.tool(effects="none")
    def stock_level(branch: str, article: str):
        if not (len(article) == 8 and article.isdigit()):
            return {"error": "article number not recognised"}
        return {"branch": branch, "article": article, "packs": int(article) % 9}

    number = s.rng.randint(1_000_000, 9_999_999)
    knows = s.often("knows", .8)
    with s.run("pharmacist"):
        turns = chat(s)
        if s.often("asks", .5):
            s.pursue(turns, Want(interactions, {"drug": "ibuprofen", "other": s.rng.choice(["aspirin", "lithium", "warfarin"])}))
        s.pursue(turns, Want(
            stock_level, {"branch": s.rng.choice(["north", "station", "market"]), "article": f"PZN-{number}"},
            [{"article": f"{number:08}"}],
            own=[{"article": str(number)}, {"article": f"{number:08}"}] if knows else [{"article": str(number)}],
            lesson="eight digits, zero padded"))


@shape("lesson", follows=True)
def farm_ration_in_grams(s):
    """farm: rations are in grams, the farmer speaks of kilograms for big animals and of grams for hens. Same tool, first a
    hen (works at once), then a cow or goat (the number must be a thousand times larger, another number each run)."""

    @s.tool
    def mix_ration(pen: str, species: str, amount: float):
        least = {"cow": 5000, "goat": 500, "hen": 50}[species]
        if amount < least:
            raise AgentError(f"Ration of {amount:g} is implausible for species {species}, nothing was mixed.")
        return {"pen": pen, "mixed": amount}

    @s.tool(effects="none")
    def silo_level(silo: int):
        return {"silo": silo, "percent": 40 + silo}

    species = s.rng.choice(["cow", "cow", "goat"])
    kilos = s.rng.randint(12, 28) / 2 if species == "cow" else s.rng.randint(2, 5) / 2
    knows = s.often("knows", .75)
    with s.run("feeding"):
        turns = chat(s)
        s.pursue(turns, Want(mix_ration, {"pen": "coop", "species": "hen", "amount": float(s.rng.randint(100, 140))}))
        s.ask(next(turns), None, silo_level, {"silo": s.k % 4})
        s.pursue(turns, Want(
            mix_ration, {"pen": f"{species}-{s.rng.randint(1, 6)}", "species": species, "amount": kilos},
            [{"amount": kilos * 1000}],
            own=[{"amount": kilos * 1000}] if knows else [], lesson="grams, not kilograms"))


@shape("lesson", follows=True)
def court_duty_chamber(s):
    """court: hearing slots are asked of the chamber on duty; which one is on the day's roster (a call without arguments).
    The model's instructions still name K2, which is right on some days."""
    on_duty = f"K{1 + s.day % 5}"

    @s.tool(effects="none")
    def case_summary(case: str):
        return {"case": case, "parties": 2}

    @s.tool(effects="none")
    def hearing_slots(case: str, chamber: str):
        if chamber != on_duty:
            raise LookupError(f"chamber {chamber} is not sitting")
        return ["09:00", "10:30"]

    @s.tool(effects="none")
    def roster_today():
        return {"date": f"2025-03-{1 + s.day:02}", "duty": {"chamber": on_duty, "clerk": "Ms Holt"}}

    case = f"{s.rng.randint(100, 999)} C {s.rng.randint(10, 99)}/25"
    knows = s.often("knows", .6)
    with s.run("registry"):
        turns = chat(s)
        s.pursue(turns, Want(case_summary, {"case": case}))
        s.pursue(turns, Want(
            hearing_slots, {"case": case, "chamber": "K2"}, [{"chamber": on_duty}],
            own=[([(roster_today, {})], lambda got: {"chamber": got["duty"]["chamber"]})] if knows else [],
            pre=("roster_today",), how={"roster_today": {}}, use=lambda got: {"chamber": got["duty"]["chamber"]},
            lesson="chamber from roster_today"))


@shape("lesson", follows=False)
def warehouse_lines_per_zone(s):
    """warehouse: a pick list has an upper limit of lines, 20 in the cold store and 80 elsewhere; the picker wants as many as
    possible. The model asks for 100, then guesses 60."""
    cap = {"cold": 20, "dry": 80, "bulk": 80}

    @s.tool(effects="none")
    def pick_list(zone: str, lines: int, wave: str):
        if lines > cap[zone]:
            return {"error": "pick list too long for this zone"}
        return {"zone": zone, "lines": lines}

    knows = s.often("knows", .7)
    with s.run("picker"):
        turns = chat(s, 24)
        for zone in s.rng.sample(["cold", "dry", "bulk"], s.rng.randint(1, 2)):
            s.pursue(turns, Want(
                pick_list, {"zone": zone, "lines": 100, "wave": f"W{s.k:03}"},
                lambda a, zone=zone: a["zone"] == zone and cap[zone] / 2 <= a["lines"] <= cap[zone],
                own=[{"lines": 60}, {"lines": cap[zone]}] if knows else [], lesson=f"at most {cap[zone]} in {zone}"))
        s.pursue(turns, Want(pick_list, {"zone": "dry", "lines": s.rng.randint(3, 12), "wave": "rush"}))


@shape("lesson", follows=True)
def radio_open_log_first(s):
    """radio station: a playlist can be published only when the day's broadcast log is open; in a third of the runs an
    editor has opened it already. Tracks are looked up in between and have nothing to do with it."""
    date = f"2025-04-{1 + s.day:02}"
    state = {"open": s.often("already", .3)}

    @s.tool(effects="none")
    def find_track(title: str):
        return {"title": title, "seconds": 180 + len(title)}

    @s.tool
    def publish_playlist(slot: str, titles: list[str]):
        if not state["open"]:
            raise RuntimeError("Cannot publish: broadcast log missing")
        return {"slot": slot, "published": len(titles)}

    @s.tool(effects="idempotent")
    def open_log(date: str):
        state["open"] = True
        return {"log": date}

    titles = s.rng.sample(["Blue Hour", "Tin Roof", "Harbour", "Late Bus", "Paper Sun", "Low Tide"], 3)
    knows, detour = s.often("knows", .65), s.often("detour", .4)
    with s.run("music-editor"):
        turns = chat(s, 20)
        for title in titles[:s.rng.randint(1, 3)]:
            s.ask(next(turns), None, find_track, {"title": title})
        s.pursue(turns, Want(
            publish_playlist, {"slot": f"{s.rng.randint(5, 22):02}:00", "titles": titles},
            own=([([(find_track, {"title": titles[0]})], None)] if detour else []) + ([([(open_log, {"date": date})], None)] if knows else []),
            pre=("open_log",), how={"open_log": {"date": date}}, lesson="open_log first"))


@shape("lesson", follows=True)
def insurance_broker_channel(s):
    """insurance: policies sold by brokers (numbers that start with B) are quoted on the broker channel; all others on the
    direct one. Each run quotes two to four policies with the same tool."""

    @s.tool(effects="none")
    def renewal_quote(policy: str, channel: str, year: int = 2026):
        if (policy[0] == "B") != (channel == "broker"):
            raise AgentError("Policy is not serviced here.", hint="Check how the policy was sold.")
        return {"policy": policy, "premium": 300 + int(policy[2:]) % 90}

    with s.run("renewals"):
        turns = chat(s, 24)
        for n in range(s.rng.randint(2, 4)):
            broker = s.rng.random() < .35
            policy = f"{'B' if broker else 'D'}-{s.rng.randint(10_000, 99_999)}"
            first = {"policy": policy, "channel": "direct"}
            if broker:
                own = [{"channel": "broker"}] if s.often(f"knows{n}", .75) else []
                s.pursue(turns, Want(renewal_quote, first, [{"channel": "broker"}], own=own, lesson="broker channel for B policies"))
            else:
                s.pursue(turns, Want(renewal_quote, first))


@shape("lesson", follows=False)
def sports_weekend_tariff(s):
    """sports club: on Saturdays and Sundays courts are booked with the peak tariff, on other days with the standard one. The
    model has only ever heard of the standard one; it first thinks of the guest tariff."""

    @s.tool
    def book_court(member: int, court: int, weekday: str, hour: int, tariff: str = "standard"):
        weekend = weekday in ("sat", "sun")
        if tariff not in ("standard", "peak", "guest"):
            raise KeyError(tariff)
        if tariff == "guest" or weekend != (tariff == "peak"):
            raise ValueError(f"Tariff not valid for {weekday}")
        return {"court": court, "at": f"{weekday} {hour}:00"}

    member = s.rng.randint(200, 900)
    knows = s.often("knows", .7)
    with s.run("club-desk"):
        turns = chat(s, 20)
        plan = ["tue", "sat", "sun", "thu", "sat", "fri"]
        for weekday in s.rng.sample(plan, s.rng.randint(1, 3)):
            first = {"member": member, "court": s.rng.randint(1, 5), "weekday": weekday, "hour": s.rng.randint(8, 20), "tariff": "standard"}
            if weekday in ("sat", "sun"):
                s.pursue(turns, Want(book_court, first, [{"tariff": "peak"}], lesson="peak at the weekend",
                                     own=[{"tariff": "guest"}, {"tariff": "peak"}] if knows else []))
            else:
                s.pursue(turns, Want(book_court, first))


@shape("lesson", follows=True)
def museum_room_is_gallery(s):
    """museum: the catalogue's filter `room` was renamed to `gallery`; searches without a filter work as ever"""

    @s.tool(effects="none")
    def search_objects(query: str, room: str | None = None, gallery: str | None = None, limit: int = 10):
        if room is not None:
            raise ValueError("Unsupported filter: room (catalogue API v4)")
        return [f"{query} in {gallery or 'all'}"][:limit]

    @s.tool(effects="none")
    def object_label(number: str):
        return f"{number}: oil on canvas"

    query = s.rng.choice(["amphora", "icon", "astrolabe", "mask", "tapestry"])
    where = s.rng.choice(["East 1", "East 2", "Rotunda", "Crypt"])
    knows = s.often("knows", .6)
    with s.run("museum-guide"):
        turns = chat(s)
        if s.often("wide", .5):
            s.pursue(turns, Want(search_objects, {"query": query}))
        s.pursue(turns, Want(
            search_objects, {"query": query, "room": where}, [{"room": GONE, "gallery": where}],
            own=[{"room": GONE, "gallery": where}] if knows else [], lesson="gallery instead of room"))
        s.pursue(turns, Want(object_label, {"number": f"{1900 + s.k}.{s.rng.randint(1, 99)}"}))


@shape("lesson", follows=False)
def lab_shortest_incubation(s):
    """laboratory: users want the shortest incubation that the protocol allows, which is 15 minutes; the model starts with
    less, half-knows (12), then says 15. Plates are read before and after."""

    @s.tool(effects="none")
    def read_plate(plate: str):
        return {"plate": plate, "od": .42}

    @s.tool
    def start_incubation(plate: str, minutes: int, celsius: int = 37):
        if minutes < 15:
            raise AgentError("Incubation time below protocol minimum, incubator not started.")
        return {"plate": plate, "ready_in": minutes}

    plate = f"P{s.rng.randint(100, 999)}"
    knows, half = s.often("knows", .8), s.often("half", .5)
    with s.run("bench"):
        turns = chat(s)
        s.ask(next(turns), None, read_plate, {"plate": plate})
        s.pursue(turns, Want(
            start_incubation, {"plate": plate, "minutes": s.rng.choice([5, 8, 10])},
            lambda a, plate=plate: a["plate"] == plate and 15 <= a["minutes"] <= 20 and a["celsius"] == 37,
            own=([{"minutes": 12}] if half else []) + ([{"minutes": 15}] if knows else []), lesson="at least 15 minutes"))
        s.ask(next(turns), None, read_plate, {"plate": plate})


@shape("lesson", follows=True)
def devops_strategy_word(s):
    """devops: a rollout without downtime is called 'rolling' here; models say blue-green, rolling-update, zero-downtime and so
    on. The same run also makes a canary rollout of another service on somebody's explicit wish, which works at once."""

    @s.tool(effects="none")
    def service_status(service: str):
        return {"service": service, "healthy": True}

    @s.tool(effects="idempotent")
    def rollout(service: str, version: str, strategy: str):
        if strategy not in ("rolling", "canary", "recreate"):
            return {"error": f"admission webhook denied the request: strategy \"{strategy}\""}
        return {"service": service, "version": version}

    services = s.rng.sample(["cart", "search", "billing", "mail", "login"], 2)
    version = f"1.{s.k}.{s.rng.randint(0, 9)}"
    word = s.rng.choice(["blue-green", "rolling-update", "RollingUpdate", "zero-downtime", "bluegreen"])
    knows, half = s.often("knows", .8), s.often("half", .3)
    with s.run("release-bot"):
        turns = chat(s, 20)
        s.ask(next(turns), None, service_status, {"service": services[0]})
        if s.often("canary", .5):
            s.pursue(turns, Want(rollout, {"service": services[1], "version": version, "strategy": "canary"}))
        s.pursue(turns, Want(
            rollout, {"service": services[0], "version": version, "strategy": word}, [{"strategy": "rolling"}],
            own=([{"strategy": "rollingUpdate"}] if half else []) + ([{"strategy": "rolling"}] if knows else []),
            lesson="strategy is rolling"))
        s.ask(next(turns), None, service_status, {"service": services[0]})


@shape("lesson", follows=False)
def newspaper_publish_time(s):
    """newspaper: publishing times are full UTC timestamps with T and Z; the model writes them with a blank, then with T only.
    The desk's own articles come with the right form and are scheduled with the same tool before."""

    @s.tool
    def schedule_article(slug: str, at: str, desk: str = "news"):
        if not (len(at) == 20 and at[10] == "T" and at[-1] == "Z"):
            raise RuntimeError(f"400 Bad Request: field at: could not parse '{at}'")
        return {"slug": slug, "at": at}

    def clock():
        return f"2025-05-{1 + s.day:02}", f"{s.rng.randint(5, 22):02}:{s.rng.choice(['00', '15', '30', '45'])}"

    knows = s.often("knows", .75)
    with s.run("night-desk"):
        turns = chat(s, 20)
        for n in range(s.rng.randint(0, 2)):
            day, hour = clock()
            s.pursue(turns, Want(schedule_article, {"slug": f"wire-{s.k}-{n}", "at": f"{day}T{hour}:00Z"}))
        day, hour = clock()
        s.pursue(turns, Want(
            schedule_article, {"slug": f"op-ed-{s.rng.randint(1, 400)}", "at": f"{day} {hour}", "desk": "opinion"},
            [{"at": f"{day}T{hour}:00Z"}],
            own=[{"at": f"{day}T{hour}"}, {"at": f"{day}T{hour}:00Z"}] if knows else [], lesson="YYYY-MM-DDTHH:MM:SSZ"))


# 13-20: looks like a correction and is none


@shape("trap", follows=True)
def estate_second_slot(s):
    """real estate: Friday evening is often taken; each client has a second choice of their own. Many choose Saturday at 11,
    but not all, and nobody is booked into a slot they did not choose."""
    taken = {"fri-17"} if s.often("taken", .7) else set()

    @s.tool(effects="none")
    def flat_details(flat: int):
        return {"flat": flat, "rooms": 1 + flat % 4}

    @s.tool
    def book_viewing(flat: int, client: str, slot: str):
        if slot in taken:
            raise AgentError("Sorry, this slot has just been taken.")
        return {"flat": flat, "slot": slot}

    flat, client = s.rng.randint(1, 40), s.rng.choice(["Abel", "Bianchi", "Costa", "Dunn", "Egger", "Fox"])
    second = s.rng.choice(["sat-11", "sat-11", "sat-11", "mon-09", "thu-18"])
    with s.run("viewings") as run:
        turns = chat(s)
        s.ask(next(turns), None, flat_details, {"flat": flat})
        s.pursue(turns, Want(book_viewing, {"flat": flat, "client": client, "slot": "fri-17"}, [{}, {"slot": second}], own=[{"slot": second}]))
        if taken:
            run.is_true("recovered", "partial")


@shape("trap", follows=False)
def hr_offers_down_the_list(s):
    """HR: offers go out for a list of candidates; a frozen requisition is skipped and the next candidate is served. The next
    one's success says nothing about the one before."""
    frozen = set(s.rng.sample(["Ito", "Jansen", "Khan", "Lopez", "Meyer", "Novak", "Okoro", "Petit"], 2))

    @s.tool
    def send_offer(candidate: str, grade: int):
        if candidate in frozen:
            raise ValueError("Requisition is frozen")
        return {"candidate": candidate, "sent": True}

    with s.run("recruiting"):
        turns = chat(s, 20)
        for candidate in s.rng.sample(["Ito", "Jansen", "Khan", "Lopez", "Meyer", "Novak", "Okoro", "Petit"], s.rng.randint(3, 5)):
            s.pursue(turns, Want(send_offer, {"candidate": candidate, "grade": s.rng.randint(4, 8)}))


@shape("trap", follows=True)
def shipping_gate_shift_change(s):
    """shipping: the terminal's gate takes no bookings during a shift change of a minute or two. Models read the port's news in
    between, and by then it works: because time has passed, not because of the news."""
    until = time.time() + (75 if s.often("shift", .6) else -1)

    @s.tool(effects="none")
    def port_news(port: str):
        return [f"{port}: crane 4 back in service"]

    @s.tool
    def book_gate(container: str, port: str, hour: int):
        if time.time() < until:
            raise RuntimeError("gate not accepting appointments")
        return {"container": container, "hour": hour}

    port = s.rng.choice(["Rotterdam", "Gdansk", "Genoa"])
    container = f"MSKU{s.rng.randint(10**6, 10**7 - 1)}"

    def wait(got=None):
        sleep(100)
        return {}

    news = [(port_news, {"port": port})]
    way = s.rng.random()
    if way < .55:
        own = [(news, wait)]
    elif way < .8:
        own = [(news, None), lambda asked: wait() or asked]
    else:
        own = [lambda asked: wait() or asked]
    with s.run("forwarder"):
        s.pursue(chat(s), Want(book_gate, {"container": container, "port": port, "hour": s.rng.randint(6, 21)}, own=own, retry=True))


@shape("trap", follows=True)
def bank_payee_name_check(s):
    """bank back office: a payee's name does not match the account. The client is asked; some consent to go on without the
    check, others do not. Without this client's consent, nobody switches the check off."""
    consent = {"given": False}
    mismatch, would = s.often("mismatch", .7), s.often("would", .65)

    @s.tool(effects="none")
    def balance(account: str):
        return {"account": account, "eur": 5000}

    @s.tool
    def transfer(account: str, payee: str, eur: float, check_name: bool = True):
        if check_name and mismatch:
            raise AgentError(f"Name of payee {payee} does not match the account holder.")
        return {"payee": payee, "eur": eur}

    @s.tool(effects="none")
    def ask_client(account: str, question: str):
        consent["given"] = would
        return {"answer": "yes, go ahead" if would else "no, stop"}

    account = f"DE{s.rng.randint(10, 99)}-{s.rng.randint(1000, 9999)}"
    first = {"account": account, "payee": s.rng.choice(["Roth KG", "Nilsson AB", "Tanaka", "Baker & Son"]), "eur": float(s.rng.randint(20, 900))}
    ask = [(ask_client, {"account": account, "question": "The name differs. Pay anyway?"})]

    def right(args):
        same = all(args[key] == value for key, value in first.items())
        return same and (not mismatch if args["check_name"] else consent["given"])

    class Stop(Exception):
        pass

    def decide(got):
        if not got["answer"].startswith("yes"):
            raise Stop
        return {"check_name": False}

    with s.run("payments"):
        turns = chat(s)
        s.ask(next(turns), None, balance, {"account": account})
        want = Want(transfer, first, right, own=[(ask, decide)], fine="ask_client")
        try:
            s.pursue(turns, want)
        except Stop:
            s.lose(want)


@shape("trap", follows=True)
def police_plate_in_many_regions(s):
    """police: some plates exist in several regions; the officer who asks means one of them, mostly but not always the north.
    Other plates of the same run are unique."""
    many = s.often("many", .7)

    @s.tool(effects="none")
    def vehicle_by_plate(plate: str, region: str | None = None):
        if region is None and plate.startswith("ZZ"):
            raise LookupError(f"ambiguous: {plate} is registered more than once")
        return {"plate": plate, "region": region, "colour": "grey"}

    region = s.rng.choice(["north", "north", "north", "south", "east", "west"])
    with s.run("dispatch"):
        turns = chat(s)
        s.pursue(turns, Want(vehicle_by_plate, {"plate": f"AK {s.rng.randint(100, 999)}"}))
        if many:
            s.pursue(turns, Want(vehicle_by_plate, {"plate": f"ZZ {s.rng.randint(1, 8)}"}, [{"region": region}], own=[{"region": region}]))
        s.pursue(turns, Want(vehicle_by_plate, {"plate": f"BT {s.rng.randint(100, 999)}"}))


@shape("trap", follows=True)
def church_receipt_of_member(s):
    """church office: the model starts with the number of its instructions' example; the member then gives their own number.
    Somebody else's number works as well and gives somebody else's receipt."""
    members = ["M-2044", "M-2071", "M-2107", "M-2210"]

    @s.tool(effects="none")
    def donation_receipt(member: str, year: int):
        if member not in members:
            raise KeyError(member)
        return {"member": member, "year": year, "eur": 10 * int(member[-2:])}

    @s.tool(effects="none")
    def service_times(sunday: str):
        return ["09:30", "11:00"]

    mine = s.rng.choice([*members, "M-2044", "M-2044"])
    year = s.rng.choice([2023, 2024])
    example = s.often("example", .8)
    with s.run("parish"):
        turns = chat(s)
        s.pursue(turns, Want(donation_receipt, {"member": "M-1000" if example else mine, "year": year}, [{"member": mine}], own=[{"member": mine}]))
        if s.often("times", .4):
            s.ask(next(turns), None, service_times, {"sunday": f"2025-06-{1 + s.day:02}"})


@shape("trap", follows=True)
def kitchen_not_enough_left(s):
    """kitchen: the wholesaler has less than the chef wants. Some chefs take what is left, some take another ingredient in full,
    some order nothing; the error's number is a stock level, not a rule."""
    left = s.rng.randint(4, 9)
    item = s.rng.choice(["turbot", "morels", "asparagus"])
    other = {"turbot": "cod", "morels": "chanterelles", "asparagus": "beans"}[item]

    @s.tool
    def order(item: str, kg: int, deliver: str = "morning"):
        if item in ("turbot", "morels", "asparagus") and kg > left:
            raise AgentError(f"Only {left} kg of {item} left.")
        return {"item": item, "kg": kg}

    need = s.rng.choice([left + 3, left + 6, 12, 3])
    plan = s.rng.choice(["take", "swap", "swap", "none"])
    right = {"take": [{"kg": left}], "swap": [{"item": other}], "none": []}[plan] if need > left else [{}]
    with s.run("chef") as run:
        turns = chat(s)
        s.pursue(turns, Want(order, {"item": "butter", "kg": s.rng.randint(5, 20)}))
        if s.pursue(turns, Want(order, {"item": item, "kg": need}, right, own=right if need > left else [])) and need > left:
            run.is_true("recovered", "partial")
        s.pursue(turns, Want(order, {"item": "flour", "kg": 25, "deliver": "evening"}))


@shape("trap", follows=False)
def games_next_lobby(s):
    """games: a lobby is full; players without friends there take the next one of the list that has room (today), players who
    want to join friends do not."""
    names = ["alpha", "bravo", "delta", "echo", "gamma"]
    full = {name for name in names if s.rng.random() < {"alpha": .7, "delta": .15}.get(name, .4)}

    @s.tool(effects="none")
    def list_lobbies(mode: str):
        return names

    @s.tool
    def join_lobby(player: str, lobby: str):
        if lobby in full:
            return {"error": "lobby_full"}
        return {"player": player, "lobby": lobby}

    friends = s.often("friends", .3)
    player = f"p{s.rng.randint(100, 999)}"
    right = [{}] if friends else (lambda a: a["player"] == player and a["lobby"] not in full)
    with s.run("matchmaker") as run:
        turns = chat(s)
        s.ask(next(turns), None, list_lobbies, {"mode": "duel"})
        want = Want(join_lobby, {"player": player, "lobby": "alpha"}, right, budget=5,
                    own=[] if friends else [{"lobby": name} for name in s.rng.sample(names[1:], 4)])
        if s.pursue(turns, want) and want.failed:
            run.is_true("recovered", "partial")


# 21-24: plain, nothing to learn


@shape("plain", follows=False)
def school_upload_marks(s):
    """school: a program uploads the marks of a class; pupils who left the course are refused, the loop goes on"""
    gone = {f"pupil-{n}" for n in range(12) if s.chance("gone", .12)}

    @s.tool(effects="idempotent")
    def upload_mark(pupil: str, subject: str, mark: int):
        if pupil in gone:
            raise ValueError(f"{pupil} is not enrolled in {subject}")
        return "stored"

    subject = s.rng.choice(["maths", "latin", "biology"])
    with s.run("marks"):
        for n in s.rng.sample(range(12), 6):
            want = Want(upload_mark, {"pupil": f"pupil-{n}", "subject": subject, "mark": s.rng.randint(1, 6)})
            s.wants.append(want)
            try:
                s.do(want, **want.first)
            except ValueError:
                s.lose(want)


@shape("plain", follows=False)
def energy_poll_meters(s):
    """energy grid: six meters are polled at the same time; a worker reads again up to three times after an empty frame"""

    @s.tool(effects="none")
    async def read_meter(meter: int, register: str):
        await asyncio.sleep(0)
        if s.chance(f"empty{meter}", .2):
            raise RuntimeError(f"meter {meter}: empty frame")
        return {"meter": meter, "kwh": 1000 + meter}

    async def worker(want):
        for _ in range(3):
            try:
                return await s.ado(want, **want.first)
            except RuntimeError:
                sleep(5)
        s.lose(want)

    async def poll():
        wants = [Want(read_meter, {"meter": meter, "register": "1.8.0"}, retry=True) for meter in s.rng.sample(range(30), 6)]
        s.wants.extend(wants)
        await asyncio.gather(*(worker(want) for want in wants))

    with s.run("grid-poller"):
        asyncio.run(poll())


@shape("plain", follows=True)
def music_pages_until_end(s):
    """music: a model reads a label's tracks page by page until there is no further page; that last refusal is how it ends"""
    pages = s.rng.randint(1, 5)

    @s.tool(effects="none")
    def label_tracks(label: str, page: int):
        if page > pages:
            raise LookupError("no more results")
        return [f"{label} {page}-{n}" for n in range(3)]

    label = s.rng.choice(["Northlight", "Velvet", "Copper Owl"])
    with s.run("cataloguer", "success", "partial"):
        turns = chat(s)
        for page in range(1, pages + 1):
            s.pursue(turns, Want(label_tracks, {"label": label, "page": page}))
        s.ask(next(turns), None, label_tracks, {"label": label, "page": pages + 1})


@shape("plain", follows=True)
def tax_gateway_retries(s):
    """tax: the authority's gateway answers 503 now and then; the program waits and sends the same query again"""
    bad = {"left": s.rng.choice([0, 0, 1, 1, 2])}

    @s.tool(effects="none")
    def assessment_status(taxpayer: str, year: int):
        if bad["left"]:
            bad["left"] -= 1
            raise RuntimeError("HTTP 503 from gateway")
        return {"taxpayer": taxpayer, "year": year, "status": "open"}

    with s.run("tax-office"):
        for year in (2022, 2023, 2024)[:s.rng.randint(1, 3)]:
            want = Want(assessment_status, {"taxpayer": f"{s.rng.randint(10, 99)}/{s.rng.randint(100, 999)}", "year": year}, retry=True)
            s.wants.append(want)
            for _ in range(4):
                try:
                    s.do(want, **want.first)
                    break
                except RuntimeError:
                    sleep(20)
            else:
                s.lose(want)
