"""Batch C: twenty-four programs (12 lessons, 8 traps, 4 plain), written without knowledge of mulligan's rules."""
import json

from kit import GONE, Want, shape, sleep
from mulligan import AgentError


def chat(s, limit=20):
    s.open_turns.append(iter(s.m.turns(limit=limit)))
    return s.open_turns[-1]


def also(s, turns, tool, **asked):
    """another call of the model, nobody's problem"""
    turn = next(turns, None)
    return None if turn is None else s.ask(turn, None, tool, asked)[0]


def again(asked):
    return dict(asked)


class InvalidArgument(Exception):
    pass


class FormularyError(Exception):
    pass


class DeviceFault(RuntimeError):
    def __init__(self, code, text):
        super().__init__(f"{code} {text}")
        self.code = code


# lessons


@shape("lesson", follows=True)
def customs_tariff_code(s):
    """customs: the duty service knows commodity codes only with ten digits and no dots"""
    goods = ["8471.30", "6109.10", "9403.60", "2204.21", "8703.23", "0901.21"]

    def full(code):
        return code.replace(".", "").ljust(10, "0")

    known = {full(each) for each in goods}

    @s.tool(effects="none")
    def check_duty(hs_code: str, origin: str, value_eur: float):
        if hs_code not in known:
            raise ValueError("TARIC-2104 commodity code not resolvable")
        return {"hs": hs_code, "duty": round(value_eur * .037, 2)}

    @s.tool(effects="none")
    def shipment(mrn: str):
        return {"mrn": mrn, "lines": 2}

    knows = s.often("knows", .75)
    picked = s.rng.choices(goods, [6, 4, 2, 1, 1, 1], k=2)
    with s.run("customs-clerk"):
        turns = chat(s)
        also(s, turns, shipment, mrn=f"26DE{s.rng.randint(10**6, 10**7)}")
        for n, code in enumerate(dict.fromkeys(picked)):
            asked = {"hs_code": code, "origin": s.rng.choice(["CN", "TR", "US", "VN"]), "value_eur": float(s.rng.randint(200, 9000))}
            if n and s.often("copied", .4):  # copied from the invoice, as it should be
                s.pursue(turns, Want(check_duty, {**asked, "hs_code": full(code)}))
                continue
            bare = {"hs_code": code.replace(".", "")}
            if knows:
                own = [bare, {"hs_code": full(code)}] if s.often("half first", .3) else [{"hs_code": full(code)}]
            else:
                own = [bare] if s.often("half", .5) else []
            s.pursue(turns, Want(check_duty, asked, [{"hs_code": full(code)}], own=own, lesson=f"ten digits {code}"))


@shape("lesson", follows=True)
def ward_dose_unit(s):
    """hospital: micrograms are `ug` for the formulary; `mg` is accepted too, and a thousand times too much"""

    @s.tool
    def order_medication(patient: str, drug: str, dose: float, unit: str, route: str = "iv"):
        if unit not in ("ug", "mg", "g", "mL"):
            raise FormularyError("Order not accepted: UOM not in formulary. (ref 77-UOM)")
        return f"{drug} {dose} {unit}"

    @s.tool(effects="none")
    def chart(patient: str):
        return {"patient": patient, "weight": 71}

    patient = f"PT{s.rng.randint(1000, 9999)}"
    with s.run("ward-assistant"):
        turns = chat(s)
        also(s, turns, chart, patient=patient)
        if s.often("pain", .6):
            s.pursue(turns, Want(order_medication, {"patient": patient, "drug": "paracetamol", "dose": 1000.0, "unit": "mg"}))
        drug, dose = s.rng.choice([("fentanyl", 50.0), ("levothyroxine", 75.0), ("clonidine", 150.0), ("fentanyl", 100.0)])
        if s.often("knows", .75):
            own = [{"unit": "ug"}]
        else:
            own = s.rng.choice([[{"unit": "µg"}], [{"unit": "mg"}], [], [{"unit": "microgram"}, {"unit": "ug"}]])
        s.pursue(turns, Want(
            order_medication, {"patient": patient, "drug": drug, "dose": dose, "unit": "mcg"}, [{"unit": "ug"}], own=own, lesson="unit=ug"))


@shape("lesson", follows=True)
def school_term_lookup(s):
    """schools: marks are posted to a term's id, which each school has its own of; list_terms tells"""
    schools = ["lindenhof", "st-anna", "nordpark", "hillside", "riverbank"]
    week = 0 if s.day < 7 else 1

    def term_of(school):
        return f"trm_{(schools.index(school) + 3) * 7919 + week * 104729:x}"

    @s.tool(effects="idempotent")
    def post_mark(school: str, pupil: str, subject: str, mark: int, term: str):
        if term != term_of(school):
            raise RuntimeError(json.dumps({"status": 400, "errors": [{"code": "REF_NOT_FOUND", "pointer": "/term"}]}))
        return {"posted": True}

    @s.tool(effects="none")
    def list_terms(school: str):
        return {"current": {"id": term_of(school), "label": "Spring term"}}

    @s.tool(effects="none")
    def list_pupils(school: str, form: str):
        return ["Mia", "Noah", "Lea"]

    school = s.rng.choice(schools)
    take = lambda got: {"term": got["current"]["id"]}  # noqa: E731
    with s.run("gradebook"):
        turns = chat(s)
        also(s, turns, list_pupils, school=school, form=f"{s.rng.randint(5, 9)}b")
        asked = {"school": school, "pupil": s.rng.choice(["Mia", "Noah", "Lea"]), "subject": s.rng.choice(["maths", "art"]),
                 "mark": s.rng.randint(1, 5), "term": "Spring term"}
        if s.often("knows", .7):
            own = [([(list_terms, {"school": school})], take)]
        else:
            own = [{"term": "spring-2026"}] if s.often("guess", .6) else []
        done = s.pursue(turns, Want(
            post_mark, asked, [{"term": term_of(school)}], own=own, pre=("list_terms",), how={"list_terms": {"school": school}}, use=take,
            lesson="list_terms first"))
        if done:  # by now the model has the id
            s.pursue(turns, Want(post_mark, {**asked, "pupil": "Emil", "mark": 2, "term": term_of(school)}))


@shape("lesson", follows=True)
def soil_archive_pair(s):
    """agriculture: more than a week of readings only as daily values and with linear fill: both or nothing"""

    @s.tool(effects="none")
    def soil_series(field: str, depth_cm: int, days: int, resolution: str = "raw", fill: str = "none"):
        if days > 7 and not (resolution == "daily" and fill == "linear"):
            raise AgentError("422: query plan not supported by archive tier")
        return {"points": days}

    @s.tool(effects="none")
    def rain_total(field: str, days: int):
        return 12.5

    field = s.rng.choice(["Ost 4", "Ost 5", "Bachwiese", "Long Acre", "Mill field"])
    both = {"resolution": "daily", "fill": "linear"}
    with s.run("agronomist"):
        turns = chat(s)
        if s.often("short", .5):
            s.pursue(turns, Want(soil_series, {"field": field, "depth_cm": 10, "days": s.rng.choice([2, 3, 7])}))
        also(s, turns, rain_total, field=field, days=30)
        if s.often("knows", .7):
            own = [{"resolution": "daily"}, both] if s.often("steps", .4) else [both]
        else:
            own = s.rng.choice([[{"resolution": "daily"}], [{"days": 7}], [{"fill": "linear"}, {"resolution": "hourly"}], []])
        s.pursue(turns, Want(
            soil_series, {"field": field, "depth_cm": s.rng.choice([10, 30, 60]), "days": s.rng.choice([30, 30, 60])}, [both],
            own=own, lesson="daily and linear"))


@shape("lesson", follows=True)
def museum_check_out(s):
    """museum: a catalogue record must be checked out before it can be edited"""
    number = f"1987.{s.rng.randint(1, 400)}.{s.rng.randint(1, 9)}"
    out = {number} if s.often("left open", .2) else set()

    @s.tool
    def edit_record(object_no: str, field: str, text: str):
        if object_no not in out:
            raise RuntimeError("409 Conflict - record is read-only in this session")
        return "saved"

    @s.tool(effects="idempotent")
    def check_out(object_no: str):
        out.add(object_no)
        return {"object_no": object_no, "holder": "you"}

    @s.tool(effects="none")
    def view_record(object_no: str):
        return {"object_no": object_no, "title": "Bowl", "date": "c. 1890"}

    if s.often("knows", .7):
        own = [([(check_out, {"object_no": number})], None)]
        own = [([(view_record, {"object_no": number})], None), *own] if s.often("looks", .3) else own
    else:
        own = s.rng.choice([[again], [([(view_record, {"object_no": number})], None)], []])
    with s.run("registrar"):
        turns = chat(s)
        if s.often("view", .5):
            also(s, turns, view_record, object_no=number)
        field = s.rng.choice(["date", "title", "provenance"])
        s.pursue(turns, Want(
            edit_record, {"object_no": number, "field": field, "text": f"note {s.k}"}, own=own, pre=("check_out",),
            how={"check_out": {"object_no": number}}, lesson="check_out first"))


@shape("lesson", follows=True)
def regional_pool_zone(s):
    """cloud operations: regional clusters are resized without a zone; zonal ones need it"""
    regional = ("payments-eu", "search-eu", "identity-us")

    @s.tool(effects="idempotent")
    def resize_pool(cluster: str, pool: str, nodes: int, zone: str | None = None):
        if cluster in regional and zone is not None:
            raise InvalidArgument("rpc error: code = InvalidArgument desc = location: conflicting location specifiers")
        if cluster not in regional and zone != "europe-west1-b":
            raise InvalidArgument("rpc error: code = NotFound desc = cluster not found in location")
        return {"operation": f"op-{s.k}", "nodes": nodes}

    @s.tool(effects="none")
    def pool_load(cluster: str):
        return {"cluster": cluster, "cpu": .81}

    cluster = s.rng.choice(regional)
    with s.run("capacity-bot"):
        turns = chat(s)
        if s.often("batch", .5):
            also(s, turns, pool_load, cluster="batch-1")
            s.pursue(turns, Want(resize_pool, {"cluster": "batch-1", "pool": "spot", "nodes": s.rng.randint(3, 20), "zone": "europe-west1-b"}))
        also(s, turns, pool_load, cluster=cluster)
        if s.often("knows", .7):
            own = [{"zone": GONE}]
        else:
            own = s.rng.choice([[{"zone": "europe-west1"}], [{"zone": "europe-west1-c"}, {"zone": "europe-west1-d"}], []])
        s.pursue(turns, Want(
            resize_pool, {"cluster": cluster, "pool": "default", "nodes": s.rng.randint(4, 12), "zone": "europe-west1-b"},
            [{"zone": GONE}], own=own, lesson="no zone for regional"))


@shape("lesson", follows=True)
def permit_category_reform(s):
    """city hall: categories of building permits have codes, and other ones from the second week on"""
    old = {"residential alteration": "RA-12", "garage": "GA-04"}
    new = {"residential alteration": "R3A", "garage": "G1N"}
    now, past = (old, {}) if s.day < 7 else (new, old)

    @s.tool
    def open_case(parcel: str, category: str, applicant: str):
        if category not in now.values():
            raise AgentError("PMT0417E CATEGORY NOT ON FILE")
        return {"case": f"2026-{s.k:04}"}

    @s.tool(effects="none")
    def parcel_info(parcel: str):
        return {"parcel": parcel, "owner": "on record"}

    word = s.rng.choices(list(old), [7, 3])[0]
    parcel = f"{s.rng.randint(10, 99)}/{s.rng.randint(1, 400)}"
    code = now[word]
    if s.often("knows", .7):
        own = [{"category": past[word]}, {"category": code}] if past and s.often("old habit", .35) else [{"category": code}]
    else:
        own = s.rng.choice([[{"category": word.upper()}], [{"category": past.get(word, "RES-ALT")}], []])
    with s.run("permit-desk"):
        turns = chat(s)
        also(s, turns, parcel_info, parcel=parcel)
        s.pursue(turns, Want(
            open_case, {"parcel": parcel, "category": word, "applicant": s.rng.choice(["Ruiz", "Okafor", "Lund", "Baran"])},
            [{"category": code}], own=own, lesson=f"{word}={code}"))


@shape("lesson", follows=False)
def pipette_speed(s):
    """laboratory robot: glycerol is drawn at 40 or slower; water at any speed"""

    @s.tool
    def aspirate(plate: str, well: str, liquid: str, volume_ul: int, speed: int):
        if liquid == "glycerol" and speed > 40:
            raise DeviceFault("E407", "pressure curve fault ch3")
        return {"aspirated": volume_ul}

    @s.tool(effects="idempotent")
    def load_tips(rack: int):
        return "loaded"

    plate, volume = f"P{s.rng.randint(1, 60)}", s.rng.choice([20, 50, 100])
    with s.run("pipetting"):
        turns = chat(s)
        also(s, turns, load_tips, rack=s.k % 4)
        s.pursue(turns, Want(aspirate, {"plate": plate, "well": "A1", "liquid": "water", "volume_ul": volume, "speed": 120}))
        first = {"plate": plate, "well": f"B{s.rng.randint(1, 12)}", "liquid": "glycerol", "volume_ul": volume, "speed": 120}
        if s.often("knows", .75):
            own = s.rng.choice([[{"speed": 40}], [{"speed": 40}], [{"speed": 80}, {"speed": 40}], [{"speed": 25}]])
        else:
            own = s.rng.choice([[{"speed": 80}], [{"volume_ul": volume // 2}], [{"liquid": "water"}], [again]])
        s.pursue(turns, Want(
            aspirate, first, lambda a: {**a, "speed": 120} == first and a["speed"] <= 40, own=own, lesson="glycerol speed<=40"))


@shape("lesson", follows=True)
def tour_rate_plan(s):
    """tourism: tours of the operator Alpina are sold to agencies only on the plan NET, which has to be added"""

    @s.tool(effects="none")
    def quote_tour(tour: str, date: str, guests: int, rate_plan: str | None = None):
        if tour.startswith("ALP") and rate_plan != "NET":
            raise LookupError("AVL-0031")
        return {"total": guests * 118}

    @s.tool(effects="none")
    def search_tours(place: str):
        return ["ALP-GLACIER", "ALP-GORGE", "CITY-WALK"]

    date = f"2026-07-{1 + s.rng.randint(0, 29):02}"
    tour = s.rng.choice(["ALP-GLACIER", "ALP-GORGE", "ALP-GLACIER", "ALP-SUNRISE"])
    guests = s.rng.randint(1, 6)
    with s.run("travel-agent"):
        turns = chat(s)
        also(s, turns, search_tours, place=s.rng.choice(["Chamonix", "Zermatt"]))
        if s.often("walk", .4):
            s.pursue(turns, Want(quote_tour, {"tour": "CITY-WALK", "date": date, "guests": guests}))
        if s.often("knows", .65):
            own = [{"rate_plan": "NET"}] if s.often("at once", .7) else [{"rate_plan": "STANDARD"}, {"rate_plan": "NET"}]
        else:
            own = s.rng.choice([[{"rate_plan": "STANDARD"}], [{"tour": "CITY-WALK"}], [{"date": "2026-07-31"}], []])
        s.pursue(turns, Want(
            quote_tour, {"tour": tour, "date": date, "guests": guests}, [{"rate_plan": "NET"}], own=own, lesson="rate_plan=NET"))


@shape("lesson", follows=False)
def teaser_ratio(s):
    """newsroom: the image service has its own words for aspect ratios; errors come as values"""
    words = {"16:9": "wide", "4:3": "classic", "1:1": "square"}

    @s.tool(effects="none")
    def render_teaser(asset: str, ratio: str, width: int = 1200):
        if ratio not in words.values():
            return {"error": "unprocessable", "detail": [{"loc": ["ratio"]}]}
        return {"url": f"/img/{asset}/{ratio}"}

    @s.tool(effects="none")
    def find_asset(topic: str):
        return f"as{s.rng.randint(10**4, 10**5)}"

    knows = s.often("knows", .75)
    with s.run("picture-desk"):
        turns = chat(s)
        asset = also(s, turns, find_asset, topic=s.rng.choice(["flood", "budget", "derby"])) or "as1"
        for n, ratio in enumerate(dict.fromkeys(s.rng.choices(list(words), [6, 3, 2], k=2))):
            if knows:
                own = [{"ratio": words[ratio]}]
            else:
                own = s.rng.choice([[{"ratio": ratio.replace(":", "x")}], [{"ratio": "original"}, {"ratio": words[ratio]}], []])
            s.pursue(turns, Want(
                render_teaser, {"asset": asset, "ratio": ratio, **({"width": 640} if n else {})}, [{"ratio": words[ratio]}],
                own=own, lesson=f"{ratio}={words[ratio]}"))


@shape("lesson", follows=True)
def meter_register(s):
    """power grid: what the model calls `total` is 1.8.0 in the district north and A+ in the south"""
    names = {"north": ("1.8.0", "2.8.0"), "south": ("A+", "A-")}

    @s.tool(effects="none")
    def meter_values(district: str, meter: str, register: str, day: str):
        if register not in names[district]:
            raise KeyError(register)
        return [1.25, 1.5]

    district = "north" if s.often("north", .6) else "south"
    total, fed = names[district]
    other = names["south" if district == "north" else "north"][0]
    meter, day = f"{district[0].upper()}{s.rng.randint(10**5, 10**6)}", f"2026-02-{1 + s.k % 28:02}"
    with s.run("metering"):
        turns = chat(s)
        if s.often("solar", .35):
            s.pursue(turns, Want(meter_values, {"district": district, "meter": meter, "register": fed, "day": day}))
        if s.often("knows", .8):
            own = [{"register": other}, {"register": total}] if s.often("mixed up", .25) else [{"register": total}]
        else:
            own = s.rng.choice([[{"register": "sum"}], [{"register": other}], [{"register": fed}], []])
        s.pursue(turns, Want(
            meter_values, {"district": district, "meter": meter, "register": "total", "day": day}, [{"register": total}], own=own,
            lesson=f"{district} total={total}"))


@shape("lesson", follows=True)
def payroll_two_steps(s):
    """payroll: a period is posted after its timesheets are closed and its absences checked; one alone is not enough"""
    company, period = f"company {s.k % 8}", f"2026-{1 + s.k % 12:02}"
    done = {"sheets", "absences"} if s.often("prepared", .2) else set()

    @s.tool
    def post_payroll(company: str, period: str):
        if len(done) < 2:
            raise AgentError("Transition DRAFT -> POSTED is not permitted for this period.")
        return "posted"

    @s.tool(effects="idempotent")
    def close_timesheets(company: str, period: str):
        done.add("sheets")
        return {"open": 0}

    @s.tool(effects="idempotent")
    def check_absences(company: str, period: str):
        done.add("absences")
        return {"conflicts": 0}

    @s.tool(effects="none")
    def headcount(company: str):
        return 42

    both = {"company": company, "period": period}
    if s.often("knows", .7):
        own = [([(close_timesheets, both), (check_absences, both)], None)]
        if s.often("one by one", .35):
            own = [([(close_timesheets, both)], None), ([(check_absences, both)], None)]
    else:
        own = s.rng.choice([[([(close_timesheets, both)], None)], [([(headcount, {"company": company})], None)], [again], []])
    with s.run("payroll"):
        turns = chat(s)
        if s.often("counts", .4):
            also(s, turns, headcount, company=company)
        s.pursue(turns, Want(
            post_payroll, both, own=own, pre=("close_timesheets", "check_absences"),
            how={"close_timesheets": both, "check_absences": both}, lesson="close and check first"))


# traps


@shape("trap", follows=True)
def ferry_cabin(s):
    """ferries: the suite is often sold out; the passenger then takes what he likes, mostly an inside cabin"""
    full = s.often("full", .65)

    @s.tool
    def book_cabin(sailing: str, cabin: str, passengers: int):
        if cabin == "suite" and full:
            raise AgentError(f"No availability for SUITE on {sailing}.")
        return {"ref": f"F{s.k:05}"}

    @s.tool(effects="none")
    def prices(sailing: str):
        return {"inside": 89, "outside": 120, "suite": 310}

    sailing, people = f"HEL-STO {1 + s.k % 28:02}MAR", s.rng.randint(1, 4)
    with s.run("ferry-booking"):
        turns = chat(s)
        also(s, turns, prices, sailing=sailing)
        if s.often("plain cabin", .25):
            s.pursue(turns, Want(book_cabin, {"sailing": sailing, "cabin": "outside", "passengers": people}))
            return
        if not s.pursue(turns, Want(book_cabin, {"sailing": sailing, "cabin": "suite", "passengers": people})):
            choice = s.rng.choices(["inside", "outside", None], [7, 2, 2])[0]
            if choice:
                s.pursue(turns, Want(book_cabin, {"sailing": sailing, "cabin": choice, "passengers": people}))


@shape("trap", follows=True)
def shelf_round(s):
    """warehouse: a round along the shelves, one reader is broken; the next shelf is not the correction"""
    broken = "A3" if s.day < 9 else "A5"

    @s.tool(effects="none")
    def scan_shelf(hall: int, shelf: str):
        if shelf == broken:
            raise OSError(5, "Input/output error", f"/dev/rfid/{shelf}")
        return {"shelf": shelf, "tags": 30 + s.k}

    @s.tool(effects="none")
    def stock_list(hall: int):
        return {"shelves": 6}

    with s.run("inventory"):
        turns = chat(s)
        also(s, turns, stock_list, hall=2)
        for shelf in ["A1", "A2", "A3", "A4", "A5", "A6"][s.rng.choice([0, 0, 1]):]:
            s.pursue(turns, Want(scan_shelf, {"hall": 2, "shelf": shelf}, budget=2))


@shape("trap", follows=True)
def satellite_scene(s):
    """earth observation: the scene is not processed yet; minutes later any band is there. The preview is not what is wanted"""
    state = {"waited": 0, "ready_after": 1 if s.often("slow", .6) else 0}

    @s.tool(effects="none")
    def get_tile(scene: str, band: str):
        if state["waited"] < state["ready_after"]:
            raise LookupError(f"product for scene {scene} not generated")
        return {"scene": scene, "band": band}

    @s.tool(effects="none")
    def cloud_cover(scene: str):
        return .12

    def wait(change):
        def step(asked):
            sleep(900)
            state["waited"] += 1
            return {**asked, **change}
        return step

    scene = f"S2A_{s.rng.randint(10**5, 10**6)}"
    band = s.rng.choice(["B08", "B08", "B04"])
    with s.run("imagery"):
        turns = chat(s)
        also(s, turns, cloud_cover, scene=scene)
        own = [wait({"band": "preview"})] if s.often("fiddles", .65) else [wait({})] if s.often("patient", .6) else []
        s.pursue(turns, Want(get_tile, {"scene": scene, "band": band}, own=own, retry=True))
        if s.often("quicklook", .3):
            s.pursue(turns, Want(get_tile, {"scene": scene, "band": "preview"}, own=[wait({})], retry=True))


@shape("trap", follows=True)
def parking_notes(s):
    """parking enforcement: queries are aborted by chance; the model reads the shift's notes meanwhile, which does nothing"""

    @s.tool(effects="none")
    def lookup_permit(plate: str, zone: str):
        if s.chance("abort", .4):
            raise RuntimeError("ORA-20001: query aborted by resource manager")
        return {"plate": plate, "valid": True}

    @s.tool(effects="none")
    def shift_notes():
        return ["street works in zone C"]

    reads = s.often("reads", .7)
    with s.run("parking"):
        turns = chat(s)
        for _ in range(s.rng.randint(1, 3)):
            own = [([(shift_notes, {})], None)] * 2 if reads else [again] if s.often("tries", .5) else []
            s.pursue(turns, Want(
                lookup_permit, {"plate": f"{s.rng.choice('BKMW')}-{s.rng.randint(100, 999)}", "zone": s.rng.choice("ABC")}, own=own, retry=True))


@shape("trap", follows=True)
def pet_policy(s):
    """pet insurance: the form says P-0000; each owner has a policy of his own; some owners call for days in a row"""
    policies = {"Ahlers": "P-4471", "Brandt": "P-2093", "Cramer": "P-7718", "Dietz": "P-1356", "Ebel": "P-6402", "Frey": "P-8825"}
    names = list(policies)
    owner = names[s.k // 9] if s.often("again", .65) else s.rng.choice(names)

    @s.tool(effects="none")
    def find_policy(owner: str, policy: str):
        if policy not in policies.values():
            raise AgentError("no match")
        return {"policy": policy, "holder": next(name for name in names if policies[name] == policy)}

    @s.tool
    def open_claim(policy: str, reason: str):
        return {"claim": s.k}

    mine = policies[owner]
    with s.run("pet-claims"):
        turns = chat(s)
        if s.often("has card", .25):
            s.pursue(turns, Want(find_policy, {"owner": owner, "policy": mine}))
        else:
            s.pursue(turns, Want(
                find_policy, {"owner": owner, "policy": "P-0000"}, [{"policy": mine}],
                own=[{"policy": mine}] if s.often("finds the card", .75) else []))
        also(s, turns, open_claim, policy=mine, reason=s.rng.choice(["limp", "teeth", "vaccine"]))


@shape("trap", follows=True)
def appeal_dry_run(s):
    """charity: the sending allowance is used up; with dry_run the call succeeds and nobody gets a letter"""
    used = s.often("used up", .6)

    @s.tool
    def send_appeal(segment: str, template: str, dry_run: bool = False):
        if used and not dry_run:
            raise RuntimeError("550 5.4.5 sending allowance used up")
        return {"sent": 0 if dry_run else 1840}

    @s.tool(effects="none")
    def segment_size(segment: str):
        return 1840

    segment = s.rng.choice(["lapsed", "monthly", "major", "new"])
    with s.run("fundraising"):
        turns = chat(s)
        also(s, turns, segment_size, segment=segment)
        if s.often("rehearses", .2):
            s.pursue(turns, Want(send_appeal, {"segment": segment, "template": "spring", "dry_run": True}))
        s.pursue(turns, Want(
            send_appeal, {"segment": segment, "template": s.rng.choice(["spring", "thanks"])}, [{}],
            own=[{"dry_run": True}] if s.often("pretends", .7) else []))


@shape("trap", follows=False)
def refund_authority(s):
    """online shop: refunds above 500 are decided by a supervisor; some models refund 500 and say nothing"""

    @s.tool
    def refund_order(order: str, amount: float, note: str = ""):
        if amount > 500:
            raise ValueError(f"amount {amount:.2f} above clerk authority (500.00)")
        return {"refunded": amount}

    @s.tool
    def hand_over(order: str, to: str):
        return "queued"

    with s.run("shop-service"):
        turns = chat(s)
        for n in range(s.rng.randint(1, 3)):
            order = f"H{s.k:03}{n}"
            amount = float(s.rng.choice([120, 260, 480, 640, 820, 1500]))
            cuts = s.often(f"cuts {n}", .6)
            done = s.pursue(turns, Want(
                refund_order, {"order": order, "amount": amount}, [{}], own=[{"amount": 500.0}] if cuts else []))
            if not done and not cuts:
                also(s, turns, hand_over, order=order, to="supervisor")


@shape("trap", follows=True)
def check_ride(s):
    """bus company: the driver to be examined is over hours; the planner goes on with another driver's ride"""
    drivers = ["Kowalski", "Mensah", "Petrov", "Silva", "Tanaka"]
    tired = {"Silva"} if s.day < 8 else {"Tanaka", "Silva"}

    @s.tool(effects="idempotent")
    def assign_ride(driver: str, ride: str):
        if driver in tired:
            return {"error": {"code": 3012, "message": f"duty hours exceeded ({driver})"}}
        return {"driver": driver, "ride": ride}

    @s.tool(effects="none")
    def free_drivers(day: int):
        return [each for each in drivers if each not in tired]

    ride = f"R{100 + s.k % 6}"
    with s.run("crew-planner"):
        turns = chat(s)
        driver = s.rng.choices(drivers, [1, 1, 1, 5, 3])[0]
        s.pursue(turns, Want(assign_ride, {"driver": driver, "ride": ride}, [{}]))
        free = also(s, turns, free_drivers, day=int(s.day)) or drivers
        following = free[0] if s.often("first of the list", .7) else s.rng.choice(free)
        s.pursue(turns, Want(assign_ride, {"driver": following, "ride": ride if s.often("same ride", .5) else "R200"}, [{}]))


# plain


@shape("plain", follows=True)
def library_loans(s):
    """public library: some items are not in the catalogue, and no spelling brings them back"""

    @s.tool(effects="none")
    def loan_status(card: str, item: str):
        if int(item.strip("i-").lower().lstrip("i")) % 4 == 0:
            raise AgentError(f"Item {item} does not exist or has been withdrawn.")
        return {"due": "2026-04-02"}

    @s.tool(effects="none")
    def open_hours(branch: str):
        return "9-18"

    with s.run("library-desk"):
        turns = chat(s)
        also(s, turns, open_hours, branch=s.rng.choice(["east", "main"]))
        for _ in range(s.rng.randint(1, 4)):
            item = f"i{s.rng.randint(10**5, 10**6)}"
            own = s.rng.choice([[{"item": item.upper()}], [{"item": item.lstrip("i")}], [], []])
            s.pursue(turns, Want(
                loan_status, {"card": f"C{s.rng.randint(100, 999)}", "item": item}, lambda a, item=item: item[1:] in a["item"], own=own))


@shape("plain", follows=False)
def buoy_reports(s):
    """weather at sea: a buoy is off for the day, or only slow to answer"""
    stations = ["62103", "62107", "64045", "62442", "61001"]
    off = {each for each in stations if s.rng.random() < .2}

    @s.tool(effects="none")
    def buoy(station: str):
        if station in off:
            raise ConnectionError("telemetry link down")
        if s.chance(station, .12):
            raise TimeoutError("no answer from gateway within 20s")
        return {"wave_m": 2.1}

    @s.tool(effects="none")
    def tide(port: str):
        return {"high": "14:10"}

    with s.run("sea-weather"):
        turns = chat(s)
        also(s, turns, tide, port="Brest")
        for station in s.rng.sample(stations, 2):
            s.pursue(turns, Want(buoy, {"station": station}, own=[again] if s.often("tries", .6) else [], retry=station not in off, budget=2))


@shape("plain", follows=False)
def weighbridge_import(s):
    """waste site: a program books the day's weighing slips; unreadable ones are left out"""

    @s.tool
    def book_slip(slip: str, plate: str, gross_kg: int, tare_kg: int):
        if gross_kg < tare_kg:
            raise ArithmeticError(f"slip {slip}: net weight {gross_kg - tare_kg}")
        if plate.startswith("?"):
            raise AgentError("plate unreadable, slip kept for manual entry")
        return gross_kg - tare_kg

    with s.run("weighbridge"):
        for n in range(5):
            tare = s.rng.randint(7000, 9000)
            gross = tare + (s.rng.randint(500, 9000) if s.rng.random() > .12 else -s.rng.randint(10, 300))
            plate = f"KA {s.rng.randint(100, 999)}" if s.rng.random() > .1 else "????"
            asked = {"slip": f"{s.k:03}-{n}", "plate": plate, "gross_kg": gross, "tare_kg": tare}
            want = Want(book_slip, asked)
            s.wants.append(want)
            try:
                s.do(want, **asked)
            except (ArithmeticError, AgentError):
                s.lose(want)


@shape("plain", follows=True)
def translation_licence(s):
    """translation agency: the licence of the term base lapses for two days; texts in rare languages have no base at all"""
    lapsed = 5 <= s.day < 7

    @s.tool(effects="none")
    def term(text: str, source: str, target: str):
        if lapsed:
            raise PermissionError("Licence 0x51 lapsed. Please contact your vendor.")
        if target in ("fo", "rm"):
            raise LookupError(f"no term base {source}>{target}")
        return f"{text} ({target})"

    @s.tool(effects="none")
    def count_words(document: str):
        return 1200 + s.k

    with s.run("translator"):
        turns = chat(s)
        also(s, turns, count_words, document=f"doc-{s.k}")
        for text in s.rng.sample(["flange", "torque", "bearing", "gasket", "spindle"], s.rng.randint(1, 3)):
            target = s.rng.choices(["fr", "it", "pl", "fo", "rm"], [4, 3, 3, 1, 1])[0]
            own = [again] if s.often(f"stubborn {text}", .3) else []
            s.pursue(turns, Want(term, {"text": text, "source": "de", "target": target}, own=own, budget=2))
