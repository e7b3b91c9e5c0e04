"""Twenty-four small agents of ordinary trades, written from the README and the notation alone.

12 with a real correction, 8 traps, 4 plain. Everything that a user wants in a run is stated before the run.
"""
from kit import GONE, Want, shape, sleep
from mulligan import AgentError


def chat(s, limit=16):
    s.open_turns.append(iter(s.m.turns(limit=limit)))
    return s.open_turns[-1]


class NotOnFile(Exception):
    pass


class InterlockError(RuntimeError):
    pass


class LoanDesk(Exception):
    pass


NEVER = lambda args: False  # noqa: E731  (nothing that this tool could return is what the user wants)


# 1-12: a real correction


@shape("lesson", follows=True)
def choir_parts(s):
    """a choir's sheet music is filed by part: mezzo is S2 here and baritone B1; some models print the altos' part instead"""
    filed = {"S1", "S2", "A1", "A2", "T1", "T2", "B1", "B2"}

    @s.tool
    def print_part(piece: str, voice: str, copies: int):
        if voice not in filed:
            return {"error": "there is no such part in the folder"}
        return {"printed": copies, "tray": 2}

    @s.tool(effects="none")
    def programme(concert: str):
        return ["Locus iste", "Warum toset", "Abendlied"]

    piece = s.rng.choice(["Locus iste", "Abendlied", "O magnum mysterium", "Ubi caritas", "Sicut cervus"])
    said, part, near = s.rng.choice([("mezzo", "S2", "A1"), ("mezzo", "S2", "A1"), ("baritone", "B1", "T2")])
    own = [{"voice": part}] if s.often("knows", .7) else [{"voice": near}] if s.often("near", .25) else [{"voice": said.upper()}]
    turns = chat(s)
    with s.run("librarian-of-the-choir"):
        s.ask(next(turns), None, programme, {"concert": f"advent {s.k % 3}"})
        s.pursue(turns, Want(print_part, {"piece": piece, "voice": "S1", "copies": 8 + s.k % 5}))
        s.pursue(turns, Want(print_part, {"piece": piece, "voice": said, "copies": 3 + s.k % 4}, [{"voice": part}], own=own,
                             lesson=f"{said} is {part}"))
        if s.k % 2:
            s.pursue(turns, Want(print_part, {"piece": piece, "voice": "T1", "copies": 5}))


@shape("lesson", follows=True)
def ward_blood_tests(s):
    """laboratory orders of a ward: without an open encounter of the patient the laboratory takes nothing"""
    patient = f"P{s.rng.randint(10_000, 99_999)}"
    ward = s.rng.choice(["3A", "3B", "ICU", "5C"])
    admitted = s.often("admitted", .35)
    encounters = {patient} if admitted else set()

    @s.tool
    def order_blood_test(patient: str, panel: str, tube: str):
        if patient not in encounters:
            raise RuntimeError("Order not accepted, nothing is open.")
        return {"order": s.rng.randint(1000, 9999), "panel": panel}

    @s.tool(effects="idempotent")
    def open_encounter(patient: str, ward: str):
        encounters.add(patient)
        return {"encounter": f"E-{patient}"}

    @s.tool(effects="none")
    def allergies(patient: str):
        return []

    opening = ([(open_encounter, {"patient": patient, "ward": ward})], None)
    other_tube = {"tube": "citrate"}  # half-knows: blames the tube first
    own = [opening] if s.often("knows", .6) else [other_tube, opening] if s.often("half", .5) else [other_tube]
    panel, tube = s.rng.choice([("CBC", "EDTA"), ("electrolytes", "heparin"), ("CRP", "serum")])
    turns = chat(s)
    with s.run("ward-clerk"):
        s.ask(next(turns), None, allergies, {"patient": patient})
        if s.pursue(turns, Want(
                order_blood_test, {"patient": patient, "panel": panel, "tube": tube}, own=own, pre=("open_encounter",),
                how={"open_encounter": {"patient": patient, "ward": ward}}, lesson=None if admitted else "open_encounter first")) and s.k % 3 == 0:
            s.pursue(turns, Want(order_blood_test, {"patient": patient, "panel": "lipids", "tube": "serum"}))


@shape("lesson", follows=True)
def railway_departures(s):
    """departure boards take the number of a station, travellers say its name: look it up first"""
    numbers = {name: 8_500_000 + 37 * n for n, name in enumerate(
        ["Olten", "Thun", "Visp", "Brig", "Spiez", "Chur", "Sargans", "Aarau", "Zug", "Arth", "Biel", "Sion", "Lenzburg", "Wil"])}
    ids = {str(each) for each in numbers.values()}

    @s.tool(effects="none")
    def departures(station: str, after: str):
        if station not in ids:
            raise LookupError("Location not resolved")
        return [{"train": "IC 8", "at": after}]

    @s.tool(effects="none")
    def find_station(text: str):
        return {"text": text, "id": str(numbers[text]), "platforms": 4}

    turns = chat(s)
    with s.run("travel-desk"):
        if s.k % 4 == 1:  # the model has the number from the ticket
            s.pursue(turns, Want(departures, {"station": str(numbers["Olten"]), "after": "07:30"}))
        for name in s.rng.sample(sorted(numbers), 1 + s.k % 2):
            got = lambda found: {"station": found["id"]}  # noqa: E731
            own = [([(find_station, {"text": name})], got)]
            if not s.often(f"knows {name}", .75):
                own = [{"station": f"{name} Bahnhof"}] + (own if s.often("half", .4) else [])
            s.pursue(turns, Want(
                departures, {"station": name, "after": f"{6 + s.k % 14:02}:{s.rng.choice(['00', '15', '40'])}"},
                [{"station": str(numbers[name])}], own=own, pre=("find_station",), how={"find_station": {"text": name}}, use=got,
                lesson="find_station first"))


@shape("lesson", follows=False)
def bakery_deck_oven(s):
    """the deck oven of a bakery: rye is baked with steam, everything else may go without"""

    @s.tool
    def start_bake(product: str, deck: int, minutes: int, steam: bool = False):
        if product.startswith("rye") and not steam:
            raise InterlockError("E-41 bake program refused by controller")
        return {"deck": deck, "until": minutes}

    deck = 1 + s.k % 4
    rye = s.rng.choice(["rye loaf", "rye roll", "rye loaf"])
    # the half-knowing baker's model first takes another deck, as if the deck were broken
    own = [{"steam": True}] if s.often("knows", .65) else [{"deck": deck % 4 + 1}, {"steam": True}] if s.often("half", .6) else []
    turns = chat(s)
    with s.run("night-baker"):
        s.pursue(turns, Want(start_bake, {"product": "croissant", "deck": deck % 4 + 1, "minutes": 17}))
        if s.k % 5 != 3:
            s.pursue(turns, Want(start_bake, {"product": rye, "deck": deck, "minutes": s.rng.choice([45, 50, 55])},
                                 [{"steam": True}], own=own, lesson="rye with steam"))
        s.pursue(turns, Want(start_bake, {"product": "brioche", "deck": deck, "minutes": 22, "steam": False}))


@shape("lesson", follows=True)
def telescope_exposures(s):
    """no frame over 300 s on this mount: a long exposure is taken as several frames, and their sum is what counts"""

    @s.tool
    def expose(target: str, seconds: int, frames: int = 1, band: str = "R"):
        if seconds > 300:
            raise ValueError("Tracking would drift, single exposure too long for this mount.")
        return {"file": f"{target}-{seconds * frames}.fits"}

    @s.tool(effects="none")
    def altitude(target: str):
        return 30 + s.k % 40

    target = s.rng.choice(["M33", "M51", "NGC 891", "M101", "NGC 7331"])
    total = s.rng.choice([600, 900, 900, 1200])
    band = s.rng.choice("RVB")
    split = {"seconds": 300, "frames": total // 300}
    own = [split] if s.often("knows", .65) else [{"seconds": 300}] if s.often("short", .3) else [{"seconds": 500}, split]
    turns = chat(s)
    with s.run("night-assistant"):
        s.ask(next(turns), None, altitude, {"target": target})
        s.pursue(turns, Want(expose, {"target": "focus star", "seconds": 10}))
        s.pursue(turns, Want(
            expose, {"target": target, "seconds": total, "frames": 1, "band": band},
            lambda a: a["target"] == target and a["band"] == band and a["seconds"] * a["frames"] == total,
            own=own, lesson=f"{total} s as frames of 300 s"))


@shape("lesson", follows=True)
def library_interloan(s):
    """interlibrary loan finds an ISBN only without hyphens; now and then the book is in no library at all"""
    d = [str(s.rng.randint(0, 9)) for _ in range(10)]
    plain = "978" + "".join(d)
    hyphens = f"978-{d[0]}-{''.join(d[1:4])}-{''.join(d[4:9])}-{d[9]}"
    nowhere = s.k % 11 == 5

    @s.tool(effects="none")
    def find_copy(isbn: str, region: str):
        if "-" in isbn or nowhere and isbn == plain:
            raise LoanDesk("0 hits in the union catalogue")
        return {"isbn": isbn, "library": "Uppsala"}

    region = s.rng.choice(["north", "south", "any"])
    own = [{"isbn": plain}] if s.often("knows", .75) else [{"region": "any"}]
    turns = chat(s)
    with s.run("loan-desk"):
        if s.k % 3 == 0:
            s.pursue(turns, Want(find_copy, {"isbn": f"97802{s.rng.randint(10**7, 10**8 - 1)}", "region": region}))
        s.pursue(turns, Want(find_copy, {"isbn": hyphens, "region": region}, [{"isbn": plain}], own=own,  # also where it finds nothing
                             lesson=None if nowhere else "without hyphens"))


@shape("lesson", follows=False)
def election_turnout(s):
    """postal votes are counted by municipality, votes at the booth by precinct; some models silently answer with the booth's"""

    @s.tool(effects="none")
    def turnout(district: str, ballot: str, level: str):
        if ballot == "postal" and level == "precinct":
            return {"error": "no rows"}
        return {"district": district, "percent": 40 + s.k % 30}

    district = s.rng.choice(["Harju", "Tartu", "Saare", "Viljandi", "Valga"])
    own = [{"level": "municipality"}] if s.often("knows", .7) else [{"ballot": "booth"}] if s.often("other", .3) else [
        {"district": district.upper()}]
    turns = chat(s)
    with s.run("election-night"):
        s.pursue(turns, Want(turnout, {"district": district, "ballot": "booth", "level": "precinct"}))
        s.pursue(turns, Want(turnout, {"district": district, "ballot": "postal", "level": "precinct"}, [{"level": "municipality"}],
                             own=own, lesson="postal votes by municipality"))
        if s.k % 2:
            s.pursue(turns, Want(turnout, {"district": "Narva", "ballot": "booth", "level": "precinct"}))


@shape("lesson", follows=True)
def vineyard_sugar(s):
    """sugar of the grapes: the laboratory uses the refractometer, from the second week on only the new densimeter"""
    right = "refractometer" if s.day < 7 else "densimeter"

    @s.tool(effects="none")
    def brix(block: str, method: str):
        if method != right:
            raise NotOnFile("Our lab doesn't do that one.")
        return {"block": block, "brix": 18 + s.rng.random() * 6}

    knows = s.often("knows", .7)
    if s.day < 7:
        own = [{"method": right}] if knows else [{"method": "titration"}]
    else:  # word of the new instrument has not reached everybody
        own = [{"method": right}] if s.often("new", .6) else [{"method": "refractometer"}, {"method": right}] if knows else [
            {"method": "refractometer"}]
    turns = chat(s)
    with s.run("cellar-hand"):
        for n in range(1 + s.k % 3):
            block = f"{s.rng.choice('ABCDEF')}{s.rng.randint(1, 20)}"
            if n == 0:
                s.pursue(turns, Want(brix, {"block": block, "method": "hydrometer"}, [{"method": right}], own=own,
                                     lesson=f"method {right}"))
            else:  # in the same run it knows what has just worked
                s.pursue(turns, Want(brix, {"block": block, "method": right}))


@shape("lesson", follows=False)
def ambulance_positions(s):
    """right after a unit is alerted its first position is not in yet: asking again is all it takes"""
    asked = {}

    @s.tool
    def alert(unit: str, incident: str):
        asked[unit] = 0
        return {"unit": unit, "status": 3}

    @s.tool(effects="none")
    def position(unit: str):
        if " " in unit:
            raise LookupError(f"{unit}?")
        asked[unit] = asked.get(unit, 5) + 1
        if asked[unit] == 1:
            raise RuntimeError("no fix")
        return {"unit": unit, "lat": 47.1, "lon": 8.3}

    def again(asked_for):
        sleep(15)
        return asked_for

    unit = f"RTW-{s.rng.randint(1, 24)}"
    own = [again] if s.often("knows", .75) else [{"unit": unit.replace("-", " ")}] if s.often("half", .2) else []
    turns = chat(s)
    with s.run("dispatcher"):
        s.ask(next(turns), None, alert, {"unit": unit, "incident": f"I{s.rng.randint(100, 999)}"})
        s.pursue(turns, Want(position, {"unit": unit}, own=own, retry=True, lesson="ask again"))
        s.pursue(turns, Want(position, {"unit": "NEF-1"}))


@shape("lesson", follows=True)
def weather_briefing(s):
    """forecasts: the newest run is meant by leaving `issue` out, "latest" is no name of one; a run that never was stays missing"""
    stored = {"", "00", "06", "12", "18"}

    @s.tool(effects="none")
    def forecast(place: str, hours: int = 24, issue: str = ""):
        if issue not in stored:
            raise KeyError(issue)
        return {"place": place, "gusts": [s.rng.randint(5, 40) for _ in range(3)]}

    place = s.rng.choice(["Sylt", "Hook of Holland", "Esbjerg", "Den Helder", "Borkum", "Skagen"])
    hours = s.rng.choice([12, 24, 36, 48])
    own = [{"issue": GONE}] if s.often("knows", .7) else [{"issue": "newest"}, {"issue": GONE}] if s.often("half", .5) else [
        {"hours": 24}]
    turns = chat(s)
    with s.run("briefing"):
        if s.k % 3 == 1:
            s.pursue(turns, Want(forecast, {"place": place, "hours": hours, "issue": s.rng.choice(["00", "06", "12"])}))
        if s.k % 9 == 4:  # the pilot insists on the run of 03, there is none, and no other will do
            s.pursue(turns, Want(forecast, {"place": place, "hours": hours, "issue": "03"}, NEVER))
        else:
            s.pursue(turns, Want(forecast, {"place": place, "hours": hours, "issue": "latest"}, [{"issue": GONE}], own=own,
                                 lesson="leave issue out"))


@shape("lesson", follows=False)
def theatre_box_office(s):
    """free tickets are booked on the ledger of the house, all others on that of the box office"""

    @s.tool
    def issue_ticket(show: str, seat: str, tariff: str, ledger: str = "counter"):
        if tariff == "comp" and ledger != "house":
            raise AgentError("We cannot book this here.")
        if tariff != "comp" and ledger == "house":
            raise AgentError("We cannot book this here.")
        return {"ticket": f"{show[:3]}-{seat}"}

    show = s.rng.choice(["Woyzeck", "Peer Gynt", "Cymbeline", "Amphitryon"])
    seats = [f"{row}{s.rng.randint(1, 30)}" for row in "BCD"]
    own = [{"ledger": "house"}] if s.often("knows", .7) else [{"tariff": "full"}] if s.often("sells", .3) else [{"seat": "A1"}]
    turns = chat(s)
    with s.run("box-office"):
        s.pursue(turns, Want(issue_ticket, {"show": show, "seat": seats[0], "tariff": "full"}))
        if s.k % 4 != 2:
            s.pursue(turns, Want(issue_ticket, {"show": show, "seat": seats[1], "tariff": "comp"}, [{"ledger": "house"}], own=own,
                                 lesson="comp on the house"))
        s.pursue(turns, Want(issue_ticket, {"show": show, "seat": seats[2], "tariff": "student"}))


@shape("lesson", follows=True)
def zoo_weigh_in(s):
    """small animals are weighed in grams; the same complaint also comes when a keeper has typed one digit too many"""
    usual = {"gecko": (.01, .1), "dart frog": (.001, .02), "harvest mouse": (.003, .02), "tiger": (90, 300), "tapir": (120, 320),
             "lynx": (12, 35)}

    @s.tool
    def record_weight(animal: str, weight: float, unit: str = "kg"):
        low, high = usual[animal]
        if not low <= (weight / 1000 if unit == "g" else weight) <= high:
            raise ValueError("Not plausible for this species, please check.")
        return {"animal": animal, "saved": True}

    small, (low, high) = s.rng.choice([("gecko", (12, 90)), ("gecko", (12, 90)), ("dart frog", (2, 18)), ("harvest mouse", (4, 18))])
    grams = s.rng.randint(low, high)
    turns = chat(s)
    with s.run("keeper"):
        s.pursue(turns, Want(record_weight, {"animal": "lynx", "weight": s.rng.randint(14, 30), "unit": "kg"}))
        if s.k % 5 == 3:
            true = s.rng.randint(13, 28) * 10
            s.pursue(turns, Want(record_weight, {"animal": "tapir", "weight": true * 10, "unit": "kg"}, [{"weight": true}],
                                 own=[{"weight": true}]))
        else:
            s.pursue(turns, Want(
                record_weight, {"animal": small, "weight": grams, "unit": "kg"}, [{"unit": "g"}, {"weight": grams / 1000}],
                own=[{"unit": "g"}] if s.often("knows", .75) else [], lesson="small animals in grams"))
        if s.k % 2:
            s.pursue(turns, Want(record_weight, {"animal": "tiger", "weight": s.rng.randint(110, 240), "unit": "kg"}))


# 13-20: looks like a correction


@shape("trap", follows=True)
def translation_agency(s):
    """Portuguese of which country, Chinese in which script: each client answers for himself, most of them alike"""

    @s.tool(effects="none")
    def translate(text: str, target: str):
        if target in ("pt", "zh"):
            raise ValueError("Target language is ambiguous.")
        return f"[{target}] {text}"

    text = s.rng.choice(["Safety notice", "Menu", "Terms of delivery", "Press release", "Care label"]) + f" {s.k}"
    target, usual, other = s.rng.choice([("pt", "pt-BR", "pt-PT"), ("pt", "pt-BR", "pt-PT"), ("zh", "zh-Hans", "zh-Hant")])
    wish = usual if s.often("usual", .65) else other
    turns = chat(s)
    with s.run("agency"):
        s.pursue(turns, Want(translate, {"text": text, "target": s.rng.choice(["de", "fr", "nl"])}))
        s.pursue(turns, Want(translate, {"text": text, "target": target}, [{"target": wish}],
                             own=[{"target": wish}] if s.often("asks the client", .9) else []))


@shape("trap", follows=True)
def auction_bids(s):
    """outbid: some bidders go higher, to a sum of their own, the others leave it"""

    @s.tool
    def place_bid(lot: int, amount: int):
        if amount < floor.get(lot, 0):
            raise AgentError("Your bid was not accepted, it is too low.")
        return {"lot": lot, "leading": True}

    @s.tool(effects="none")
    def describe_lot(lot: int):
        return {"lot": lot, "title": "Clock, c. 1900"}

    lot = 100 + s.k % 6
    first = s.rng.choice([40, 50, 60, 80])
    limit = s.rng.choice([first, first + 10, first + 20, first * 2, first * 2])
    floor = {lot: first if s.often("cheap", .25) else first + s.rng.choice([10, 20])}
    ready = limit >= floor[lot]
    turns = chat(s)
    with s.run("bidder"):
        s.ask(next(turns), None, describe_lot, {"lot": lot})
        s.pursue(turns, Want(
            place_bid, {"lot": lot, "amount": first}, ([{}] if floor[lot] <= first else [{"amount": limit}]) if ready else NEVER,
            own=[{"amount": limit}] if limit > first else []))
        if s.k % 4 == 0:
            s.pursue(turns, Want(place_bid, {"lot": 300 + s.k, "amount": s.rng.choice([20, 30, 120])}))


@shape("trap", follows=True)
def sailing_school_tides(s):
    """the tide service stumbles on the first call of some mornings; a model that takes another datum meanwhile has heights for no chart"""
    down = [1] if s.often("stumbles", .5) else []

    @s.tool(effects="none")
    def tide_table(port: str, date: str, datum: str):
        if down:
            down.pop()
            raise RuntimeError("Harmonic constituents could not be evaluated.")
        return {"port": port, "heights": [1.1, 4.7] if datum == "LAT" else [-1.8, 1.8]}

    own = [lambda asked: asked] if s.often("knows", .6) else [{"datum": "MSL"}]
    turns = chat(s)
    with s.run("skipper"):
        for port in s.rng.sample(["Cowes", "Yarmouth", "Poole", "Lymington", "Hamble"], 1 + s.k % 2):
            s.pursue(turns, Want(tide_table, {"port": port, "date": f"2026-06-{1 + s.k % 28:02}", "datum": "LAT"}, own=own, retry=True))


@shape("trap", follows=False)
def vet_pharmacy(s):
    """the pharmacy refuses a dose; the vet decides anew for each animal, often on half of it, but not always"""

    @s.tool
    def dispense(animal: str, drug: str, mg: int):
        if mg > ceiling:
            return {"error": "Refused by the dose check. Ask the vet."}
        return {"label": f"{animal}: {drug} {mg} mg"}

    @s.tool(effects="none")
    def stock(drug: str):
        return {"drug": drug, "tablets": 200}

    mg = s.rng.choice([20, 50, 100])
    high = s.often("high", .6)
    says = s.rng.choice([mg // 2, mg // 2, mg // 5, None])
    ceiling = (says or 1) if high else mg
    drug = s.rng.choice(["meloxicam", "carprofen", "gabapentin"])
    turns = chat(s)
    with s.run("pharmacy"):
        s.ask(next(turns), None, stock, {"drug": drug})
        s.pursue(turns, Want(
            dispense, {"animal": f"{s.rng.choice(['cat', 'dog'])}-{s.rng.randint(1, 400)}", "drug": drug, "mg": mg},
            [{}] if not high else [{"mg": says}] if says else NEVER, own=[{"mg": says}] if says else []))


@shape("trap", follows=True)
def festival_wristbands(s):
    """backstage is closed to a wristband; whether to override it is the stage manager's word, each time"""

    @s.tool
    def grant_access(guest: str, zone: str, override: bool = False):
        if zone == "backstage" and not override:
            raise PermissionError("Wristband not valid for this zone")
        return {"guest": guest, "zone": zone}

    guest = f"{s.rng.choice(['Ida', 'Noor', 'Piet', 'Sami', 'Lou', 'Ravi'])} {s.rng.choice('BKMST')}."
    word = s.rng.choice(["let in", "let in", "let in", "no", "foyer"])
    right, own = {"let in": ([{"override": True}], [{"override": True}]), "no": (NEVER, []),
                  "foyer": ([{"zone": "foyer"}], [{"zone": "foyer"}])}[word]
    turns = chat(s)
    with s.run("gate"):
        s.pursue(turns, Want(grant_access, {"guest": f"Crew {s.k}", "zone": "camping"}))
        s.pursue(turns, Want(grant_access, {"guest": guest, "zone": "backstage"}, right, own=own))
        if s.k % 3 == 0:
            s.pursue(turns, Want(grant_access, {"guest": guest, "zone": "field"}))


@shape("trap", follows=True)
def school_canteen(s):
    """lunch without nuts is sold out in one kitchen: a careless model asks without the allergy; which kitchen has it differs each day"""
    kitchens = ["north", "south", "west"]
    having = set(s.rng.sample(kitchens, 1 + s.rng.randrange(2)))
    allergy = s.rng.choice(["nuts", "nuts", "gluten", "egg"])

    @s.tool(effects="none")
    def dish(date: str, kitchen: str, without: str = ""):
        if without and kitchen not in having:
            return {"error": "nothing found"}
        return {"kitchen": kitchen, "dish": "stew" if without else "nut roast"}

    first = kitchens[s.k % 3] if s.k % 4 else "north"
    own = [{"kitchen": each} for each in kitchens if each != first] if s.often("knows", .65) else [{"without": ""}]
    turns = chat(s)
    date = f"2026-03-{1 + s.k % 28:02}"
    with s.run("lunch"):
        s.pursue(turns, Want(dish, {"date": date, "kitchen": "west"}))
        s.pursue(turns, Want(dish, {"date": date, "kitchen": first, "without": allergy},
                             [{"kitchen": each} for each in sorted(having)], own=own))


@shape("trap", follows=True)
def swimming_pool_lanes(s):
    """a lane is taken until the swimmers have left: models that look at the water meanwhile believe that this helped"""
    import time
    lane, group = 1 + s.k % 8, s.rng.choice(["seniors", "school 4b", "triathlon", "beginners"])
    free_at = {lane: time.time() + 100 if s.often("taken", .55) else 0}
    for_good = s.often("for good", .2)

    @s.tool(effects="idempotent")
    def open_lane(lane: int, group: str):
        if free_at.get(lane, 0) > time.time() or for_good and lane in free_at:
            raise RuntimeError("Lane is occupied")
        return {"lane": lane, "group": group}

    @s.tool(effects="none")
    def water(basin: str):
        sleep(130)  # the probe is slow
        return {"basin": basin, "celsius": 26.5}

    def later(asked):
        sleep(130)
        return asked

    looks = ([(water, {"basin": "main"})], None)
    other = lane % 8 + 1
    own = [{"lane": other}] if for_good else [looks] if s.often("looks", .6) else [later]
    turns = chat(s)
    with s.run("pool-attendant"):
        s.pursue(turns, Want(open_lane, {"lane": (lane + 3) % 8 + 1, "group": "club"}))
        s.pursue(turns, Want(open_lane, {"lane": lane, "group": group}, [{"lane": other}] if for_good else [{}], own=own,
                             retry=not for_good, fine="retry"))


@shape("trap", follows=False)
def museum_study_room(s):
    """a drawing is away on loan for the first nine days; scholars then see something else, which is no way to see the first"""
    away = {"Milkmaid"} if s.day < 9 else {"Hare"}

    @s.tool
    def reserve_viewing(work: str, day: str, visitors: int = 1):
        if work in away:
            raise LoanDesk("We regret that the work is not in the house.")
        return {"work": work, "room": 2}

    day = s.rng.choice(["Tue", "Wed", "Thu"])
    wish = s.rng.choice(["Milkmaid", "Milkmaid", "Hare", "Wing of a Roller"])
    turns = chat(s)
    with s.run("study-room"):
        first = {"work": wish, "day": day, "visitors": 1 + s.k % 3}
        got = s.pursue(turns, Want(reserve_viewing, first, NEVER if wish in away else [{}],
                                   own=[{"day": "Fri"}] if s.often("another day", .3) else []))
        if not got or s.k % 2:
            s.pursue(turns, Want(reserve_viewing, {**first, "work": s.rng.choice(["Great Piece of Turf", "Great Piece of Turf", "Wing of a Roller"])}))


# 21-24: nothing to be learned


@shape("plain", follows=False)
def radio_playlist(s):
    """a music desk fills the hour; everything works"""

    @s.tool
    def queue_track(title: str, slot: str, fade: float = 2.0):
        return {"slot": slot, "title": title}

    @s.tool(effects="none")
    def rotation(genre: str, limit: int = 10):
        return [f"{genre} {n}" for n in range(limit)]

    turns = chat(s)
    with s.run("music-desk"):
        genre = s.rng.choice(["jazz", "fado", "dub", "polka"])
        s.ask(next(turns), None, rotation, {"genre": genre, "limit": 3 + s.k % 5})
        for n in range(2 + s.k % 3):
            s.pursue(turns, Want(queue_track, {"title": f"{genre} {s.rng.randint(0, 40)}", "slot": f"{5 + s.k % 18:02}:{n * 4:02}",
                                               "fade": s.rng.choice([1.0, 2.0, 3.5])}))


@shape("plain", follows=True)
def parcel_counter(s):
    """parcels at a counter: some numbers do not exist, and nobody knows a better one"""

    @s.tool(effects="none")
    def track(number: str):
        if number.endswith("X"):
            raise NotOnFile(f"No parcel {number}.")
        return {"number": number, "status": s.rng.choice(["sorted", "on the van", "delivered"])}

    turns = chat(s)
    with s.run("counter"):
        for n in range(1 + s.k % 3):
            missing = s.often(f"missing {n}", .25)
            s.pursue(turns, Want(track, {"number": f"RR{s.rng.randint(10**8, 10**9 - 1)}{'X' if missing else 'S'}"},
                                 NEVER if missing else [{}]))


@shape("plain", follows=False)
def school_reports(s):
    """an office assistant may see timetables, and marks only of its own classes: the others are none of its business"""

    @s.tool(effects="none")
    def timetable(form: str):
        return {"form": form, "monday": ["maths", "music"]}

    @s.tool(effects="none")
    def marks(form: str, term: int):
        if form not in ("5a", "5b"):
            raise PermissionError("Access denied: marks are visible to the form teacher only.")
        return {"form": form, "term": term, "mean": 4.6}

    form = s.rng.choice(["5a", "5b", "5a", "7c", "9d"])
    turns = chat(s)
    with s.run("school-office"):
        s.pursue(turns, Want(timetable, {"form": form}))
        s.pursue(turns, Want(marks, {"form": form, "term": 1 + s.k % 2}, [{}] if form in ("5a", "5b") else NEVER))
        if s.k % 4 == 0:
            s.pursue(turns, Want(marks, {"form": "5b", "term": 2}))


@shape("plain", follows=True)
def bee_hives(s):
    """scales under bee hives, on a weak mobile network: now and then a reading does not come through"""

    @s.tool(effects="none")
    def hive_weight(hive: int, unit: str = "kg"):
        if s.chance("network", .12):
            raise TimeoutError("gateway did not answer within 20 s")
        return {"hive": hive, "weight": 31.4 + hive}

    turns = chat(s, 24)
    with s.run("beekeeper"):
        for hive in s.rng.sample(range(1, 30), 2 + s.k % 3):
            s.pursue(turns, Want(hive_weight, {"hive": hive}, own=[lambda asked: asked, lambda asked: asked, lambda asked: asked],
                                 retry=True))
