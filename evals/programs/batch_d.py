"""Twenty-four workplaces, written without knowledge of mulligan's rules and before any was run on it.

`s` is one run of one of them (kit.Play). A Want says what the user wants, which arguments give the right result, what the
model would try by itself, and whether there is a real correction to be learned.
"""
import asyncio
import re
from datetime import datetime, timedelta
from typing import Literal

from kit import GONE, Want, shape, sleep
from mulligan import AgentError


def chat(s, limit=24):
    s.open_turns.append(iter(s.m.turns(limit=limit)))
    return s.open_turns[-1]


def tries(s, key, share, good, *others):
    """What the model does after the failure: the right thing with this share, otherwise one of the others."""
    index = s.rng.randrange(len(others)) if others else None
    if s.often(key, share):
        return good
    return [] if index is None else others[index]


# 1-12: the house has a habit that can be learned


@shape("lesson", follows=True)
def ward_lab_priority(s):
    """hospital ward: the laboratory takes one-letter priorities; models say `urgent`, the doctors' notes sometimes have the letter"""
    letters = {"urgent": "S", "routine": "R"}

    @s.tool
    def order_lab(case_no: str, panel: str, priority: str, specimen: str = "venous blood", collect_at: str | None = None,
                  remark: str | None = None):
        if priority not in ("S", "A", "R", "P", "T"):
            return {"error": {"code": "OBR-27.6", "text": "value not in table 0485", "ack": "AE"}}
        return {"placer_order": f"{case_no}-{panel}", "priority": priority}

    word = "urgent" if s.often("urgent", .7) else "routine"
    panel = s.rng.choice(["CBC", "BMP", "troponin", "CRP", "lactate"])
    case = f"{s.rng.randint(40_000, 49_999)}"
    with s.run("ward-clerk"):
        turns = chat(s)
        if s.often("noted", .5):
            s.pursue(turns, Want(order_lab, {"case_no": case, "panel": "type and screen", "priority": "P"}))
        s.pursue(turns, Want(
            order_lab, {"case_no": case, "panel": panel, "priority": word}, [{"priority": letters[word]}],
            own=tries(s, "knows", .65, [{"priority": letters[word]}],
                      [{"priority": "STAT"}, {"priority": "A"}], [{"priority": word.upper()}], [{"priority": "T"}]),
            lesson=f"priority {word}={letters[word]}"))


@shape("lesson")
def call_centre_callback(s):
    """call centre: the dialler wants 00 instead of +; a number without its country is dialled at home and reaches a stranger"""

    @s.tool
    def schedule_callback(number: str, queue: str, slot: str, language: str = "en", agent: str | None = None):
        if not number.isdigit() or (len(number) > 9 and not number.startswith("00")):
            raise RuntimeError(f"dialler: 4012 destination not routable (queue={queue})")
        return {"callback": f"cb-{s.k}", "slot": slot}

    country, language = s.rng.choice([("47", "no"), ("46", "sv"), ("49", "de"), ("31", "nl")])
    local = str(s.rng.randint(20_000_000, 99_999_999))
    queue = s.rng.choice(["billing", "moves", "faults"])
    with s.run("callback-agent"):
        turns = chat(s)
        s.pursue(turns, Want(
            schedule_callback,
            {"number": f"+{country}{local}", "queue": queue, "slot": f"{9 + s.k % 8}:30", "language": language},
            [{"number": f"00{country}{local}"}],
            own=tries(s, "knows", .65, [{"number": f"00{country}{local}"}],
                      [{"number": f"{country}{local}"}], [{"number": local}],
                      [{"number": f"{country}{local}"}, {"number": local}],
                      [{"number": f"+{country} {local}"}, {"number": f"00{country}{local}"}]),
            lesson="00 instead of +"))
        if s.often("inhouse", .5):
            s.pursue(turns, Want(schedule_callback, {"number": str(7000 + s.k), "queue": "internal", "slot": "16:00"}))


@shape("lesson", follows=True)
def film_call_sheet(s):
    """film set: a day must be locked before its call sheet is sent; with send=False a draft is made that nobody gets"""
    locked = set()
    day = 3 + s.k % 30
    production = s.rng.choice(["Fjordland", "The Ninth Bell"])
    if s.often("locked", .25):
        locked.add(day)

    class Conflict(Exception):
        pass

    @s.tool
    def publish_call_sheet(production: str, shoot_day: int, unit: str = "main", revision: str = "white", send: bool = True):
        if send and shoot_day not in locked and shoot_day > 2:
            raise Conflict(f"409 Conflict: day {shoot_day} is open for edits")
        return {"sheet": f"{production}/{shoot_day}/{unit}/{revision}", "sent": send}

    @s.tool(effects="idempotent")
    def lock_day(production: str, shoot_day: int, reason: str | None = None):
        locked.add(shoot_day)
        return {"shoot_day": shoot_day, "state": "locked"}

    @s.tool(effects="none")
    def list_cast(production: str, shoot_day: int, unit: str = "main"):
        return ["Ada", "Jon", "Mira"]

    this = {"production": production, "shoot_day": day}
    with s.run("second-assistant-director"):
        turns = chat(s)
        if s.often("cast", .6):
            s.pursue(turns, Want(list_cast, dict(this)))
        s.pursue(turns, Want(
            publish_call_sheet, {**this, "unit": "main", "revision": "white"}, [{}],
            own=tries(s, "knows", .7, [([(lock_day, dict(this))], None)],
                      [{"send": False}], [{"revision": "blue"}], [{"revision": "blue"}, {"send": False}]),
            pre=("lock_day",), how={"lock_day": dict(this)}, lesson=None if day in locked else "lock_day first"))
        if s.often("prep", .3):
            s.pursue(turns, Want(publish_call_sheet, {"production": production, "shoot_day": 1 + s.k % 2, "unit": "splinter"}))


SHIPS = {"Nordic Star": "9321483", "Elbe Trader": "9456101", "Maren K": "9187722", "Lady Ingrid": "9502290",
         "Baltic Pride": "9274466", "Sanna": "9633918", "Hav Atlantic": "9011739"}


class VtsError(LookupError):
    pass


@shape("lesson", follows=True)
def harbour_berth(s):
    """harbour: ships are known by their IMO number, which the register has; users and models say the name"""

    @s.tool
    def request_berth(vessel: str, berth: str, eta: str, draught_m: float, tugs: int = 1, dangerous_goods: bool = False):
        if vessel not in SHIPS.values():
            raise VtsError(f"no traffic object for key {vessel!r}")
        return {"request": f"{vessel}/{berth}", "eta": eta}

    @s.tool(effects="none")
    def ship_register(name: str, flag: str | None = None):
        return {"name": name, "imo": SHIPS[name], "loa_m": 80 + len(name) * 9}

    @s.tool(effects="none")
    def berth_status(berth: str, day: str | None = None):
        return {"berth": berth, "free": True}

    name = s.rng.choice(list(SHIPS))
    berth = s.rng.choice(["A1", "A2", "B4", "Tank 1"])
    other = s.rng.choice(list(SHIPS.values()))
    with s.run("harbour-desk"):
        turns = chat(s)
        if s.often("status", .5):
            s.pursue(turns, Want(berth_status, {"berth": berth}))
        if s.often("form", .35):  # an agency's form already has the number
            s.pursue(turns, Want(request_berth, {"vessel": other, "berth": "B5", "eta": "04:00", "draught_m": 6.2}))
        s.pursue(turns, Want(
            request_berth, {"vessel": name, "berth": berth, "eta": f"{s.rng.randint(0, 23):02}:15",
                            "draught_m": s.rng.choice([5.5, 7.1, 8.4])},
            [{"vessel": SHIPS[name]}],
            own=tries(s, "knows", .6, [([(ship_register, {"name": name})], lambda got: {"vessel": got["imo"]})],
                      [{"vessel": name.upper()}], [{"vessel": f"MV {name}"}], []),
            pre=("ship_register",), how={"ship_register": {"name": name}}, use=lambda got: {"vessel": got["imo"]},
            lesson="IMO number of ship_register"))


@shape("lesson")
def tax_office_channel(s):
    """tax office: persons file by portal, companies by edi; `paper` is always taken, but takes six weeks"""

    @s.tool
    def file_extension(tax_id: str, declarant: str, tax: str, period: str, channel: str, days: int = 30):
        if channel != "paper" and channel != {"person": "portal", "company": "edi"}[declarant]:
            return {"error": "E2207", "message": "Transmission route not admissible for this declarant."}
        return {"receipt": f"{tax_id}-{period}", "channel": channel}

    with s.run("tax-assistant"):
        turns = chat(s)
        for number in range(1 + s.often("two", .4)):
            declarant = "company" if s.often(f"company{number}", .5) else "person"
            channel = {"person": "portal", "company": "edi"}[declarant]
            other = {"person": "edi", "company": "portal"}[declarant]
            s.pursue(turns, Want(
                file_extension,
                {"tax_id": f"{s.rng.randint(10**9, 10**10 - 1)}", "declarant": declarant,
                 "tax": s.rng.choice(["income", "vat", "trade"]), "period": s.rng.choice(["2025", "2026Q1", "2026Q2"]),
                 "channel": "online"},
                [{"channel": channel}],
                own=tries(s, f"knows{number}", .65, [{"channel": channel}],
                          [{"channel": "paper"}], [{"channel": other}, {"channel": "paper"}], [{"channel": "web"}]),
                lesson=f"{declarant} channel={channel}"))


@shape("lesson", follows=True)
def nursery_trays(s):
    """plant nursery: perennials go by trays of 12; who changes only the unit gets twelve times too many"""

    @s.tool
    def reserve_plants(customer: str, article: str, quantity: int, unit: str = "piece", week: int = 14, note: str | None = None):
        if article.startswith("PER-") and unit != "tray":
            raise ValueError("Sales unit does not match the article group (PER).")
        return {"article": article, "plants": quantity * (12 if unit == "tray" else 1)}

    wanted = s.rng.choice([24, 36, 48, 60, 96, 120])
    article = s.rng.choice(["PER-SALVIA", "PER-GERANIUM", "PER-NEPETA", "PER-ASTER"])
    customer = s.rng.choice(["Gartenhaus Lind", "City Parks", "Villa Roos", "Hotel Anker"])
    with s.run("nursery-orders"):
        turns = chat(s)
        if s.often("trees", .5):
            s.pursue(turns, Want(reserve_plants, {"customer": customer, "article": "TRE-ACER", "quantity": 1 + s.k % 6, "unit": "piece"}))
        s.pursue(turns, Want(
            reserve_plants, {"customer": customer, "article": article, "quantity": wanted, "unit": "piece", "week": 12 + s.k % 8},
            [{"unit": "tray", "quantity": wanted // 12}],
            own=tries(s, "knows", .7, [{"unit": "tray", "quantity": wanted // 12}],
                      [{"unit": "tray"}], [{"unit": "pot"}], [{"unit": "pieces"}, {"unit": "tray"}]),
            lesson="trays of 12"))


class BadRequest(Exception):
    def __init__(self, text):
        super().__init__(f"400 {text}")
        self.status_code = 400


@shape("lesson", follows=True)
def data_team_date_column(s):
    """data team: product tables have `event_date` until day 8, then `event_day_utc`; `loaded_at` works and counts the wrong days"""
    column = "event_date" if s.day < 8 else "event_day_utc"

    @s.tool(effects="none")
    def query_table(table: str, metrics: list[str], date_column: str, since: str, until: str, limit: int = 1000):
        known = {"booking_date"} if table.startswith("finance.") else {column, "loaded_at"}
        if date_column not in known:
            raise BadRequest(f"Unrecognized name: {date_column} at [3:{len(table)}]")
        return {"rows": limit, "by": date_column}

    table = s.rng.choice(["product.signups", "product.clicks", "product.checkouts", "product.searches"])
    start = datetime(2026, 5, 1) + timedelta(days=s.k)
    span = {"since": f"{start:%Y-%m-%d}", "until": f"{start + timedelta(days=7):%Y-%m-%d}"}
    with s.run("analytics-bot"):
        turns = chat(s)
        s.pursue(turns, Want(
            query_table, {"table": table, "metrics": ["users"], "date_column": "created_at", **span}, [{"date_column": column}],
            own=tries(s, "knows", .75, [{"date_column": column}],
                      [{"date_column": "loaded_at"}], [{"date_column": "created"}], [{"date_column": "timestamp"}, {"date_column": "loaded_at"}]),
            lesson=f"date_column={column}"))
        if s.often("finance", .5):
            s.pursue(turns, Want(query_table, {
                "table": "finance.invoices", "metrics": ["amount", "count"], "date_column": "booking_date", **span}))


@shape("lesson")
def hotel_corporate_rate(s):
    """hotel chain: the rate CORP needs the company's number, which is always LX-4471 at this travel desk; BAR is the public price"""

    @s.tool(effects="none")
    def quote_room(hotel: str, arrival: str, nights: int, rate_code: str = "BAR", company_no: str | None = None, guests: int = 1):
        if rate_code == "CORP" and company_no != "LX-4471":
            return {"error": "RATE_RESTRICTED", "detail": "rate CORP is not available to this requester", "hotel": hotel}
        return {"hotel": hotel, "total": nights * (149 if rate_code == "BAR" else 118)}

    arrival = f"2026-0{s.rng.randint(4, 9)}-{s.rng.randint(1, 28):02}"
    hotel = s.rng.choice(["LYS01", "OSL02", "GRZ01", "TRN03", "PRT01"])
    with s.run("travel-desk"):
        turns = chat(s)
        if s.often("private", .4):
            s.pursue(turns, Want(quote_room, {"hotel": hotel, "arrival": arrival, "nights": 2, "rate_code": "BAR", "guests": 2}))
        s.pursue(turns, Want(
            quote_room, {"hotel": hotel, "arrival": arrival, "nights": 1 + s.k % 4, "rate_code": "CORP"},
            [{"company_no": "LX-4471"}],
            own=tries(s, "knows", .6, [{"company_no": "LX-4471"}],
                      [{"rate_code": "BAR"}], [{"company_no": "Luxora"}], [{"company_no": "Luxora"}, {"rate_code": "BAR"}]),
            lesson="CORP with company_no"))


@shape("lesson", follows=True)
def football_member_price(s):
    """football club: the member's price already holds the concession; without the number the fan loses his points"""

    @s.tool
    def sell_ticket(match: str, block: str, category: int, member_no: str | None = None, concession: str | None = None,
                    delivery: str = "mobile"):
        if member_no and concession:
            raise ValueError("PRC-11 conflicting price reductions; sale not opened")
        return {"ticket": f"{match}/{block}", "points": 10 if member_no else 0}

    match = f"R{1 + s.k % 17}"
    group = s.rng.choice(["senior", "student", "youth"])
    first = {"match": match, "block": s.rng.choice(["N3", "N4", "E1"]), "category": s.rng.randint(1, 3),
             "member_no": f"M{s.rng.randint(10_000, 99_999)}", "concession": group}
    with s.run("ticket-desk"):
        turns = chat(s)
        if s.often("guest", .5):
            s.pursue(turns, Want(sell_ticket, {"match": match, "block": "W2", "category": 2, "concession": group}))
        s.pursue(turns, Want(
            sell_ticket, first, [{"concession": GONE}],
            own=tries(s, "knows", .65, [{"concession": GONE}],
                      [{"member_no": GONE}], [{"concession": "none"}], [{"concession": "member"}, {"concession": GONE}]),
            lesson="omit concession with member_no"))
        if s.often("member", .3):
            s.pursue(turns, Want(sell_ticket, {"match": match, "block": "N3", "category": 1, "member_no": f"M{20_000 + s.k}"}))


class JobRejected(Exception):
    pass


@shape("lesson")
def print_shop_binding(s):
    """print shop: the default binding needs 40 pages; thinner brochures are saddle-stitched here, on the ordered paper"""

    @s.tool
    def submit_job(file: str, pages: int, copies: int, paper: str = "135g matt", binding: str = "perfect", sides: str = "4/4"):
        spine = pages * (.13 if paper.startswith("300g") else .055)
        if binding == "perfect" and spine < 2.2:
            raise JobRejected(f"Preflight report for {file}\n  fonts ........ embedded\n  images ....... 300 dpi\n"
                              f"  spine ........ {spine:.1f} mm, cannot be glued\nResult: REJECTED, the job was not queued.")
        return {"job": s.k, "binding": binding}

    pages = s.rng.choice([20, 24, 28, 32, 36])
    with s.run("prepress"):
        turns = chat(s)
        s.pursue(turns, Want(
            submit_job, {"file": f"brochure_{s.k}.pdf", "pages": pages, "copies": s.rng.choice([200, 500, 1000])},
            [{"binding": "saddle"}],
            own=tries(s, "knows", .7, [{"binding": "saddle"}],
                      [{"binding": "wire"}], [{"paper": "300g matt"}], [{"paper": "150g matt"}]),
            lesson="binding=saddle for thin ones"))
        if s.often("book", .5):
            s.pursue(turns, Want(submit_job, {"file": f"catalogue_{s.k}.pdf", "pages": 64 + 8 * (s.k % 9), "copies": 300}))


@shape("lesson")
def fire_brigade_time(s):
    """fire brigade: times are date-time groups (141530oct26); four digits alone are taken as today, but the log is written the next day"""

    @s.tool
    def log_alarm(incident: str, vehicle: str, alarm_at: str, grid: str, crew: int, keyword: str | None = None):
        if not re.fullmatch(r"\d{6}[a-z]{3}\d\d|\d{4}", alarm_at.lower()):
            return {"error": 422, "fields": {"alarm_at": "not a DTG"}, "incident": incident}
        return {"incident": incident, "vehicle": vehicle}

    at = datetime(2026, 10, 3, 6, 10) + timedelta(hours=11 * s.k, minutes=7 * s.k)
    group = f"{at:%d%H%M%b%y}".lower()
    incident = f"F{260_000 + s.k}"
    grid = f"32UNF{s.rng.randint(1000, 9999)}"
    with s.run("watch-room"):
        turns = chat(s)
        vehicles = [f"{s.rng.choice(['HLF', 'DLK', 'TLF'])}-{number}" for number in range(1 + s.often("two", .35))]
        known = s.often("knows", .6)
        for vehicle in vehicles:
            good = [{"alarm_at": group}]
            own = good if known else tries(s, "never", 0, good, [{"alarm_at": f"{at:%d.%m.%Y %H:%M}"}], [{"alarm_at": f"{at:%H%M}"}],
                                           [{"alarm_at": f"{at:%H:%M}"}, {"alarm_at": f"{at:%H%M}"}])
            s.pursue(turns, Want(
                log_alarm, {"incident": incident, "vehicle": vehicle, "alarm_at": f"{at:%Y-%m-%dT%H:%M}", "grid": grid, "crew": 6},
                lambda a: a["alarm_at"].lower() == group, own=own, lesson="date-time group"))


@shape("lesson")
def lab_instrument_hours(s):
    """research lab: the NMR may be booked for 4 hours, the mass spectrometer for 2; users want the longest slot the house allows"""
    longest = {"nmr-400": 4, "ms-orbi": 2, "sem-2": 8}

    @s.tool
    def book_instrument(instrument: str, start: str, hours: int, project: str, user: str | None = None, training_ok: bool = True):
        if hours > longest[instrument]:
            raise PermissionError("booking policy violation (slot_length)")
        return {"instrument": instrument, "hours": hours}

    instrument = s.rng.choice(["nmr-400", "nmr-400", "ms-orbi"])
    most = longest[instrument]
    project = f"P{s.rng.randint(100, 140)}"
    with s.run("lab-scheduler"):
        turns = chat(s)
        if s.often("sem", .4):
            s.pursue(turns, Want(book_instrument, {"instrument": "sem-2", "start": "08:00", "hours": 8, "project": project}))
        s.pursue(turns, Want(
            book_instrument, {"instrument": instrument, "start": f"{7 + s.k % 5:02}:00", "hours": 8, "project": project},
            lambda a: a["hours"] == most and a["instrument"] == instrument and a["project"] == project,
            own=tries(s, "knows", .75, [{"hours": most}],
                      [{"hours": 1}], [{"hours": 6}], [{"hours": 6}, {"hours": most}]),
            lesson=f"{instrument} hours={most}"))


# 13-20: what follows the failure must not be repeated to the next user


class CustomsReject(Exception):
    pass


@shape("trap", follows=True)
def customs_licence(s):
    """freight forwarder: a licence belongs to the consignee of this shipment; the office takes any valid one, and fines come later"""
    licences = {"Aero Parts": "X-2231", "Kessel": "X-7790", "Fairmont Labs": None}

    @s.tool
    def declare_goods(shipment: str, hs_code: str, origin: str, value_eur: float, licence: str | None = None, procedure: str = "4000"):
        if hs_code.startswith("8543") and licence not in ("X-2231", "X-7790"):
            raise CustomsReject("R-0871 box 44: supporting document missing or not valid")
        return {"mrn": f"26DE{s.k:06}"}

    consignee = s.rng.choice(["Aero Parts"] * 5 + ["Kessel"] * 3 + ["Fairmont Labs"] * 2)
    licence = licences[consignee]
    with s.run("customs-clerk"):
        turns = chat(s)
        if s.often("plain", .6):
            s.pursue(turns, Want(declare_goods, {"shipment": f"S{2000 + s.k}", "hs_code": "940360", "origin": "PL", "value_eur": 4200.0}))
        s.pursue(turns, Want(
            declare_goods, {"shipment": f"S{1000 + s.k}", "hs_code": "854370", "origin": s.rng.choice(["US", "JP", "CH"]),
                            "value_eur": float(s.rng.randint(5, 90) * 100)},
            [{"licence": licence}] if licence else [], own=[{"licence": licence}] if licence else []))


@shape("trap", follows=True)
def shop_family_basket(s):
    """online shop: a size is sold out; the next line of the basket is the same shirt in another size, for somebody else"""
    is_out = s.often("out", .65)
    sku = s.rng.choice(["TEE-204", "TEE-211", "HOOD-09"])
    size = s.rng.choice(["M", "M", "S"])

    @s.tool
    def reserve_item(basket: str, sku: str, size: str, colour: str, qty: int = 1, gift_wrap: bool = False):
        if is_out and size in ("S", "M") and colour == "navy":
            return {"error": "OUT_OF_STOCK", "available": 0, "restock": None}
        return {"basket": basket, "reserved": qty}

    basket = f"b-{s.rng.randint(10**5, 10**6)}"
    with s.run("shop-assistant"):
        turns = chat(s)
        s.pursue(turns, Want(reserve_item, {"basket": basket, "sku": sku, "size": size, "colour": "navy"}, name="for the mother"))
        if s.often("father", .8):
            s.pursue(turns, Want(reserve_item, {"basket": basket, "sku": sku, "size": "L", "colour": "navy"}, name="for the father"))
        if s.often("child", .4):
            s.pursue(turns, Want(reserve_item, {"basket": basket, "sku": sku, "size": size, "colour": "red"}, name="for the child"))


@shape("trap", follows=True)
def observatory_filter(s):
    """observatory: clouds pass; models change the filter or the guiding meanwhile and are lucky, but the survey needs this filter, guided"""

    @s.tool
    def expose(target: str, band: Literal["g", "r", "i"], seconds: int, guiding: bool = True, binning: int = 1):
        if s.chance("clouds", .4):
            raise RuntimeError("guider: star lost (SNR 2.1 < 5.0), exposure aborted after 3 s")
        return {"frame": f"{target}_{band}.fits", "seconds": seconds}

    field = f"F{s.rng.randint(100, 400)}"
    with s.run("night-observer"):
        turns = chat(s)
        for number, band in enumerate(["r", "g"] if s.often("two", .5) else ["r"]):
            s.pursue(turns, Want(
                expose, {"target": field, "band": band, "seconds": 300}, [{}], retry=True,
                own=tries(s, f"patient{number}", .35, [lambda asked: asked, lambda asked: asked],
                          [{"band": "i"}, {"band": "i", "seconds": 120}], [{"guiding": False}], [{"band": "i"}, {"guiding": False}])))


class PaymentRejected(Exception):
    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code = code


@shape("trap", follows=True)
def bank_release_window(s):
    """bank: the clearing is not open yet; some models page the treasury, who do nothing, and the clearing has opened by then"""
    clock = {"minutes": 0}
    opens = 20 if s.often("early", .6) else 0

    def passes(minutes):
        clock["minutes"] += minutes
        sleep(minutes * 60)

    @s.tool
    def release_batch(batch: str, value_date: str, channel: str = "SEPA", approver: str = "auto", note: str | None = None):
        if channel == "SEPA" and clock["minutes"] < opens:
            raise PaymentRejected("RJCT/TM01", "instruction not accepted")
        return {"batch": batch, "channel": channel}

    @s.tool
    def page_treasury(batch: str, reason: str):
        passes(25)
        return {"paged": True, "answer": "nothing to do on our side"}

    @s.tool(effects="none")
    def wait_minutes(minutes: int):
        passes(minutes)
        return {"waited": minutes}

    batch = f"PAY{s.rng.randint(1000, 9999)}"
    habit = s.rng.choice(["page", "page", "page", "page", "wait", "wait", "swift", "leave"])
    own = {"page": [([(page_treasury, {"batch": batch, "reason": "rejected"})], None)],
           "wait": [([(wait_minutes, {"minutes": 30})], None)],
           "swift": [{"channel": "SWIFT"}],  # executed, for a fee of which nobody knew
           "leave": []}[habit]
    with s.run("payments"):
        s.pursue(chat(s), Want(
            release_batch, {"batch": batch, "value_date": f"2026-06-{1 + s.k % 28:02}", "channel": "SEPA"}, [{}],
            own=own, retry=True, pre=("wait_minutes",), how={"wait_minutes": {"minutes": 30}, "page_treasury": {"batch": batch, "reason": "rejected"}}))


@shape("trap")
def archive_resolution(s):
    """archive: master scans of some collections need a written request; models take the preview, with which a printer can do nothing"""

    @s.tool(effects="none")
    def get_scan(collection: str, box: int, sheet: int, dpi: int = 150, fmt: str = "tiff"):
        if dpi > 300 and collection in ("Hartmann", "Guild books"):
            raise PermissionError("Master files of this collection are issued on written request only (reading room, form 12).")
        return {"file": f"{collection}/{box}/{sheet}.{fmt}", "dpi": dpi}

    with s.run("picture-desk"):
        turns = chat(s)
        collection = s.rng.choice(["Hartmann", "Guild books", "Hartmann", "Posters"])
        box = s.rng.randint(1, 60)
        s.pursue(turns, Want(
            get_scan, {"collection": collection, "box": box, "sheet": 1 + s.k % 12, "dpi": 600}, [{}],
            own=tries(s, "lowers", .7, [{"dpi": 150}], [], [{"dpi": 400}], [{"collection": "Posters"}])))
        if s.often("look", .5):
            s.pursue(turns, Want(get_scan, {"collection": collection, "box": box, "sheet": 2, "dpi": 150, "fmt": "jpg"}))
        if s.often("poster", .3):
            s.pursue(turns, Want(get_scan, {"collection": "Posters", "box": 3, "sheet": 1 + s.k % 5, "dpi": 600}))


@shape("trap", follows=True)
def pharmacy_strength(s):
    """pharmacy: 20 mg is missing; the doctor decides for this patient: two of 10, half of 40, or wait"""
    is_out = s.often("out", .7)

    @s.tool
    def prepare_dose(patient: str, drug: str, strength_mg: int, per_dose: float, pack: int = 30, form: str = "tablet"):
        if is_out and strength_mg == 20:
            return {"error": "not_in_stock", "drug": drug, "next_delivery": "unknown"}
        return {"patient": patient, "prepared": f"{drug} {strength_mg} mg x {per_dose}"}

    choice = s.rng.choice(["two", "two", "two", "half", "half", "wait"])
    decided = {"two": {"strength_mg": 10, "per_dose": 2.0}, "half": {"strength_mg": 40, "per_dose": .5}}.get(choice)
    drug = s.rng.choice(["torasemide", "prednisolone", "atorvastatin"])
    with s.run("pharmacy") as run:
        turns = chat(s)
        got = s.pursue(turns, Want(
            prepare_dose, {"patient": f"p{s.rng.randint(100, 999)}", "drug": drug, "strength_mg": 20, "per_dose": 1.0},
            [decided] if is_out and decided else [{}], own=[decided] if decided else []))
        if s.often("other", .5):
            s.pursue(turns, Want(prepare_dose, {"patient": f"q{s.k}", "drug": drug, "strength_mg": 10, "per_dose": 1.0}))
        if got and is_out:
            run.is_true("recovered", "partial")  # not what was prescribed, but what the doctor then decided


class ExpensePolicyError(Exception):
    pass


@shape("trap")
def expense_category(s):
    """accounting: a dinner above the ceiling needs the manager; filed as travel or for less, it passes and is false"""

    @s.tool
    def submit_expense(employee: str, amount: float, currency: str, category: str, receipt: str, cost_centre: str = "CC-100"):
        if category == "hospitality" and amount > 60:
            raise ExpensePolicyError("POL-7: claim not accepted in this category")
        return {"claim": f"{employee}-{receipt}", "category": category}

    employee = s.rng.choice(["e114", "e120", "e133", "e151", "e162"])
    amount = s.rng.choice([42.5, 58.0, 84.0, 118.4, 96.9, 140.0])
    with s.run("expenses"):
        turns = chat(s)
        if s.often("train", .6):
            s.pursue(turns, Want(submit_expense, {"employee": employee, "amount": 73.2, "currency": "EUR", "category": "travel",
                                                  "receipt": f"t{s.k}"}))
        s.pursue(turns, Want(
            submit_expense, {"employee": employee, "amount": amount, "currency": "EUR", "category": "hospitality", "receipt": f"h{s.k}"},
            [{}], own=tries(s, "reclassifies", .6, [{"category": "travel"}], [], [{"amount": 60.0}], [])))


@shape("trap")
def airport_stand(s):
    """airport: B12 is closed for works on days 2 to 6 (the dispatcher names a remote stand); later it is only taken for ten minutes,
    and the flight has a passenger in a wheelchair who needs the bridge"""
    works = 2 <= s.day < 7
    is_wide = s.often("wide", .25)
    state = {"taken": works or s.day >= 7 and s.often("late", .7)}

    @s.tool
    def assign_stand(flight: str, stand: str, on_block: str, off_block: str, towing: bool = False):
        if stand == "B12" and state["taken"]:
            return {"error": "STAND_NOT_AVAILABLE", "stand": stand, "flight": flight}
        return {"flight": flight, "stand": stand}

    def later(asked):
        sleep(600)
        state["taken"] = False
        return asked

    named = {"stand": "R5" if is_wide else "R3"}
    hour = s.rng.randint(5, 21)
    with s.run("stand-planner") as run:
        turns = chat(s)
        if s.often("before", .5):
            s.pursue(turns, Want(assign_stand, {"flight": f"DY{600 + s.k}", "stand": "B10", "on_block": "06:10", "off_block": "06:55"}))
        got = s.pursue(turns, Want(
            assign_stand, {"flight": f"SK{300 + s.k}", "stand": "B12", "on_block": f"{hour:02}:05", "off_block": f"{hour + 1:02}:00"},
            [named] if works else [{}], own=[named] if works else tries(s, "holds", .7, [later], [named]), retry=not works))
        if got and works:
            run.is_true("recovered", "partial")  # not the stand that was asked for, but the one that the dispatcher named


# 21-24: ordinary work


@shape("plain", follows=True)
def library_renewals(s):
    """library: a reader renews three loans; some are reserved by others, and some cards are blocked"""
    is_blocked = s.often("blocked", .1)

    @s.tool
    def renew_loan(card: str, item: int, days: int = 28, notify: bool = True):
        if is_blocked:
            raise AgentError("Card is blocked because of unpaid fees.", hint="Ask the reader to pay at the desk.")
        if item % 5 == 0:
            raise AgentError(f"Item {item} is reserved by another reader.")
        return {"item": item, "due_in": days}

    @s.tool(effects="none")
    def list_loans(card: str, branch: str | None = None, overdue_only: bool = False):
        return [{"item": item} for item in items]

    items = s.rng.sample(range(3000, 3400), 3)
    card = f"C{s.rng.randint(1000, 9999)}"
    with s.run("library-desk"):
        turns = chat(s)
        s.pursue(turns, Want(list_loans, {"card": card}))
        for number, item in enumerate(items):
            s.pursue(turns, Want(renew_loan, {"card": card, "item": item, "days": s.rng.choice([14, 28])},
                                 own=[lambda asked: asked] if s.often(f"again{number}", .2) else []))


@shape("plain")
def brewery_tank_report(s):
    """brewery: a nightly program reads the tanks; the bus is slow at times, and a probe of tank 7 is broken from day 5 on"""

    @s.tool(effects="none")
    def read_tank(tank: int, probe: str, window_min: int, unit: str = "C", smooth: bool = False):
        if tank == 7 and probe == "bottom" and s.day >= 5:
            raise ConnectionError("modbus unit 17: no response")
        if s.chance("slow", .08):
            raise TimeoutError("read timed out after 5.0 s")
        return round(12 + tank / 10 + (s.k % 5) / 10, 1)

    with s.run("tank-report"):
        for tank in (3, 5, 7):
            for probe in ("top", "bottom"):
                want = Want(read_tank, {"tank": tank, "probe": probe, "window_min": 15},
                            retry=not (tank == 7 and probe == "bottom" and s.day >= 5))
                s.wants.append(want)
                try:
                    s.do(want, **want.first)
                except (ConnectionError, TimeoutError):
                    s.lose(want)


class HttpError(Exception):
    def __init__(self, status_code, text):
        super().__init__(f"HTTP {status_code}: {text}")
        self.status_code = status_code


@shape("plain")
def podcast_transcripts(s):
    """podcast studio: an asynchronous program transcribes recordings; the service is busy at times, some files are damaged"""

    @s.tool(effects="none")
    async def transcribe(audio: str, language: str, speakers: int = 2, punctuate: bool = True, glossary: str | None = None):
        await asyncio.sleep(0)
        if audio.endswith("_take9.m4a"):
            raise ValueError("ffmpeg exited with 1: moov atom not found\nInvalid data found when processing input")
        if s.chance("busy", .12):
            raise HttpError(503, "Service Unavailable")
        return f"transcript of {audio}"

    files = [f"ep{s.k}_take{s.rng.randint(1, 9)}.m4a" for _ in range(3)]
    language = s.rng.choice(["en", "de", "fr"])

    async def main():
        for audio in files:
            want = Want(transcribe, {"audio": audio, "language": language, "speakers": 3}, retry=not audio.endswith("_take9.m4a"))
            s.wants.append(want)
            try:
                await s.ado(want, **want.first)
            except (HttpError, ValueError):
                s.lose(want)

    with s.run("transcripts"):
        asyncio.run(main())


@shape("plain")
def parking_permits(s):
    """town hall: residents ask for parking permits; some zones have a waiting list, some people live elsewhere"""

    @s.tool
    def issue_permit(plate: str, zone: str, resident: str, start: str, months: int = 12, electric: bool = False):
        if resident.startswith("Z"):
            return {"error": {"status": 404, "title": "Not a registered resident"}}
        if zone in ("C1", "C2"):
            return {"error": {"status": 409, "title": "Zone quota exhausted", "waiting": 40 + s.k}}
        return {"permit": f"{zone}-{plate}", "months": months}

    @s.tool(effects="none")
    def permit_fee(zone: str, months: int = 12, electric: bool = False):
        return {"fee": months * (4 if electric else 7)}

    with s.run("permits"):
        turns = chat(s)
        for number in range(1 + s.k % 2):
            zone = s.rng.choice(["A1", "A2", "B1", "B2", "B3", "C1"])
            months = s.rng.choice([6, 12])
            resident = f"{s.rng.choice('RRRRRRRRZ')}{s.rng.randint(10_000, 99_999)}"
            if s.often(f"fee{number}", .5):
                s.pursue(turns, Want(permit_fee, {"zone": zone, "months": months}))
            s.pursue(turns, Want(issue_permit, {
                "plate": f"{s.rng.choice(['BG', 'OS', 'TR'])}{s.rng.randint(1000, 9999)}", "zone": zone, "resident": resident,
                "start": f"2026-07-{1 + s.k % 30:02}", "months": months, "electric": s.often(f"electric{number}", .3)}))
