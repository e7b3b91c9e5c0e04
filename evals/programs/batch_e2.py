"""Twelve whole agents at ordinary work, by an author who did not know how the library decides."""
import asyncio
from contextlib import suppress

from kit import GONE, Want, shape, sleep
from mulligan import AgentError


def chat(s, limit=16):
    s.open_turns.append(iter(s.m.turns(limit=limit)))
    return s.open_turns[-1]


# lessons


@shape("lesson", follows=True)
def hotel_rate_codes(s):
    """a hotel's reception agent says the guest's words for board, the reservation system takes rate codes only;
    rooms are sold out now and then, and then the guest chooses another one"""
    codes = {"breakfast": "BB", "half board": "HB", "room only": "RO"}
    board = s.rng.choices(list(codes), [6, 3, 2])[0]
    room = s.rng.choice(["single", "double", "double", "twin"])
    other = s.rng.choice([each for each in ("single", "double", "twin", "superior", "suite") if each != room])
    arrival = f"2026-{s.rng.randint(4, 9):02}-{s.rng.randint(1, 28):02}"
    nights, is_full = s.rng.randint(1, 6), s.often("full", .35)

    @s.tool(effects="none")
    def quote_stay(room_type: str, arrival: str, nights: int, rate_plan: str):
        if rate_plan not in codes.values():
            return {"error": "3417 RATE_PLAN NOT LOADED"}
        return {"total": nights * 94, "currency": "EUR", "rate_plan": rate_plan}

    @s.tool
    def book_room(guest: str, room_type: str, arrival: str, nights: int, rate_plan: str):
        if rate_plan not in codes.values():
            return {"error": "3417 RATE_PLAN NOT LOADED"}
        if room_type == room and is_full:
            return {"error": "2108 NO ALLOTMENT"}
        return {"confirmation": f"H{s.k:05}"}

    own = [{"rate_plan": codes[board]}]
    if s.often("detour", .3):
        own.insert(0, {"rate_plan": board.upper()})
    stay = {"room_type": room, "arrival": arrival, "nights": nights}
    with s.run("reception"):
        turns = chat(s)
        is_quoted = s.pursue(turns, Want(
            quote_stay, {**stay, "rate_plan": board}, [{"rate_plan": codes[board]}],
            own=own if s.often("knows", .75) else [], lesson=f"{board}={codes[board]}"))
        if is_quoted and s.often("books", .8):
            is_willing = s.often("willing", .85)
            s.pursue(turns, Want(
                book_room, {"guest": f"guest {s.rng.randint(100, 999)}", **stay, "rate_plan": codes[board]},
                ([{"room_type": other}] if is_willing else []) if is_full else [{}],
                own=[{"room_type": other}] if is_full and is_willing else []))


@shape("lesson", follows=True)
def lab_baseline(s):
    """plate readers of a laboratory need a blank run before the first assay of a session; at times somebody else's
    plate is still on the deck, which passes by itself"""
    reader = s.rng.choice(["reader-1", "reader-2", "reader-4"])
    protocol = s.rng.choice(["ELISA-IL6", "BCA", "ELISA-TNF", "MTT", "Bradford"])
    plates = s.rng.sample(range(2000, 9000), 2)
    state = {"blank": s.often("blank", .3), "occupied": 0}
    was_blank = state["blank"]

    @s.tool
    def start_assay(reader: str, plate: str, protocol: str):
        if state["occupied"]:
            state["occupied"] -= 1
            raise AgentError("E305 deck occupied")
        if not state["blank"]:
            raise AgentError("E217 baseline outside window")
        return {"run": s.rng.randint(10**4, 10**5), "plate": plate}

    @s.tool(effects="idempotent")
    def run_blank(reader: str):
        state["blank"] = True
        return {"reader": reader, "baseline": .043}

    @s.tool(effects="none")
    def reader_status(reader: str):
        return {"reader": reader, "lamp": "ok", "temperature": 24.9 + s.k % 3 / 10, "door": "closed"}

    def later(asked):
        sleep(600)
        return asked

    looks = [(reader_status, {"reader": reader})] if s.often("looks", .5) else []
    own = [([*looks, (run_blank, {"reader": reader})], None)]
    if not s.often("knows", .75):
        own = [([(reader_status, {"reader": reader})], None)]  # looks, tries again, gives up
    how = {"run_blank": {"reader": reader}, "reader_status": {"reader": reader}}
    with s.run("lab-assistant"):
        turns = chat(s)
        started = s.pursue(turns, Want(
            start_assay, {"reader": reader, "plate": f"P{plates[0]}", "protocol": protocol},
            own=[] if was_blank else own, pre=() if was_blank else ("run_blank",), how=how,
            lesson=None if was_blank else "run_blank first"))
        if started and s.often("second", .6):
            state["occupied"] = s.rng.choice([0, 0, 1, 1, 2])
            s.pursue(turns, Want(
                start_assay, {"reader": reader, "plate": f"P{plates[1]}", "protocol": protocol},
                own=[later, later][:s.rng.choice([1, 2, 2])], how=how, retry=True))


@shape("lesson", follows=False)
def claims_desk(s):
    """an insurer's claims desk: customers write their policy numbers with spaces, the system has them without; some
    numbers do not exist at all, with the same message. A list of claims has at most 100 entries a page"""
    letters = s.rng.choice(["KV", "HR", "LV"])
    spaced = f"{letters} {s.rng.randint(1000, 9999)} {s.rng.randint(100, 999)}"
    policy, exists = spaced.replace(" ", ""), s.often("exists", .85)

    @s.tool(effects="none")
    def get_policy(policy_no: str):
        if policy_no != policy or not exists:
            raise LookupError("Policy not found.")
        return {"policy_no": policy, "product": letters, "since": 2011 + s.k % 12}

    @s.tool(effects="none")
    def list_claims(policy_no: str, page_size: int = 50, page: int = 1):
        if policy_no != policy:
            raise LookupError("Policy not found.")
        if not 1 <= page_size <= 100:
            raise ValueError("400 Bad Request (page_size)")
        return {"claims": [f"C{s.k}-{number}" for number in range(s.k % 4)], "next": None}

    own = [{"policy_no": policy}]
    if s.often("hyphens", .25):
        own.insert(0, {"policy_no": spaced.replace(" ", "-")})
    with s.run("claims-desk"):
        turns = chat(s)
        found = s.pursue(turns, Want(
            get_policy, {"policy_no": spaced}, [{"policy_no": policy}],  # never succeeds if there is none
            own=own if s.often("knows", .8) else [], lesson="number without spaces" if exists else None))
        if found:
            asked = s.rng.choice([200, 250, 250, 500])
            smaller = [{"page_size": 150}] if s.often("halves", .3) else []
            s.pursue(turns, Want(
                list_claims, {"policy_no": policy, "page_size": asked},
                lambda a: a["policy_no"] == policy and 10 <= a["page_size"] <= 100 and a["page"] == 1,
                own=[*smaller, {"page_size": 100}] if s.often("knows limit", .75) else smaller,
                lesson="page_size<=100"))


@shape("lesson", follows=False)
def club_licences(s):
    """a sports club registers players with its federation, which wants a licence class that follows from the team and
    is not mentioned in the description; full teams are the coach's decision"""
    classes = {"U11": "J", "U13": "J", "U15": "J", "Women 1": "S", "Men 2": "S", "Veterans": "V"}
    team = s.rng.choice(list(classes))
    is_full = s.often("full", .25)
    instead = s.rng.choice([each for each in classes if classes[each] == classes[team] and each != team] or ["Men 2"])
    born = {"J": 2013, "S": 1999, "V": 1978}[classes[team]] + s.rng.randint(-2, 2)

    @s.tool
    def register_player(player: str, team: str, birth_year: int, licence_class: str | None = None):
        if team not in classes:
            raise AgentError("Unknown team.")
        if licence_class is None:
            raise AgentError("constraint LIC_CLS violated")
        if licence_class != classes[team]:
            raise AgentError(f"constraint LIC_CLS violated ({licence_class})")
        if is_full and team == the_full:
            raise AgentError(f"Squad limit reached for {team} (18/18).")
        return {"pass_no": s.rng.randint(10**5, 10**6)}

    @s.tool(effects="none")
    def team_info(team: str):
        squad = 18 if is_full else 14
        return {"team": team, "league": f"district {s.k % 3}", "licence_class": classes[team], "squad": squad}

    the_full = None
    names = s.rng.sample(["Ada", "Bo", "Cleo", "Dov", "Ed", "Fay", "Gus", "Hal", "Ina", "Jo", "Kit", "Lou", "Mo"], 2)
    way = s.rng.choices(["looks", "guesses", "errs", "stops"], [4, 3, 2, 2])[0]
    own = {"looks": [([(team_info, {"team": team})], lambda got: {"licence_class": got["licence_class"]})],
           "guesses": [{"licence_class": classes[team]}],
           "errs": [{"licence_class": "amateur"}, {"licence_class": classes[team]}],
           "stops": []}[way]
    with s.run("club-office"):
        turns = chat(s)
        done = s.pursue(turns, Want(
            register_player, {"player": f"{names[0]} {s.rng.randint(10, 99)}", "team": team, "birth_year": born},
            [{"licence_class": classes[team]}], own=own, pre=("team_info",), how={"team_info": {"team": team}},
            use=lambda got: {"licence_class": got["licence_class"]}, lesson=f"licence_class={classes[team]}"))
        if done and s.often("second", .5):
            the_full = team
            move = {"team": instead, "licence_class": classes[instead]}
            s.pursue(turns, Want(
                register_player, {"player": f"{names[1]} {s.rng.randint(10, 99)}", "team": team, "birth_year": born + 1,
                                  "licence_class": classes[team]},
                [move] if is_full else [{}], own=[move] if is_full and s.often("moves", .7) else []))


@shape("lesson", follows=False)
def parcel_labels(s):
    """a warehouse prints parcel labels in parallel; one of its three carriers takes the weight in grams. The program
    learns to fall back on day 3; parcels to islands that a carrier does not serve are put aside"""
    orders = []
    for number in range(s.rng.randint(2, 4)):
        orders.append((f"SO-{s.k}{number}", s.rng.choice(["nordpost", "nordpost", "parcelo", "swift"]),
                       s.rng.randint(4, 60) / 4 + .1, s.rng.random() < .12))

    @s.tool
    async def create_label(order: str, carrier: str, weight: float, postcode: str):
        await asyncio.sleep(0)
        if postcode.startswith("IS"):
            raise AgentError(f"{carrier}: no service to {postcode}")
        if carrier == "nordpost" and weight != int(weight):
            raise AgentError("nordpost: INVALID_WEIGHT, whole number expected")
        return {"label": f"{order}.pdf", "weight": weight}

    @s.tool(effects="idempotent")
    async def put_aside(order: str, reason: str):
        return {"order": order, "shelf": "K2"}

    async def one(order, carrier, kilos, is_island):
        postcode = f"IS{s.rng.randint(100, 900)}" if is_island else str(s.rng.randint(10000, 99999))
        grams = round(kilos * 1000)
        is_gram = carrier == "nordpost"
        asked = {"order": order, "carrier": carrier, "weight": round(kilos, 2), "postcode": postcode}
        want = Want(create_label, asked, [] if is_island else [{"weight": grams}] if is_gram else [{}],
                    lesson="weight in grams" if is_gram and not is_island else None)
        s.wants.append(want)
        try:
            await s.ado(want, **asked)
        except AgentError as error:
            try:
                if s.day < 3 or "WEIGHT" not in str(error):
                    raise
                await s.ado(want, **{**asked, "weight": grams})
            except AgentError as still:
                await s.ado(None, put_aside, order=order, reason=str(still).splitlines()[0])
        s.lose(want)

    async def everything():
        await asyncio.gather(*(one(*each) for each in orders))

    with s.run("label-printer"):
        asyncio.run(everything())


@shape("lesson", follows=True)
def museum_loans(s):
    """a registrar's agent reserves objects for exhibitions by their titles, the collection system wants the number that
    a search for the title returns; objects that are on loan are replaced by what the curator likes"""
    exhibitions = {"Light and Water": "X0412", "Hands at Work": "X0398", "The Long Table": "X0440", "Atlas": "X0377"}
    title = s.rng.choice(list(exhibitions))
    objects = [f"{s.rng.randint(1890, 1999)}.{s.rng.randint(1, 240)}" for _ in range(3)]
    away, liked = set(), f"{s.rng.randint(1890, 1999)}.{s.rng.randint(241, 400)}"

    @s.tool(effects="idempotent")
    def reserve_object(inventory_no: str, exhibition: str, insured: bool = True):
        if exhibition not in exhibitions.values():
            raise KeyError(exhibition)
        if inventory_no in away:
            raise AgentError(f"{inventory_no} is on loan until 2026-0{s.k % 6 + 3}-30.")
        return {"reservation": f"R{s.k}", "inventory_no": inventory_no}

    @s.tool(effects="none")
    def find_exhibition(title: str):
        return {"title": title, "exhibition": exhibitions.get(title), "opens": "2026-10-02"}

    @s.tool(effects="none")
    def object_record(inventory_no: str):
        return {"inventory_no": inventory_no, "material": s.rng.choice(["oak", "silver", "linen", "glass"])}

    looked = [(find_exhibition, {"title": title})]
    if s.often("detour", .25):
        looked.insert(0, (object_record, {"inventory_no": objects[0]}))
    own = [(looked, lambda got: {"exhibition": got["exhibition"]})] if s.often("knows", .7) else []
    with s.run("registrar"):
        turns = chat(s, 18)
        known = s.pursue(turns, Want(
            reserve_object, {"inventory_no": objects[0], "exhibition": title}, [{"exhibition": exhibitions[title]}],
            own=own, pre=("find_exhibition",), how={"find_exhibition": {"title": title}},
            use=lambda got: {"exhibition": got["exhibition"]}, lesson="find_exhibition first"))
        for number, each in enumerate(objects[1:] if known else []):
            is_away = s.often(f"away {number}", .25)
            if is_away:
                away.add(each)
            s.pursue(turns, Want(
                reserve_object, {"inventory_no": each, "exhibition": exhibitions[title]},
                [{"inventory_no": liked}] if is_away else [{}], own=[{"inventory_no": liked}] if is_away else []))


@shape("lesson", follows=False)
def warehouse_queries(s):
    """an analyst's agent asks a data warehouse: a new session has no compute until one is chosen; besides, the agent
    guesses names of columns, and looks them up when it was wrong"""
    table = s.rng.choice(["orders", "tickets", "visits", "refunds"])
    column = {"orders": "created_at", "tickets": "opened_on", "visits": "ts", "refunds": "booked_at"}[table]
    state = {"on": s.often("on", .25)}
    was_on, guesses_well = state["on"], s.often("guesses", .55)

    def sql(name):
        return f"select count(*) from {table} where {name} >= '2026-{s.k % 9 + 1:02}-{s.k % 27 + 1:02}'"

    @s.tool(effects="none")
    def run_query(sql: str, timeout_s: int = 60):
        if not state["on"]:
            raise RuntimeError("000606 (57P03): No active warehouse selected in the current session.")
        if column not in sql:
            raise RuntimeError(f"000904 (42000): SQL compilation error: error line 1 at position {34 + len(table)}\n"
                               "invalid identifier 'CREATED'")
        return [[s.rng.randint(0, 9000)]]

    @s.tool(effects="idempotent")
    def use_warehouse(name: str):
        if name not in ("REPORT_XS", "REPORT_M"):
            raise RuntimeError(f"002043 (02000): Object '{name}' does not exist or is not authorized.")
        state["on"] = True
        return {"status": "Statement executed successfully."}

    @s.tool(effects="none")
    def describe_table(table: str):
        return ["id", column, "amount", "country"]

    first = {"sql": sql(column if guesses_well else "created")}
    names = ["COMPUTE_WH", "REPORT_XS"] if s.often("default name", .2) else ["REPORT_XS"]
    own = []
    if not was_on and s.often("knows", .8):
        own += [([(use_warehouse, {"name": each})], None) for each in names]
    if (own or was_on) and not guesses_well:
        own.append(([(describe_table, {"table": table})], lambda got: {"sql": sql(got[1])}))
    with s.run("analyst"):
        s.pursue(chat(s), Want(
            run_query, first, [{"sql": sql(column)}], own=own,
            pre=() if was_on else ("use_warehouse",), how={"use_warehouse": {"name": "REPORT_XS"}},
            lesson=None if was_on else "use_warehouse first"))


@shape("lesson", follows=True)
def garage_parts(s):
    """a garage looks up spare parts: the catalogue still has an argument vin, but reads chassis_no only; without any
    vehicle it answers with a universal part that need not fit. Which brand to order is the customer's affair"""
    vin = "".join(s.rng.choice("ABCDEFGHJKLMNPRSTUVWXYZ0123456789") for _ in range(17))
    part = s.rng.choice(["brake pads", "oil filter", "wiper", "clutch kit", "spark plug", "V-belt"])
    brands = ["Original", "Boltex", "Ferrum", "Quicker"]
    asked_brand = s.rng.choices(brands, [5, 3, 2, 1])[0]
    is_gone, taken = s.often("gone", .4), s.rng.choice([each for each in brands if each != asked_brand])

    @s.tool(effects="none")
    def find_part(name: str, vin: str | None = None, chassis_no: str | None = None):
        if vin and not chassis_no:
            return {"error": {"code": 40, "message": "vehicle reference missing"}}
        return {"part_no": f"{name[:2].upper()}{len(chassis_no or '')}{s.k}", "fits": chassis_no or "universal"}

    @s.tool
    def order_part(part_no: str, brand: str, quantity: int = 1):
        if brand == asked_brand and is_gone:
            return {"error": {"code": 71, "message": "not deliverable"}}
        return {"order": 4000 + s.k, "brand": brand}

    way = s.rng.choices(["renames", "adds", "omits", "stops"], [6, 2, 2, 2])[0]
    own = {"renames": [{"vin": GONE, "chassis_no": vin}], "adds": [{"chassis_no": vin}], "omits": [{"vin": GONE}],
           "stops": []}[way]
    with s.run("garage") as run:
        turns = chat(s)
        want = Want(find_part, {"name": part, "vin": vin}, lambda a: a["name"] == part and a["chassis_no"] == vin,
                    own=own, lesson="chassis_no instead of vin")
        if s.pursue(turns, want):
            is_settled = s.often("settles", .8)
            s.pursue(turns, Want(
                order_part, {"part_no": f"{part[:2].upper()}17{s.k}", "brand": asked_brand},
                ([{"brand": taken}] if is_settled else []) if is_gone else [{}],
                own=[{"brand": taken}] if is_gone and is_settled else []))
        elif s.oks:
            run.is_true("partial", "recovered")  # it took the universal part: only the customer can tell


# nothing to learn


@shape("trap", follows=True)
def playlist_versions(s):
    """a listener fills a playlist; tracks are not licensed in the country, and the listener takes another version, most
    often the remaster; misspelled titles are corrected by the listener"""
    titles = ["Harbour Lights", "Slow Train", "Paper Moon", "North Wind", "Blue Kitchen", "Second Summer", "Old Radio"]
    playlist, chosen = f"mix {s.rng.randint(1, 30)}", s.rng.sample(titles, 3)
    locked = {title for title in chosen if s.rng.random() < .45}

    @s.tool(effects="idempotent")
    def add_track(playlist: str, title: str, version: str = "album"):
        if title not in titles:
            raise LookupError("0 results")
        if title in locked and version == "album":
            raise PermissionError("Not licensed in your territory.")
        return {"playlist": playlist, "title": title, "version": version}

    with s.run("dj"):
        turns = chat(s, 20)
        for title in chosen:
            typed = title if s.rng.random() < .8 else title.replace("o", "0").replace("a", "e", 1)
            version = s.rng.choices(["remaster", "live", "acoustic", None], [5, 2, 2, 1])[0]
            own = [{"title": title}] if typed != title else []
            right = {"title": title}
            if title in locked and version:  # without a version the listener lets it be
                right = {"title": title, "version": version}
                own.append(right)
            s.pursue(turns, Want(
                add_track, {"playlist": playlist, "title": typed, "version": "album"},
                [right, {"title": title}], own=own))  # the spelling is right, too, also where the album is locked


@shape("trap", follows=True)
def farm_probes(s):
    """a farm's agent reads the soil probes of a field one after the other, some of which have an empty battery; then it
    waters as long as the tank of the day allows and the farmer wants"""
    field = s.rng.choice(["north", "creek", "orchard", "hill", "barn"])
    probes = range(1, s.rng.randint(4, 6))
    dead = {probe for probe in probes if s.rng.random() < (.45 if probe == 2 else .12)}
    planned = s.rng.choice([30, 40, 45, 60])
    most, says = s.rng.choice([12, 25, 50, 90]), s.rng.choices([10, 5, None], [5, 3, 2])[0]

    @s.tool(effects="none")
    def read_probe(field: str, probe: int):
        if probe in dead:
            raise AgentError(f"node 0x{16 + probe:X}: no ack")
        return {"moisture": s.rng.randint(9, 38)}

    @s.tool
    def water(field: str, minutes: int):
        if minutes > most:
            raise AgentError("Refused: tank level.")
        return {"field": field, "minutes": minutes}

    with s.run("farm-hand"):
        turns = chat(s, 20)
        for probe in probes:
            s.pursue(turns, Want(read_probe, {"field": field, "probe": probe}, [] if probe in dead else [{}]))
        if s.often("waters", .7):
            is_short = planned > most
            right = [{}] if not is_short else [{"minutes": says}] if says else []
            s.pursue(turns, Want(water, {"field": field, "minutes": planned}, right,
                                 own=[{"minutes": says}] if is_short and says else []))


@shape("plain", follows=False)
def podcast_production(s):
    """a nightly program transcribes the segments of a podcast with a service that is down now and then, skips jingles
    without speech, and publishes the episode; if that times out, it looks whether the episode is there"""
    segments = [(f"ep{s.k}/seg{number}.wav", s.rng.random() < .08) for number in range(s.rng.randint(3, 5))]
    state = {"published": False}
    is_slow, is_lost = s.often("slow", .15), s.often("lost", .5)

    @s.tool(effects="none")
    def transcribe(audio: str, language: str):
        if dict(segments)[audio]:
            raise ValueError("no speech detected")
        if s.chance("down", .15):
            raise ConnectionError("503 Service Unavailable")
        return f"text of {audio}"

    @s.tool
    def publish_episode(episode: int, title: str):
        is_first = not state.get("tried")
        state["tried"] = True
        if is_first and is_slow:
            state["published"] = not is_lost
            raise TimeoutError("The read operation timed out")
        state["published"] = True
        return {"episode": episode}

    @s.tool(effects="none")
    def get_episode(episode: int):
        return {"episode": episode, "published": state["published"]}

    language = s.rng.choice(["en", "en", "de", "sv"])
    with s.run("podcast-night") as run:
        for audio, is_jingle in segments:
            want = Want(transcribe, {"audio": audio, "language": language}, [] if is_jingle else [{}],
                        retry=not is_jingle)
            s.wants.append(want)
            for _ in range(3):
                try:
                    s.do(want, audio=audio, language=language)
                    break
                except ConnectionError:
                    sleep(60)
                except ValueError:
                    break
            s.lose(want)
        asked = {"episode": s.k, "title": f"Episode {s.k}"}
        want = Want(publish_episode, asked, retry=is_lost)
        s.wants.append(want)
        try:
            s.do(want, **asked)
        except TimeoutError:
            if s.do(None, get_episode, episode=s.k)["published"]:
                want.reached = True
                if all(each.reached for each in s.wants):
                    run.is_true("recovered", "partial")  # it is published; its call never said so
            else:
                with suppress(Exception):
                    s.do(want, **asked)
        s.lose(want)


@shape("plain", follows=False)
def meter_readings(s):
    """an energy supplier imports the readings that customers typed; implausible ones go to a clerk, who at times reads
    the right number off the customer's photo and at times cannot"""
    readings = [(f"M{s.rng.randint(10**6, 10**7)}", s.rng.randint(2000, 60000), s.rng.random() < .25)
                for _ in range(s.rng.randint(3, 5))]
    limits = {meter: (value - 900, value + 900) for meter, value, _ in readings}

    @s.tool(effects="idempotent")
    def upload_reading(meter: str, value: int, read_on: str):
        low, high = limits[meter]
        if not low <= value <= high:
            raise ValueError(f"PLAUSI-{'02' if value > high else '01'}: value rejected")
        return {"meter": meter, "accepted": value}

    @s.tool
    def ask_clerk(meter: str, typed: int):
        value = next(value for each, value, _ in readings if each == meter)
        return {"meter": meter, "value": value if s.chance(f"photo {meter}", .7) else None}

    with s.run("meter-import"):
        for meter, value, is_typo in readings:
            typed = s.rng.choice([value * 10 + s.rng.randint(0, 9), value // 10]) if is_typo else value
            asked = {"meter": meter, "value": typed, "read_on": f"2026-11-{s.k % 28 + 1:02}"}
            want = Want(upload_reading, asked, [{"value": value}])
            s.wants.append(want)
            try:
                s.do(want, **asked)
            except ValueError:
                answer = s.do(None, ask_clerk, meter=meter, typed=typed)
                if answer["value"] is not None:
                    with suppress(Exception):
                        s.do(want, **{**asked, "value": answer["value"]})
            s.lose(want)
