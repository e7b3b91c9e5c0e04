"""Mistaken calls of the tools of small companies and customer-facing agents."""

import re
from typing import Annotated, Literal, TypedDict

from mistakes import Batch

from mulligan import AgentError

batch = Batch()
mistake = batch.add


def _is_date(text: str) -> bool:
    return re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", text) is not None


def _is_time(text: str) -> bool:
    return re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", text) is not None


# ------------------------------------------------------------------------------------------------------------- travel


@mistake("enum", "meaning", effects="none",
         asked={"origin": "MUC", "destination": "SIN", "departure_date": "2025-09-02", "cabin": "premium"},
         reason="premium may be premium economy or one of the better cabins; one would have to guess")
@mistake("type", "form", effects="none",
         asked={"origin": "MUC", "destination": "SIN", "departure_date": "2025-09-02", "max_stops": "0"},
         same=[{"origin": "MUC", "destination": "SIN", "departure_date": "2025-09-02", "max_stops": 0}],
         reason="the text '0' is the number 0")
@mistake("name", "form", effects="none",
         asked={"origin": "OSL", "destination": "CDG", "departureDate": "2025-10-11", "cabin": "economy"},
         same=[{"origin": "OSL", "destination": "CDG", "departure_date": "2025-10-11", "cabin": "economy"}],
         reason="departureDate is departure_date in camelCase")
def search_flights(origin: str, destination: str, departure_date: str,
                   cabin: Literal["economy", "premium_economy", "business", "first"] = "economy",
                   max_stops: int = 1) -> list:
    return []


@mistake("date", "meaning", effects="once",
         asked={"hotel_id": "H-2203", "check_in": "03/04/2025", "check_out": "05/04/2025", "guests": 2},
         earlier=[{"hotel_id": "H-1177", "check_in": "2025-03-01", "check_out": "2025-03-02", "guests": 1}],
         reason="3 April or 4 March: the order of day and month is not known")
@mistake("enum", "meaning", effects="once",
         asked={"hotel_id": "H-2203", "check_in": "2025-04-03", "check_out": "2025-04-05", "guests": 2,
                "rate": "partially_refundable"},
         reason="neither rate is partially refundable")
@mistake("type", "form", effects="once",
         asked={"hotel_id": "H-2203", "check_in": "2025-04-03", "check_out": "2025-04-05", "guests": "2"},
         same=[{"hotel_id": "H-2203", "check_in": "2025-04-03", "check_out": "2025-04-05", "guests": 2}],
         reason="the text '2' is the number 2")
def book_hotel_room(hotel_id: str, check_in: str, check_out: str, guests: int,
                    rate: Literal["refundable", "non_refundable"] = "refundable") -> dict:
    for name, day in (("check_in", check_in), ("check_out", check_out)):
        if not _is_date(day):
            raise AgentError(f"{name}: expected a date as YYYY-MM-DD, got '{day}'.")
    return {"status": "booked"}


@mistake("enum", "meaning", effects="once", asked={"bookingRef": "KX81QP", "refundTo": "bank_account"},
         reason="a bank account is neither the original payment nor a voucher")
@mistake("name", "form", effects="once", asked={"booking_ref": "KX81QP", "refund_to": "voucher"},
         same=[{"bookingRef": "KX81QP", "refundTo": "voucher"}], reason="the same names in snake_case")
def cancelBooking(bookingRef: str, refundTo: Literal["original_payment", "voucher"]) -> str:
    return "cancelled"


@mistake("unit", "meaning", effects="once", asked={"pnr": "R4T8LM", "passenger": 1, "weight": 50, "unit": "lb"},
         earlier=[{"pnr": "R4T8LM", "passenger": 2, "weight": 23, "unit": "kg"}],
         reason="50 lb is 22.68 kg, which is no whole number; 50 kg is much more")
def add_baggage(pnr: str, passenger: int, weight: int, unit: Literal["kg"] = "kg") -> str:
    return "added"


@mistake("currency", "meaning", effects="none", asked={"city": "Basel", "max_price": 180, "currency": "CHF"},
         reason="180 francs are not 180 of another currency, and the rate is not known")
@mistake("number", "meaning", effects="none", asked={"city": "Porto", "max_price": 120, "limit": 100},
         less=[{"city": "Porto", "max_price": 120, "limit": 25}], reason="asks for 100 hotels; 25 are fewer")
@mistake("type", "form", effects="none", asked={"city": "Porto", "max_price": "120", "currency": "EUR"},
         same=[{"city": "Porto", "max_price": 120.0, "currency": "EUR"}], reason="the text '120' is the number 120")
def find_hotels(city: str, max_price: float, currency: Literal["EUR", "USD", "GBP"] = "EUR", limit: int = 10) -> list:
    if limit > 25:
        raise AgentError(f"limit must be between 1 and 25 (was {limit})")
    return []


@mistake("currency", "meaning", effects="once", asked={"route": "YVR-LAX", "threshold": 210.0, "currency": "$"},
         reason="$ may be US or Canadian dollars")
def set_price_alert(route: str, threshold: float, currency: Literal["USD", "CAD"]) -> str:
    return "alert set"


@mistake("time zone", "meaning", effects="once",
         asked={"pickup_location": "LIS", "dropoff_location": "FAO", "pickup_at": "2025-06-01T10:00:00", "days": 4},
         earlier=[{"pickup_location": "BER", "dropoff_location": "BER", "pickup_at": "2025-05-01T09:00:00+02:00",
                   "days": 2}],
         reason="no offset: UTC, the time of the place or that of the caller")
def rent_car(pickup_location: str, dropoff_location: str, pickup_at: str, days: int) -> str:
    if not re.search(r"(Z|[+-]\d\d:\d\d)$", pickup_at):
        raise AgentError(f"pickup_at needs a UTC offset, e.g. 2025-01-31T08:00:00+01:00; got {pickup_at}")
    return "reserved"


@mistake("polarity", "meaning", effects="none",
         asked={"from_station": "Wien Hbf", "to_station": "Graz Hbf", "departure_before": "2025-05-02T18:00"},
         reason="before is not after, and the tool cannot bound the other end")
@mistake("structure", "form", effects="none",
         asked={"input": {"from_station": "Wien Hbf", "to_station": "Linz Hbf", "departure_after": "2025-05-02T06:00"}},
         same=[{"from_station": "Wien Hbf", "to_station": "Linz Hbf", "departure_after": "2025-05-02T06:00"}],
         reason="the arguments are wrapped in one more object")
def train_connections(from_station: str, to_station: str, departure_after: str = "") -> list:
    return []


@mistake("date", "meaning", effects="once", asked={"restaurant_id": "r_88", "party_size": 4, "time": "7:30"},
         reason="a table at 7:30 may be in the morning or, more likely, in the evening")
@mistake("date", "equivalent", effects="once", asked={"restaurant_id": "r_88", "party_size": 4, "time": "7:30 PM"},
         same=[{"restaurant_id": "r_88", "party_size": 4, "time": "19:30"}], reason="7:30 PM is 19:30")
def reserve_table(restaurant_id: str, party_size: int, time: str) -> str:
    if not _is_time(time):
        raise AgentError(f"Invalid time '{time}'. Use HH:MM on the 24-hour clock.")
    return "reserved"


@mistake("enum", "equivalent", effects="none", asked={"nationality": "us", "destination": "VN"},
         same=[{"nationality": "US", "destination": "VN"}], reason="the country code in lower case")
@mistake("type", "form", effects="none", asked={"nationality": ["DE"], "destination": "VN"},
         same=[{"nationality": "DE", "destination": "VN"}], reason="a list of one for the single value")
def get_visa_requirements(nationality: str, destination: str) -> dict:
    for code in (nationality, destination):
        if not re.fullmatch("[A-Z]{2}", code):
            raise AgentError(f"'{code}' is not an ISO 3166 alpha-2 code.")
    return {"visa": True}


@mistake("enum", "meaning", effects="once", asked={"pnr": "ZZ19KA", "seat_preference": "middle"},
         reason="the middle seat is neither at the window nor at the aisle")
def check_in_passenger(pnr: str, seat_preference: Literal["window", "aisle"]) -> str:
    return "checked in"


@mistake("name", "meaning", effects="once",
         asked={"trip_id": 5501, "traveler": "A. Novak", "return_date": "2025-08-19"},
         reason="the date of the way back is not the date of departure, and it has no argument")
def change_departure(trip_id: int, traveler: str, departure_date: str) -> str:
    return "changed"


# ----------------------------------------------------------------------------------------------------------------- HR


@mistake("enum", "form", effects="once",
         asked={"employee_id": "E-19", "start_date": "2025-07-07", "end_date": "2025-07-18", "leave_type": "Vacation"},
         same=[{"employee_id": "E-19", "start_date": "2025-07-07", "end_date": "2025-07-18",
                "leave_type": "vacation"}],
         reason="an ordinary word with a capital letter")
@mistake("date", "meaning", effects="once",
         asked={"employee_id": "E-19", "start_date": "next monday", "end_date": "2025-07-18", "leave_type": "sick"},
         reason="the day depends on today and on what next means")
def request_leave(employee_id: str, start_date: str, end_date: str,
                  leave_type: Literal["vacation", "sick", "parental", "unpaid"]) -> str:
    if not _is_date(start_date) or not _is_date(end_date):
        raise AgentError("start_date and end_date must be ISO dates (YYYY-MM-DD)")
    return "requested"


@mistake("enum", "meaning", effects="once", asked={"employee_id": 4711, "amount": 950.0, "period": "weekly"},
         earlier=[{"employee_id": 4709, "amount": 3900.0, "period": "monthly"}],
         reason="950 a week is neither 950 a month nor 950 a year")
@mistake("type", "form", effects="once", asked={"employee_id": "4711", "amount": 4100.0, "period": "monthly"},
         same=[{"employee_id": 4711, "amount": 4100.0, "period": "monthly"}], reason="the number 4711 as a text")
def adjust_salary(employee_id: int, amount: float, period: Literal["monthly", "yearly"]) -> str:
    return "adjusted"


@mistake("paging", "meaning", effects="none", asked={"department": "Sales", "pageSize": 500, "pageToken": "eyJwIjoyfQ"},
         reason="a smaller page shifts what the next pages hold")
@mistake("null", "form", effects="none", asked={"department": "Sales", "pageSize": 50, "pageToken": None},
         same=[{"department": "Sales", "pageSize": 50}], reason="null and no token both mean the first page")
def listEmployees(department: str, pageSize: int = 50, pageToken: str = "") -> list:
    if pageSize > 100:
        raise AgentError(f"INVALID_ARGUMENT: pageSize {pageSize} exceeds the maximum of 100")
    return []


@mistake("unit", "meaning", effects="idempotent", asked={"contract_id": "C-77", "months": 3},
         reason="3 months are no whole number of weeks, and 3 weeks is far less")
def set_notice_period(contract_id: str, weeks: int) -> str:
    return f"{weeks} weeks"


@mistake("number", "meaning", effects="once", asked={"worker_id": 31, "day": "2025-02-11", "hours": 14.0},
         reason="the worker worked 14 hours; 12 would be another, false record")
@mistake("type", "form", effects="once", asked={"worker_id": 31.0, "day": "2025-02-11", "hours": 7.5},
         same=[{"worker_id": 31, "day": "2025-02-11", "hours": 7.5}], reason="31.0 is the number 31")
def log_hours(worker_id: int, day: str, hours: float) -> str:
    if hours > 12:
        raise AgentError(f"hours: {hours} is more than the maximum of 12 per entry.")
    return "logged"


@mistake("time zone", "meaning", effects="once",
         asked={"candidate_id": "cand_9", "start": "2025-03-12T15:00", "timezone": "IST"},
         reason="IST is the time of India, Israel or Ireland")
@mistake("time zone", "meaning", effects="once",
         asked={"candidate_id": "cand_9", "start": "2025-03-12T15:00", "timezone": "Europe/Berlin"},
         earlier=[{"candidate_id": "cand_8", "start": "2025-03-12T14:00", "timezone": "Europe/London"}],
         reason="15:00 in Berlin is not 15:00 in another zone")
def schedule_interview(candidate_id: str, start: str,
                       timezone: Literal["Europe/London", "America/New_York", "Asia/Kolkata", "Asia/Jerusalem"]) -> str:
    return "scheduled"


@mistake("permission", "meaning", effects="once", asked={"employee_id": 12, "month": "2025-01", "visible_to": "team"},
         reason="the team is none of the accepted audiences")
@mistake("enum", "form", effects="once", asked={"employee_id": 12, "month": "2025-01", "visible_to": " manager "},
         same=[{"employee_id": 12, "month": "2025-01", "visible_to": "manager"}], reason="spaces around the word")
def publish_payslip(employee_id: int, month: str, visible_to: Literal["employee", "manager", "accountant"]) -> str:
    return "published"


@mistake("polarity", "equivalent", effects="none", asked={"skills": ["SQL"], "include_rejected": True},
         same=[{"skills": ["SQL"], "exclude_rejected": False}],
         reason="to include them is not to exclude them: the name and the value are inverted")
@mistake("polarity", "meaning", effects="none", asked={"skills": ["SQL"], "only_rejected": True},
         reason="the tool cannot list the rejected alone")
@mistake("type", "form", effects="none", asked={"skills": "SQL", "exclude_rejected": True},
         same=[{"skills": ["SQL"], "exclude_rejected": True}], reason="one value for a list")
def search_candidates(skills: list[str], exclude_rejected: bool = True) -> list:
    return []


@mistake("name", "meaning", effects="once", asked={"shift_id": "S-204", "started_at": "2025-04-09T06:12:00Z"},
         reason="started_at is when the shift really began, start_at when it is planned")
def update_shift(shift_id: str, start_at: str) -> str:
    return "updated"


# ------------------------------------------------------------------------------------------------------------- school


@mistake("enum", "meaning", effects="once", asked={"student_id": 881, "course": "BIO-2", "grade": "B+"},
         reason="B+ is not B")
@mistake("enum", "equivalent", effects="once", asked={"student_id": 881, "course": "BIO-2", "grade": "b"},
         same=[{"student_id": 881, "course": "BIO-2", "grade": "B"}], reason="the symbol in lower case")
def record_grade(student_id: int, course: str, grade: Literal["A", "B", "C", "D", "F"]) -> str:
    return "recorded"


@mistake("type", "form", effects="once", asked={"student_id": 7003, "course_ids": "MATH-101"},
         same=[{"student_id": 7003, "course_ids": ["MATH-101"]}], reason="one value for a list")
@mistake("type", "form", effects="once", asked={"student_id": 7003, "course_ids": '["MATH-101", "ART-3"]'},
         same=[{"student_id": 7003, "course_ids": ["MATH-101", "ART-3"]}], reason="a JSON text for the list")
@mistake("flag", "meaning", effects="once", asked={"student_id": 7003, "course_ids": ["MATH-101"], "waitlist": True},
         reason="without the argument the student is enrolled instead of put on the waiting list")
def enroll_student(student_id: int, course_ids: list[str]) -> str:
    return "enrolled"


@mistake("unit", "meaning", effects="once", asked={"title": "Fractions", "time_limit": 900},
         reason="no unit: 900 may be seconds or minutes")
def create_quiz(title: str, time_limit_minutes: int = 0, attempts: int = 1) -> str:
    return "created"


@mistake("number", "meaning", effects="once", asked={"teacher": "Ms. Rey", "slot": "2025-11-04T16:00", "minutes": 45},
         reason="45 minutes are neither 15 nor 30")
@mistake("type", "form", effects="once", asked={"teacher": "Ms. Rey", "slot": "2025-11-04T16:00", "minutes": "30"},
         same=[{"teacher": "Ms. Rey", "slot": "2025-11-04T16:00", "minutes": 30}], reason="the text '30' is 30")
def schedule_parent_meeting(teacher: str, slot: str, minutes: Literal[15, 30] = 15) -> str:
    return "scheduled"


@mistake("polarity", "meaning", effects="none", asked={"course_id": "HIS-9", "due_after": "2025-05-01"},
         earlier=[{"course_id": "HIS-8", "due_before": "2025-05-01"}], reason="after is the opposite of before")
@mistake("name", "form", effects="none", asked={"course-id": "HIS-9", "due-before": "2025-05-01"},
         same=[{"course_id": "HIS-9", "due_before": "2025-05-01"}], reason="the same names in kebab-case")
def list_assignments(course_id: str, due_before: str = "") -> list:
    return []


@mistake("enum", "meaning", effects="idempotent",
         asked={"student_id": 15, "day": "2025-02-03", "status": "left_early"},
         reason="who left early was neither late nor absent for the day")
@mistake("enum", "equivalent", effects="idempotent", asked={"student_id": 15, "day": "2025-02-03", "status": "tardy"},
         same=[{"student_id": 15, "day": "2025-02-03", "status": "late"}], reason="tardy is a synonym of late")
@mistake("enum", "form", effects="idempotent", asked={"student_id": 15, "day": "2025-02-03", "status": "ABSENT"},
         same=[{"student_id": 15, "day": "2025-02-03", "status": "absent"}], reason="the word in capitals")
def set_attendance(student_id: int, day: str, status: Literal["present", "absent", "late", "excused"]) -> str:
    return "saved"


@mistake("enum", "meaning", effects="once", asked={"class_id": "7b", "body": "Trip is cancelled", "audience": "all"},
         reason="neither audience alone is everyone")
def send_class_message(class_id: str, body: str, audience: Literal["students", "parents"]) -> str:
    return "sent"


@mistake("number", "meaning", effects="none", asked={"query": "volcanoes", "max_results": 200},
         less=[{"query": "volcanoes", "max_results": 50}], reason="only the number of returned titles differs")
@mistake("name", "form", effects="none", asked={"qeury": "volcanoes"}, same=[{"query": "volcanoes"}],
         reason="one typing error in the name of the only required argument")
def search_library_catalog(query: str, max_results: int = 10) -> list:
    if max_results > 50:
        raise AgentError("max_results may not exceed 50.")
    return []


# ---------------------------------------------------------------------------------------------------------------- law


@mistake("date", "meaning", effects="once", asked={"case_number": "12 O 331/24", "due": "tomorrow"},
         reason="the day depends on the clock and zone of the caller")
def add_deadline(case_number: str, due: str, label: str = "") -> str:
    if not _is_date(due):
        raise AgentError(f"due: '{due}' is not a calendar date (YYYY-MM-DD)")
    return "added"


@mistake("permission", "meaning", effects="once",
         asked={"case_id": "24-cv-118", "document_ids": ["d1"], "access": "redacted"},
         reason="a redacted filing is neither fully public nor sealed")
@mistake("name", "form", effects="once",
         asked={"case_id": "24-cv-118", "document_id": ["d1", "d2"], "access": "sealed"},
         same=[{"case_id": "24-cv-118", "document_ids": ["d1", "d2"], "access": "sealed"}],
         reason="the singular of the name of the argument, with a list as its value")
def file_document(case_id: str, document_ids: list[str], access: Literal["public", "sealed"]) -> str:
    return "filed"


@mistake("enum", "meaning", effects="none", asked={"query": "duty of care", "jurisdiction": "Canada"},
         reason="CA is California here, not Canada")
@mistake("number", "meaning", effects="none", asked={"query": "duty of care", "jurisdiction": "NY", "limit": 1000},
         less=[{"query": "duty of care", "jurisdiction": "NY", "limit": 100}], reason="100 cases are fewer than 1000")
def search_case_law(query: str, jurisdiction: Literal["CA", "NY", "TX", "DE"], limit: int = 20) -> list:
    if limit > 100:
        raise AgentError(f"'limit' is capped at 100; {limit} was requested")
    return []


@mistake("enum", "meaning", effects="once", asked={"template": "nda", "governing_law": "UK"},
         reason="the United Kingdom has three legal systems")
def generate_contract(template: str,
                      governing_law: Literal["England and Wales", "Scotland", "Northern Ireland"]) -> str:
    return "contract.docx"


@mistake("type", "form", effects="once", asked={"matter_id": "M-300", "minutes": 18, "billable": "true"},
         same=[{"matter_id": "M-300", "minutes": 18, "billable": True}], reason="the truth value as a text")
@mistake("unit", "meaning", effects="once", asked={"matter_id": "M-300", "minutes": 1.5, "billable": True},
         reason="probably an hour and a half, but one would have to guess")
def record_time_entry(matter_id: str, minutes: int, billable: bool) -> str:
    return "recorded"


@mistake("enum", "meaning", effects="once", asked={"case_id": 90, "party": "Orla Finn", "role": "appellant"},
         reason="either side may be the appellant")
def set_party_role(case_id: int, party: str, role: Literal["plaintiff", "defendant"]) -> str:
    return "saved"


@mistake("enum", "meaning", effects="once", asked={"doc_id": "D-5", "signer": "ceo@acme.example", "level": "qualified"},
         reason="a qualified signature is legally more than an advanced one")
def request_signature(doc_id: str, signer: str, level: Literal["simple", "advanced"] = "simple") -> str:
    return "requested"


@mistake("retention", "meaning", effects="idempotent", asked={"doc_class": "client_files", "years": 30},
         reason="files would be destroyed 20 years too early")
@mistake("null", "meaning", effects="idempotent", asked={"doc_class": "deeds", "years": None},
         reason="null may mean for ever; the default destroys after 6 years")
def set_document_retention(doc_class: str, years: int = 6) -> str:
    if not 1 <= years <= 10:
        raise AgentError(f"years: allowed range is 1-10, got {years}")
    return "saved"


# --------------------------------------------------------------------------------------------------------- smart home


@mistake("unit", "meaning", effects="idempotent", asked={"room": "bedroom", "temperature": 68},
         earlier=[{"room": "office", "temperature": 20.5}],
         reason="probably Fahrenheit, but neither 30 nor a guessed conversion was asked for")
@mistake("type", "form", effects="idempotent", asked={"room": "bedroom", "temperature": "19.5"},
         same=[{"room": "bedroom", "temperature": 19.5}], reason="the number 19.5 as a text")
def set_thermostat(room: str, temperature: float) -> str:
    if not 5 <= temperature <= 30:
        raise AgentError(f"temperature out of range: {temperature} (5 to 30)")
    return "ok"


@mistake("number", "meaning", effects="idempotent", asked={"device_id": "lamp-2", "brightness": 254},
         reason="full on a scale to 254 or a slip for 25 or 54: one would have to guess")
@mistake("unit", "equivalent", effects="idempotent", asked={"device_id": "lamp-2", "brightness": "70%"},
         same=[{"device_id": "lamp-2", "brightness": 70}], reason="the brightness is in percent")
def set_light(device_id: str, brightness: Annotated[int, "percent"]) -> str:
    if not 0 <= brightness <= 100:
        raise AgentError(f"brightness must be a percentage between 0 and 100, not {brightness}")
    return "ok"


@mistake("enum", "meaning", effects="idempotent", asked={"lock_id": "front", "state": "auto"},
         reason="automatic locking is neither of the two states")
def set_door_lock(lock_id: str, state: Literal["locked", "unlocked"]) -> str:
    return state


@mistake("enum", "meaning", effects="once", asked={"name": "Porch", "devices": ["p1", "p2"], "trigger": "dusk"},
         reason="dusk is later than sunset")
@mistake("type", "form", effects="once", asked={"name": "Porch", "devices": '["p1", "p2"]', "trigger": "sunset"},
         same=[{"name": "Porch", "devices": ["p1", "p2"], "trigger": "sunset"}], reason="a JSON text for the list")
def create_scene(name: str, devices: list[str], trigger: Literal["sunrise", "sunset"]) -> str:
    return "created"


@mistake("enum", "meaning", effects="idempotent", asked={"site_id": "shop-1", "mode": "off"},
         reason="to switch the alarm off is not to arm it in another mode")
@mistake("enum", "form", effects="idempotent", asked={"site_id": "shop-1", "mode": '"away"'},
         same=[{"site_id": "shop-1", "mode": "away"}], reason="quotes around the word")
def arm_alarm(site_id: str, mode: Literal["home", "away"]) -> str:
    return mode


@mistake("enum", "meaning", effects="once", asked={"rooms": ["kitchen"], "power": "min"},
         reason="min is near max in letters and its opposite; quiet may or may not be meant")
def startVacuum(rooms: list[str], power: Literal["quiet", "normal", "max"] = "normal") -> str:
    return "cleaning"


@mistake("unit", "equivalent", effects="once", asked={"device": "kitchen-speaker", "duration_minutes": 10},
         same=[{"device": "kitchen-speaker", "duration_seconds": 600}], reason="10 minutes are 600 seconds")
@mistake("unit", "meaning", effects="once", asked={"device": "kitchen-speaker", "duration": 10},
         reason="10 seconds or 10 minutes")
def start_timer(device: str, duration_seconds: int) -> str:
    return "running"


@mistake("unit", "meaning", effects="none", asked={"meter": "main", "interval": "1M"},
         reason="1M is a month, 1m a minute")
@mistake("enum", "meaning", effects="none", asked={"meter": "main", "interval": "15m"},
         reason="no interval of a quarter of an hour exists")
def get_energy_usage(meter: str, interval: Literal["1m", "1h", "1d"] = "1h") -> list:
    return []


@mistake("unit", "meaning", effects="once", asked={"zone": 3, "volume": 20},
         reason="20 litres, gallons or cubic metres")
def water_garden_zone(zone: int, volume_l: float) -> str:
    return "watering"


@mistake("unit", "meaning", effects="idempotent", asked={"charger_id": "EV-2", "limit_kw": 11.0},
         reason="kW limits the power, kWh the energy")
def set_charge_limit(charger_id: str, limit_kwh: float) -> str:
    return "ok"


@mistake("number", "meaning", effects="idempotent", asked={"fan": "attic", "level": 10},
         reason="10 may be the top of another scale; 5 was not asked for")
def set_fan_speed(fan: str, level: int) -> str:
    if level not in range(1, 6):
        raise AgentError(f"Unsupported level {level}; the device has levels 1..5")
    return "ok"


@mistake("retention", "meaning", effects="idempotent", asked={"camera": "yard", "keep_days": 90},
         reason="30 days delete the recordings 60 days too early")
def configure_recordings(camera: str, keep_days: int, motion_only: bool = False) -> str:
    if keep_days > 30:
        raise AgentError("keep_days: maximum 30 on this plan")
    return "ok"


@mistake("unit", "meaning", effects="none", asked={"place": "Tampere", "units": "kelvin"},
         reason="neither system gives kelvin")
@mistake("enum", "form", effects="none", asked={"place": "Tampere", "units": "Metric"},
         same=[{"place": "Tampere", "units": "metric"}], reason="an ordinary word with a capital letter")
@mistake("other", "form", effects="none", asked={"place": "Tampere", "units": "metric", "language": ""},
         same=[{"place": "Tampere", "units": "metric"}], reason="an empty extra argument carries nothing")
def current_weather(place: str, units: Literal["metric", "imperial"] = "metric") -> dict:
    return {"temperature": 4}


# -------------------------------------------------------------------------------------------------------------- games


@mistake("number", "meaning", effects="once", asked={"player_id": "p-66", "duration_hours": 8760},
         reason="a ban for a year is not a ban for 30 days")
@mistake("null", "meaning", effects="once", asked={"player_id": "p-66", "duration_hours": None},
         reason="null may mean for ever; the default is a day")
@mistake("type", "form", effects="once", asked={"player_id": "p-66", "duration_hours": 48.0},
         same=[{"player_id": "p-66", "duration_hours": 48}], reason="48.0 is the number 48")
def ban_player(player_id: str, duration_hours: int = 24) -> str:
    if duration_hours > 720:
        raise AgentError(f"duration_hours {duration_hours} is over the limit (720).")
    return "banned"


@mistake("enum", "meaning", effects="once", asked={"playerId": "p-1", "item": "gem_pack", "quantity": 1},
         reason="three packs of gems to choose from")
@mistake("name", "form", effects="once", asked={"player_id": "p-1", "item": "gem_pack_small", "quantity": 1},
         same=[{"playerId": "p-1", "item": "gem_pack_small", "quantity": 1}], reason="playerId in snake_case")
def grantItem(playerId: str,
              item: Literal["gem_pack_small", "gem_pack_large", "gem_pack_mega", "shield"], quantity: int = 1) -> str:
    return "granted"


@mistake("number", "meaning", effects="none", asked={"game": "chess", "top": 500},
         less=[{"game": "chess", "top": 100}], reason="the first 100 of the 500")
@mistake("enum", "equivalent", effects="none", asked={"game": "chess", "top": 10, "order": "descending"},
         same=[{"game": "chess", "top": 10, "order": "desc"}], reason="desc is short for descending")
@mistake("paging", "meaning", effects="none", asked={"game": "chess", "top": 500, "offset": 500},
         reason="a shorter page leaves a hole between this page and the next")
def get_leaderboard(game: str, top: int = 10, offset: int = 0, order: Literal["asc", "desc"] = "desc") -> list:
    if top > 100:
        raise AgentError(f"top must be <= 100 (got {top})")
    return []


@mistake("enum", "meaning", effects="idempotent", asked={"session_id": "s9", "level": "nightmare"},
         reason="nightmare is more than hard")
@mistake("enum", "form", effects="idempotent", asked={"session_id": "s9", "level": ["hard"]},
         same=[{"session_id": "s9", "level": "hard"}], reason="a list of one for the single value")
def set_difficulty(session_id: str, level: Literal["easy", "normal", "hard"]) -> str:
    return level


@mistake("setting", "meaning", effects="once", asked={"name": "Friday raid", "max_players": 64, "private": True},
         reason="a lobby for 16 cannot hold the 64")
@mistake("type", "form", effects="once", asked={"name": "Friday raid", "max_players": 8, "private": "True"},
         same=[{"name": "Friday raid", "max_players": 8, "private": True}], reason="the truth value as a text")
def create_lobby(name: str, max_players: int = 4, private: bool = False) -> str:
    if max_players > 16:
        raise AgentError(f"A lobby holds at most 16 players, you asked for {max_players}.")
    return "lobby"


@mistake("currency", "meaning", effects="once", asked={"order_id": "O-31", "amount": 5},
         earlier=[{"order_id": "O-30", "amount_cents": 499}], reason="5 dollars or 5 cents")
def refund_purchase(order_id: str, amount_cents: int) -> str:
    return "refunded"


@mistake("enum", "meaning", effects="once", asked={"queue": "duo", "region": "us"},
         reason="east or west: one would have to guess")
def join_matchmaking(queue: str, region: Literal["eu", "us-east", "us-west"]) -> str:
    return "queued"


@mistake("permission", "meaning", effects="once", asked={"guild": "Owls", "member": "Tam", "role": "co-leader"},
         reason="a co-leader is more than an officer and less than the leader")
def set_guild_role(guild: str, member: str, role: Literal["member", "officer", "leader"]) -> str:
    return role


# ---------------------------------------------------------------------------------------------------------- marketing


@mistake("number", "meaning", effects="once", asked={"name": "Spring", "daily_budget": "1,500", "currency": "EUR"},
         reason="1,500 is fifteen hundred or, as Europeans write it, one and a half")
@mistake("currency", "meaning", effects="once", asked={"name": "Spring", "daily_budget": 40.0},
         earlier=[{"name": "Winter", "daily_budget": 35.0, "currency": "EUR"}],
         reason="the currency is missing; another campaign's currency is a guess")
@mistake("type", "form", effects="once", asked={"name": "Spring", "daily_budget": "40.50", "currency": "GBP"},
         same=[{"name": "Spring", "daily_budget": 40.5, "currency": "GBP"}], reason="the number 40.50 as a text")
def create_campaign(name: str, daily_budget: float, currency: Literal["EUR", "GBP", "USD"]) -> str:
    return "created"


@mistake("polarity", "meaning", effects="once",
         asked={"list_id": "L1", "subject": "Sale", "include_segments": ["vip"]},
         reason="the mail would go to all but those for whom it was meant, or to all")
def send_newsletter(list_id: str, subject: str, exclude_segments: list[str] | None = None) -> str:
    return "sent"


@mistake("unit", "meaning", effects="once", asked={"code": "HELLO", "percentOff": 0.2},
         reason="a fifth or a fifth of a percent")
@mistake("name", "meaning", effects="once", asked={"code": "HELLO", "amountOff": 20},
         earlier=[{"code": "BYE", "percentOff": 10}], reason="20 euros off is not 20 percent off")
def createDiscountCode(code: str, percentOff: int) -> str:
    if percentOff > 50:
        raise AgentError(f"percentOff must not be greater than 50 (given: {percentOff})")
    return code


@mistake("enum", "meaning", effects="idempotent", asked={"email": "io@shop.example", "status": "paused"},
         reason="to pause is neither to subscribe nor to unsubscribe")
def update_subscription_status(email: str, status: Literal["subscribed", "unsubscribed"]) -> str:
    return status


@mistake("enum", "meaning", effects="once", asked={"channel": "threads", "text": "We are open!"},
         reason="Threads is another network than the three")
@mistake("enum", "form", effects="once", asked={"channel": "LinkedIn", "text": "We are open!"},
         same=[{"channel": "linkedin", "text": "We are open!"}], reason="only the case differs")
@mistake("date", "meaning", effects="once", asked={"channel": "facebook", "text": "Hi", "publish_on": "2025-02-30"},
         reason="there is no 30 February; 28 February and 2 March are guesses")
def schedule_post(channel: Literal["facebook", "instagram", "linkedin"], text: str, publish_on: str = "") -> str:
    if publish_on.endswith(("-02-30", "-02-31")) or (publish_on and not _is_date(publish_on)):
        raise AgentError(f"publish_on: {publish_on} is not a valid date")
    return "scheduled"


@mistake("number", "meaning", effects="once",
         asked={"to": "+4366012345", "text": "Dear guest, " + "your table is ready, please come to the bar. " * 5},
         reason="a cut message says less than the caller wrote")
@mistake("name", "form", effects="once", asked={"to": "+4366012345", "texts": "Your table is ready."},
         same=[{"to": "+4366012345", "text": "Your table is ready."}], reason="the plural of the name, one text")
def send_sms(to: str, text: str) -> str:
    if len(text) > 160:
        raise AgentError(f"Message too long: {len(text)} characters, maximum is 160.")
    return "sent"


@mistake("enum", "meaning", effects="none", asked={"campaign_id": 5, "metric": "click_rate"},
         reason="a rate is not a count of clicks")
@mistake("enum", "form", effects="none", asked={"campaign_id": 5, "metric": "Impressions"},
         same=[{"campaign_id": 5, "metric": "impressions"}], reason="a capital letter")
@mistake("structure", "form", effects="none", asked={"arguments": {"campaign_id": 5, "metric": "clicks"}},
         same=[{"campaign_id": 5, "metric": "clicks"}], reason="the arguments are wrapped in one more object")
def get_campaign_report(campaign_id: int, metric: Literal["clicks", "impressions", "conversions"]) -> dict:
    return {"value": 0}


@mistake("enum", "meaning", effects="idempotent", asked={"campaign_id": 5, "impressions": 8, "per": "month"},
         reason="8 a month is not 8 a week, and 2 a week is only near")
def set_frequency_cap(campaign_id: int, impressions: int, per: Literal["day", "week"]) -> str:
    return "ok"


@mistake("enum", "meaning", effects="once",
         asked={"audience": "A1", "field": "spend", "operator": "gte", "value": 100.0},
         reason="greater or equal differs from greater at 100")
def add_audience_rule(audience: str, field: str, operator: Literal["gt", "lt"], value: float) -> str:
    return "added"


@mistake("flag", "meaning", effects="once", asked={"list_id": "L7", "file_id": "F2", "double_opt_in": True},
         reason="without it the contacts would be subscribed without being asked")
@mistake("other", "form", effects="once", asked={"list_id": "L7", "file_id": "F2", "tags": []},
         same=[{"list_id": "L7", "file_id": "F2"}], reason="an empty extra argument carries nothing")
def import_subscribers(list_id: str, file_id: str) -> str:
    return "imported"


# ----------------------------------------------------------------------------------------------------- e-mail and chat


@mistake("type", "form", effects="once", asked={"to": "ana@firm.example", "subject": "Hi", "body": "See you."},
         same=[{"to": ["ana@firm.example"], "subject": "Hi", "body": "See you."}], reason="one value for a list")
@mistake("permission", "meaning", effects="once",
         asked={"to": ["ana@firm.example"], "subject": "Hi", "body": "See you.", "bcc": ["boss@firm.example"]},
         reason="a hidden copy is not an open copy, and to drop it loses a reader")
@mistake("other", "form", effects="once",
         asked={"to": ["ana@firm.example"], "subject": "Hi", "body": "See you.", "reply_to": None},
         same=[{"to": ["ana@firm.example"], "subject": "Hi", "body": "See you."}],
         reason="a null extra argument carries nothing")
def send_email(to: list[str], subject: str, body: str, cc: list[str] | None = None) -> str:
    return "sent"


@mistake("number", "meaning", effects="none", asked={"query": "invoice", "max_results": 1000},
         less=[{"query": "invoice", "max_results": 200}], reason="200 mails are fewer, nothing else")
@mistake("polarity", "meaning", effects="none", asked={"query": "invoice", "read_only": True},
         reason="only read mails is the opposite of only unread ones")
@mistake("type", "form", effects="none", asked={"query": "invoice", "unread_only": "false"},
         same=[{"query": "invoice", "unread_only": False}], reason="the truth value as a text")
def search_inbox(query: str, unread_only: bool = True, max_results: int = 20) -> list:
    if max_results > 200:
        raise AgentError(f"max_results={max_results} not allowed, at most 200")
    return []


@mistake("enum", "meaning", effects="once", asked={"from_address": "news@ads.example", "action": "mark_read"},
         earlier=[{"from_address": "win@ads.example", "action": "delete"}],
         reason="to mark as read is none of the actions")
def create_mail_filter(from_address: str, action: Literal["archive", "delete", "star"]) -> str:
    return "created"


@mistake("enum", "meaning", effects="idempotent", asked={"message": "On leave.", "audience": "external"},
         reason="neither the own firm nor everyone is outsiders only")
@mistake("date", "meaning", effects="idempotent",
         asked={"message": "On leave.", "audience": "everyone", "until": "06-07"},
         reason="no year and no order of day and month")
def set_auto_reply(message: str, audience: Literal["internal", "everyone"], until: str = "") -> str:
    if until and not _is_date(until):
        raise AgentError(f"Cannot parse until='{until}': use YYYY-MM-DD")
    return "on"


@mistake("null", "form", effects="once", asked={"channel_id": "C02AB", "text": "Deployed.", "thread_ts": None},
         same=[{"channel_id": "C02AB", "text": "Deployed."}], reason="null and no thread both mean the channel itself")
@mistake("name", "meaning", effects="once", asked={"channel": "#general", "text": "Deployed."},
         earlier=[{"channel_id": "C02AB", "text": "Deploying."}],
         reason="the name of a channel is not its id; the earlier id may be another channel")
@mistake("permission", "meaning", effects="once",
         asked={"channel_id": "C02AB", "text": "Your raise is approved.", "visible_only_to": "U77"},
         reason="without the argument all would read it")
def post_message(channel_id: str, text: str, thread_ts: str = "") -> str:
    if not channel_id.startswith("C"):
        raise AgentError("channel_not_found: pass a channel id such as C012AB3CD")
    return "posted"


@mistake("polarity", "meaning", effects="once", asked={"channel": "support", "after": "2025-01-01"},
         reason="the other half of the messages would be deleted")
def delete_messages(channel: str, before: str) -> str:
    return "deleted"


@mistake("enum", "meaning", effects="idempotent", asked={"conversation_id": "x1", "mute_for": "forever"},
         reason="for ever is more than a week")
def mute_conversation(conversation_id: str, mute_for: Literal["1h", "8h", "1w"]) -> str:
    return "muted"


@mistake("permission", "meaning", effects="once", asked={"channel": "design", "users": ["U1"], "role": "admin"},
         reason="no member grants that much")
@mistake("type", "form", effects="once", asked={"channel": "design", "users": '["U1", "U2"]', "role": "guest"},
         same=[{"channel": "design", "users": ["U1", "U2"], "role": "guest"}], reason="a JSON text for the list")
def invite_to_channel(channel: str, users: list[str], role: Literal["member", "guest"] = "member") -> str:
    return "invited"


@mistake("enum", "equivalent", effects="idempotent", asked={"user": "mia", "presence": "do_not_disturb"},
         same=[{"user": "mia", "presence": "dnd"}], reason="dnd stands for do not disturb")
def set_presence(user: str, presence: Literal["active", "away", "dnd"]) -> str:
    return presence


@mistake("time zone", "meaning", effects="once",
         asked={"chat_id": 1009, "text": "Reminder", "send_at": "2025-03-01 09:00"},
         reason="an instant needs the zone of the nine o'clock")
def schedule_message(chat_id: int, text: str, send_at: Annotated[int, "Unix time in seconds"]) -> str:
    return "scheduled"


@mistake("paging", "meaning", effects="none", asked={"mailbox": "sales", "limit": 500, "cursor": "b2Zmc2V0"},
         reason="a cursor with another size of page may skip or repeat threads")
@mistake("type", "form", effects="none", asked={"mailbox": "sales", "limit": "50"},
         same=[{"mailbox": "sales", "limit": 50}], reason="the number 50 as a text")
def list_threads(mailbox: str, limit: int = 25, cursor: str | None = None) -> list:
    if limit > 100:
        raise AgentError(f"limit: {limit} > 100")
    return []


# -------------------------------------------------------------------------------------------------------------- shops


@mistake("polarity", "meaning", effects="once", asked={"sku": "TEA-1", "quantity": 5, "mode": "subtract"},
         earlier=[{"sku": "TEA-1", "quantity": 20, "mode": "set"}],
         reason="to take 5 away is neither to add 5 nor to set 5")
@mistake("type", "form", effects="once", asked={"sku": "TEA-1", "quantity": "5", "mode": "add"},
         same=[{"sku": "TEA-1", "quantity": 5, "mode": "add"}], reason="the number 5 as a text")
def update_stock(sku: str, quantity: int, mode: Literal["set", "add"]) -> str:
    if quantity < 0:
        raise AgentError("quantity must not be negative")
    return "ok"


@mistake("enum", "meaning", effects="none", asked={"category": "lamps", "sort": "price"},
         reason="rising or falling: one would have to guess")
@mistake("polarity", "meaning", effects="none", asked={"category": "lamps", "sort": "oldest"},
         reason="the oldest first is the opposite of the newest first")
@mistake("null", "meaning", effects="none", asked={"category": "lamps", "in_stock": None},
         reason="null means either, the default True hides what is sold out")
def list_products(category: str, sort: Literal["price_asc", "price_desc", "newest"] = "newest",
                  in_stock: bool = True) -> list:
    return []


@mistake("unit", "meaning", effects="once", asked={"supplier": "Miller", "quantity": 500, "unit": "g"},
         reason="500 g are half a kilogram, which is no whole number of kilograms")
def order_flour(supplier: str, quantity: int, unit: Literal["kg", "t"]) -> str:
    return "ordered"


class OrderLine(TypedDict):
    sku: str
    qty: int


@mistake("structure", "form", effects="once", asked={"customer": "K-9", "lines": {"sku": "MUG", "qty": 2}},
         same=[{"customer": "K-9", "lines": [{"sku": "MUG", "qty": 2}]}], reason="one object for a list of objects")
@mistake("structure", "form", effects="once", asked={"customer": "K-9", "lines": '[{"sku": "MUG", "qty": 2}]'},
         same=[{"customer": "K-9", "lines": [{"sku": "MUG", "qty": 2}]}], reason="a JSON text for the list")
@mistake("structure", "meaning", effects="once", asked={"customer": "K-9", "lines": [{"sku": "MUG"}]},
         earlier=[{"customer": "K-8", "lines": [{"sku": "MUG", "qty": 12}]}],
         reason="how many mugs is not said")
def place_order(customer: str, lines: list[OrderLine]) -> str:
    return "placed"


@mistake("number", "meaning", effects="once", asked={"order_id": 3310, "amount": 640.0, "reason": "damaged"},
         reason="the customer was to get 640, not 500")
def refund_order(order_id: int, amount: float, reason: Literal["damaged", "wrong_item", "duplicate"]) -> str:
    if amount > 500:
        raise AgentError(f"Refunds above 500.00 need approval (amount: {amount:.2f}, maximum: 500.00).")
    return "refunded"


@mistake("currency", "meaning", effects="idempotent", asked={"product_id": "P-4", "price": 19.9, "currency": "USD"},
         earlier=[{"product_id": "P-3", "price": 17.9, "currency": "EUR"}],
         reason="19.90 dollars are not 19.90 euros")
def set_price(product_id: str, price: float, currency: Literal["EUR", "GBP"]) -> str:
    return "ok"


@mistake("enum", "meaning", effects="once", asked={"product_id": "shirt-7", "size": "XL", "qty": 1},
         reason="XL is larger than L")
@mistake("type", "form", effects="once", asked={"product_id": "shirt-7", "size": "M", "qty": 2.0},
         same=[{"product_id": "shirt-7", "size": "M", "qty": 2}], reason="2.0 is the number 2")
def add_to_cart(product_id: str, size: Literal["S", "M", "L"], qty: int = 1) -> str:
    return "added"


@mistake("enum", "meaning", effects="once", asked={"order_number": "1009", "carrier": "DHL Express"},
         reason="another service at another price, and perhaps another carrier account than DHL parcel")
@mistake("type", "form", effects="once", asked={"order_number": 1009, "carrier": "DPD"},
         same=[{"order_number": "1009", "carrier": "DPD"}], reason="the text '1009' as a number")
def create_return_label(order_number: str, carrier: Literal["DHL", "UPS", "DPD"]) -> str:
    return "label.pdf"


@mistake("name", "form", effects="once", asked={"cart-id": "c1", "card-code": "GIFT-22"},
         same=[{"cart_id": "c1", "card_code": "GIFT-22"}], reason="the same names in kebab-case")
@mistake("other", "form", effects="once", asked={"cart_id": "c1", "card_code": "GIFT-22", "pin": None},
         same=[{"cart_id": "c1", "card_code": "GIFT-22"}], reason="a null extra argument carries nothing")
def apply_gift_card(cart_id: str, card_code: str) -> str:
    return "applied"


@mistake("enum", "equivalent", effects="idempotent", asked={"weekday": "Monday", "opens": "09:00", "closes": "18:00"},
         same=[{"weekday": "Mon", "opens": "09:00", "closes": "18:00"}], reason="Mon is short for Monday")
@mistake("enum", "meaning", effects="idempotent", asked={"weekday": "T", "opens": "09:00", "closes": "18:00"},
         reason="Tuesday or Thursday")
@mistake("date", "meaning", effects="idempotent", asked={"weekday": "Fri", "opens": "09:00", "closes": "24:30"},
         reason="half past midnight is on the next day; no accepted time of this day means it")
def set_opening_hours(weekday: Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], opens: str,
                      closes: str) -> str:
    if not (_is_time(opens) and _is_time(closes)) or closes <= opens:
        raise AgentError(f"Opening hours {opens}-{closes} are invalid: HH:MM, and closes must be later than opens.")
    return "ok"


@mistake("enum", "equivalent", effects="none", asked={"status": "canceled"}, same=[{"status": "cancelled"}],
         reason="the American spelling")
@mistake("polarity", "meaning", effects="none", asked={"status": "not_shipped"},
         reason="open and cancelled orders are both not shipped")
@mistake("number", "meaning", effects="none", asked={"status": "open", "limit": 1000},
         less=[{"status": "open", "limit": 250}], reason="250 orders are fewer, nothing else")
def search_orders(status: Literal["open", "shipped", "cancelled"], limit: int = 50) -> list:
    if limit > 250:
        raise AgentError("Limit must be less than or equal to 250")
    return []


@mistake("enum", "meaning", effects="once", asked={"order_id": 8, "channel": "phone"},
         reason="a phone call is not a text message")
def notify_customer(order_id: int, channel: Literal["sms", "email"]) -> str:
    return "notified"


@mistake("polarity", "meaning", effects="idempotent", asked={"sku": "TEA-1", "max_quantity": 100},
         earlier=[{"sku": "TEA-2", "min_quantity": 10}], reason="the highest stock is not the lowest")
def set_reorder_rule(sku: str, min_quantity: int) -> str:
    return "ok"


# ------------------------------------------------------------------------------------------------------------- health


@mistake("enum", "meaning", effects="once", asked={"patient_id": 51, "slot_id": "sl-3", "visit": "phone"},
         reason="a call has no picture and is not a visit")
@mistake("enum", "form", effects="once", asked={"patient_id": 51, "slot_id": "sl-3", "visit": "in-person"},
         same=[{"patient_id": 51, "slot_id": "sl-3", "visit": "in_person"}], reason="kebab-case for snake_case")
def book_appointment(patient_id: int, slot_id: str, visit: Literal["in_person", "video"]) -> str:
    return "booked"


@mistake("unit", "meaning", effects="once", asked={"patient_id": 51, "drug": "vitamin D3", "dose": 1000, "unit": "IU"},
         reason="units of effect are not units of mass")
@mistake("unit", "meaning", effects="once", asked={"patient_id": 51, "drug": "ibuprofen", "dose": 10, "unit": "ml"},
         earlier=[{"patient_id": 51, "drug": "ibuprofen", "dose": 400, "unit": "mg"}],
         reason="the mass in 10 ml depends on the strength of the syrup")
def log_medication(patient_id: int, drug: str, dose: float, unit: Literal["mg", "mcg"]) -> str:
    return "logged"


@mistake("enum", "equivalent", effects="idempotent", asked={"prescription_id": "rx1", "frequency": "bid"},
         same=[{"prescription_id": "rx1", "frequency": "twice_daily"}], reason="bis in die is twice a day")
@mistake("enum", "meaning", effects="idempotent", asked={"prescription_id": "rx1", "frequency": "twice_weekly"},
         reason="twice a week is much less than twice a day and no other member")
def set_dose_reminder(prescription_id: str, frequency: Literal["once_daily", "twice_daily", "every_other_day"]) -> str:
    return "ok"


@mistake("unit", "meaning", effects="once", asked={"patient_id": 51, "value": 110.0, "unit": "mg/dL"},
         reason="110 mg/dL is about 6.1 mmol/L; the rounding is not the caller's value")
def record_glucose(patient_id: int, value: float, unit: Literal["mmol/L"] = "mmol/L") -> str:
    return "recorded"


@mistake("unit", "meaning", effects="none", asked={"specialty": "dermatology", "within_miles": 10},
         reason="10 miles are 16.09 km, no whole number")
@mistake("type", "form", effects="none", asked={"specialty": "dermatology", "within_km": "25"},
         same=[{"specialty": "dermatology", "within_km": 25}], reason="the number 25 as a text")
def search_providers(specialty: str, within_km: int = 10) -> list:
    return []


@mistake("permission", "meaning", effects="once", asked={"patient_id": 51, "recipient": "dr-lee", "scope": "labs_only"},
         reason="the summary lacks the labs, the full record shows too much")
@mistake("permission", "meaning", effects="once",
         asked={"patient_id": 51, "recipient": "dr-lee", "scope": "full", "expires_on": "2025-05-31"},
         reason="without the argument the doctor would have access for ever")
def share_health_record(patient_id: int, recipient: str, scope: Literal["summary", "full"]) -> str:
    return "shared"


@mistake("polarity", "meaning", effects="none", asked={"patient_id": 51, "until": "2024-12-31"},
         reason="until is the other end of the time")
@mistake("name", "form", effects="none", asked={"patientId": 51, "since": "2024-12-31"},
         same=[{"patient_id": 51, "since": "2024-12-31"}], reason="patient_id in camelCase")
def get_lab_results(patient_id: int, since: str = "") -> list:
    return []


@mistake("null", "meaning", effects="once", asked={"appointment_id": "ap-6", "notify_patient": None},
         reason="null may mean no message; the default sends one")
@mistake("type", "form", effects="once", asked={"appointment_id": "ap-6", "notify_patient": "false"},
         same=[{"appointment_id": "ap-6", "notify_patient": False}], reason="the truth value as a text")
def cancel_appointment(appointment_id: str, notify_patient: bool = True) -> str:
    return "cancelled"


@mistake("enum", "meaning", effects="once", asked={"patient_id": 51, "substance": "penicillin", "severity": "unknown"},
         reason="each member states a severity that nobody knows")
def add_allergy(patient_id: int, substance: str, severity: Literal["mild", "moderate", "severe"]) -> str:
    return "added"


# ---------------------------------------------------------------------------------------------- public administration


@mistake("enum", "meaning", effects="once",
         asked={"applicant_id": "A-3", "document": "passport", "kind": "replacement"},
         reason="to replace a lost passport is neither a first issue nor a renewal")
@mistake("structure", "form", effects="once",
         asked={"arguments": {"applicant_id": "A-3", "document": "passport", "kind": "renewal"}},
         same=[{"applicant_id": "A-3", "document": "passport", "kind": "renewal"}],
         reason="the arguments are wrapped in one more object")
def submit_application(applicant_id: str, document: str, kind: Literal["new", "renewal"]) -> str:
    return "submitted"


@mistake("date", "equivalent", effects="once", asked={"office": "north", "day": "31/12/2025"},
         same=[{"office": "north", "day": "2025-12-31"}], reason="only 31 December can be meant")
@mistake("date", "meaning", effects="once", asked={"office": "north", "day": "05.06.25"},
         reason="5 June 2025, 6 May 2025 or even 25 June 2005")
@mistake("name", "form", effects="once", asked={"offce": "north", "day": "2025-12-30"},
         same=[{"office": "north", "day": "2025-12-30"}], reason="one letter is missing in the name")
def book_citizen_slot(office: str, day: str) -> str:
    if not _is_date(day):
        raise AgentError(f"day must look like 2025-01-31, not {day!r}")
    return "booked"


class Address(TypedDict):
    street: str
    postal_code: str
    city: str


@mistake("type", "meaning", effects="once",
         asked={"citizen_id": "Z9", "address": {"street": "Elbweg 2", "postal_code": 1069, "city": "Dresden"}},
         reason="a code of five digits lost something; a zero in front is a guess")
@mistake("structure", "form", effects="once",
         asked={"citizen_id": "Z9",
                "address": '{"street": "Isarweg 2", "postal_code": "80331", "city": "München"}'},
         same=[{"citizen_id": "Z9",
                "address": {"street": "Isarweg 2", "postal_code": "80331", "city": "München"}}],
         reason="a JSON text for the object")
@mistake("name", "form", effects="once",
         asked={"citizen_id": "Z9",
                "address": {"street": "Isarweg 2", "postalCode": "80331", "city": "München"}},
         same=[{"citizen_id": "Z9",
                "address": {"street": "Isarweg 2", "postal_code": "80331", "city": "München"}}],
         reason="postal_code in camelCase, one level down")
def register_address(citizen_id: str, address: Address) -> str:
    if not re.fullmatch(r"\d{5}", str(address["postal_code"])):
        raise AgentError("address.postal_code must have 5 digits")
    return "registered"


@mistake("enum", "meaning", effects="once", asked={"reference": "F-202", "amount": 37.5, "method": "credit"},
         reason="a credit card, a credit transfer or credit on an account")
def pay_fee(reference: str, amount: float, method: Literal["card", "direct_debit", "bank_transfer"]) -> str:
    return "paid"


@mistake("enum", "meaning", effects="idempotent", asked={"citizen_id": "Z9", "status": "separated"},
         reason="who lives apart is still married, but was not said to live together; divorced is wrong")
def set_marital_status(citizen_id: str, status: Literal["single", "married", "divorced", "widowed"]) -> str:
    return status


@mistake("name", "equivalent", effects="once", asked={"category": "pothole", "latitude": 48.2, "longitude": 16.37},
         same=[{"category": "pothole", "lat": 48.2, "lon": 16.37}], reason="lat and lon are the usual short names")
@mistake("number", "meaning", effects="once", asked={"category": "pothole", "lat": 116.37, "lon": 48.2},
         reason="perhaps swapped, perhaps a digit too many")
@mistake("type", "form", effects="once", asked={"category": "graffiti", "lat": "48.2", "lon": "16.37"},
         same=[{"category": "graffiti", "lat": 48.2, "lon": 16.37}], reason="the numbers as texts")
def report_street_issue(category: Literal["pothole", "streetlight", "graffiti"], lat: float, lon: float) -> str:
    if abs(lat) > 90:
        raise AgentError(f"lat {lat} is outside -90..90")
    return "reported"


@mistake("name", "form", effects="none", asked={"permit_numbers": "B-2025-44"}, same=[{"permit_number": "B-2025-44"}],
         reason="the plural of the name with one number")
@mistake("structure", "form", effects="none", asked={"input": {"permit_number": "B-2025-44"}},
         same=[{"permit_number": "B-2025-44"}], reason="the arguments are wrapped in one more object")
@mistake("other", "meaning", effects="none", asked={"permit_number": "B-2025-404"},
         reason="a near number is the permit of someone else")
def get_permit_status(permit_number: str) -> str:
    if permit_number not in ("B-2025-44", "B-2025-40", "B-2025-104"):
        raise AgentError(f"No permit {permit_number}. Did you mean B-2025-44, B-2025-40 or B-2025-104?")
    return "granted"


@mistake("enum", "meaning", effects="none", asked={"keyword": "noise", "level": "municipal"},
         reason="the rules of a town are neither federal nor those of the state")
@mistake("number", "meaning", effects="none", asked={"keyword": "noise", "level": "state", "count": 300},
         less=[{"keyword": "noise", "level": "state", "count": 30}], reason="30 rules are fewer, nothing else")
def search_regulations(keyword: str, level: Literal["federal", "state"] = "state", count: int = 10) -> list:
    if count > 30:
        raise AgentError(f"count too large ({count}); the service returns 30 at most")
    return []


# -------------------------------------------------------------------------------------- calendar, CRM, payments, files


@mistake("permission", "meaning", effects="once", asked={"title": "Review", "day": "2025-04-02", "visibility": "team"},
         reason="the team is fewer than the public and more than the owner")
@mistake("enum", "form", effects="once", asked={"title": "Review", "day": "2025-04-02", "visibility": "Private"},
         same=[{"title": "Review", "day": "2025-04-02", "visibility": "private"}], reason="a capital letter")
@mistake("null", "form", effects="once", asked={"title": "Review", "day": "2025-04-02", "location": None},
         same=[{"title": "Review", "day": "2025-04-02"}], reason="null and the default both mean no place")
def create_event(title: str, day: str, location: str = "", visibility: Literal["public", "private"] = "public") -> str:
    return "created"


@mistake("polarity", "meaning", effects="none", asked={"calendar_ids": ["a", "b"], "max_minutes": 30},
         reason="slots of at most 30 minutes are not slots of at least 30")
@mistake("name", "form", effects="none", asked={"calendarIds": ["a", "b"], "minMinutes": 30},
         same=[{"calendar_ids": ["a", "b"], "min_minutes": 30}], reason="the same names in camelCase")
def find_free_slots(calendar_ids: list[str], min_minutes: int = 15) -> list:
    return []


@mistake("enum", "meaning", effects="once", asked={"event_id": "ev1", "every": "biweekly"},
         reason="twice a week or every second week, and neither is a member")
def repeat_event(event_id: str, every: Literal["day", "week", "month"]) -> str:
    return "repeats"


@mistake("enum", "meaning", effects="idempotent", asked={"deal_id": 902, "stage": "closed"},
         reason="closed is won or lost")
def update_deal_stage(deal_id: int, stage: Literal["qualified", "proposal", "won", "lost"]) -> str:
    return stage


@mistake("name", "meaning", effects="once", asked={"first_id": "c-10", "second_id": "c-22"},
         reason="which contact remains is not said")
def merge_contacts(source_id: str, target_id: str) -> str:
    return "merged"


@mistake("structure", "form", effects="none", asked={"where": '{"city": "Graz"}'}, same=[{"where": {"city": "Graz"}}],
         reason="a JSON text for the object")
@mistake("paging", "meaning", effects="none", asked={"where": {"city": "Graz"}, "per_page": 1000, "page": 3},
         reason="page 3 of another size holds other contacts")
def search_contacts(where: dict, per_page: int = 50, page: int = 1) -> list:
    if per_page > 200:
        raise AgentError(f"per_page must be in 1..200, is {per_page}")
    return []


@mistake("type", "form", effects="idempotent", asked={"record_ids": 42, "owner": "lena"},
         same=[{"record_ids": [42], "owner": "lena"}], reason="one value for a list")
@mistake("type", "form", effects="idempotent", asked={"record_ids": ["42", "43"], "owner": "lena"},
         same=[{"record_ids": [42, 43], "owner": "lena"}], reason="the numbers in the list as texts")
def assign_owner(record_ids: list[int], owner: str) -> str:
    return "assigned"


@mistake("flag", "meaning", effects="once", asked={"older_than": "2020-01-01", "dry_run": True},
         reason="without the argument the contacts would really be deleted")
def purge_contacts(older_than: str) -> str:
    return "purged"


@mistake("flag", "meaning", effects="once", asked={"feed_url": "https://shop.example/feed.xml", "preview": True},
         reason="a preview changes nothing; publish=False still imports the feed")
def sync_catalog(feed_url: str, publish: bool = False) -> str:
    return "synced"


@mistake("unit", "meaning", effects="once", asked={"amount_minor": 19.99, "currency": "EUR"},
         reason="19 or 20 cents, or 1999: one would have to guess")
@mistake("currency", "meaning", effects="once", asked={"amount_minor": 5000, "currency": "JPY"},
         earlier=[{"amount_minor": 5000, "currency": "EUR"}],
         reason="5000 yen are neither 50 euros nor 50 dollars")
def create_payment_link(amount_minor: int, currency: Literal["EUR", "USD"] = "EUR") -> str:
    return "https://pay.example/1"


@mistake("setting", "meaning", effects="once", asked={"customer": "cus_1", "plan": "pro", "trial_days": 90},
         reason="the customer would be charged 60 days earlier than meant")
def create_subscription(customer: str, plan: str, trial_days: int = 0) -> str:
    if trial_days > 30:
        raise AgentError(f"trial_days cannot exceed 30 (received {trial_days})")
    return "sub_1"


@mistake("other", "meaning", effects="once", asked={"charge_id": "ch_1", "idempotency_key": "k-8812"},
         reason="without the key a second call charges twice, against the intent of the caller")
def capture_charge(charge_id: str) -> str:
    return "captured"


@mistake("permission", "meaning", effects="once", asked={"file_id": "f1", "email": "x@y.example", "access": "owner"},
         reason="an owner may do more than an editor")
@mistake("null", "meaning", effects="once",
         asked={"file_id": "f1", "email": "x@y.example", "access": "view", "expires_in_days": None},
         reason="null may mean never; the default ends the access after a week")
def share_file(file_id: str, email: str, access: Literal["view", "comment", "edit"], expires_in_days: int = 7) -> str:
    return "shared"


@mistake("unit", "equivalent", effects="none", asked={"image_id": "i1", "width": "800px"},
         same=[{"image_id": "i1", "width": 800}], reason="the width is in pixels")
@mistake("enum", "meaning", effects="none", asked={"image_id": "i1", "width": 800, "fit": "stretch"},
         reason="to stretch distorts; cover cuts and contain leaves a border")
def render_thumbnail(image_id: str, width: Annotated[int, "pixels"],
                     fit: Literal["cover", "contain"] = "cover") -> str:
    return "thumb.png"


@mistake("enum", "meaning", effects="none", asked={"url": "https://a.example/1.mp3", "language": "en"},
         reason="American or British English")
def transcribe_audio(url: str, language: Literal["en-US", "en-GB", "pt-BR"]) -> str:
    return "hello"


@mistake("enum", "meaning", effects="none", asked={"text": "Good morning", "target": "zh"},
         reason="simplified or traditional characters")
@mistake("name", "meaning", effects="none", asked={"text": "Guten Morgen", "source": "de"},
         reason="the language of the text is not the language to translate into")
def translate_text(text: str, target: Literal["en", "de", "zh-Hans", "zh-Hant"]) -> str:
    return "..."


@mistake("unit", "meaning", effects="idempotent", asked={"speaker": "hall", "level": 0.5},
         reason="half the volume or half a percent")
def set_volume(speaker: str, level: int) -> str:
    return "ok"


@mistake("polarity", "meaning", effects="once", asked={"folder": "trash", "newer_than_days": 30},
         reason="the other files would be deleted")
def empty_folder(folder: str, older_than_days: int) -> str:
    return "emptied"


@mistake("enum", "form", effects="once", asked={"subject": "Login fails", "priority": "HIGH"},
         same=[{"subject": "Login fails", "priority": "high"}], reason="the word in capitals")
@mistake("enum", "meaning", effects="once", asked={"subject": "Login fails", "priority": "2"},
         reason="the second from above or from below")
def create_ticket(subject: str, priority: Literal["low", "normal", "high", "urgent"] = "normal") -> str:
    return "T-1"


@mistake("name", "meaning", effects="idempotent", asked={"queue": "billing", "resolution_hours": 24},
         earlier=[{"queue": "sales", "response_hours": 4}],
         reason="the time to resolve is not the time to the first answer")
def set_sla(queue: str, response_hours: int) -> str:
    return "ok"


@mistake("number", "meaning", effects="once", asked={"ticket_id": 77, "level": 4},
         reason="there is no level 4; level 3 are other people")
@mistake("type", "form", effects="once", asked={"ticket_id": [77], "level": 2},
         same=[{"ticket_id": 77, "level": 2}], reason="a list of one for the single value")
def escalate_ticket(ticket_id: int, level: int) -> str:
    if level not in (1, 2, 3):
        raise AgentError(f"Unknown escalation level {level}: expected 1, 2 or 3")
    return "escalated"


@mistake("flag", "meaning", effects="once", asked={"file_id": "f9", "quiet": True},
         earlier=[{"file_id": "f8", "verbose": True}], reason="quiet is the opposite of verbose, and less than normal")
def run_import(file_id: str, verbose: bool = False) -> str:
    return "imported"


# ------------------------------------------------------------------------------------------------------- more reading


@mistake("date", "meaning", effects="none", asked={"base": "EUR", "quote": "GBP", "on": "yesterday"},
         reason="the day depends on the clock and zone of the caller")
def get_exchange_rate(base: str, quote: str, on: str = "") -> float:
    if on and not _is_date(on):
        raise AgentError(f"on='{on}' is not a date in the form YYYY-MM-DD")
    return 0.85


@mistake("time zone", "meaning", effects="none", asked={"airport": "DXB", "after": "2025-08-01T07:00"},
         earlier=[{"airport": "LHR", "after": "2025-08-01T07:00+01:00"}],
         reason="seven o'clock in Dubai, in UTC or in London")
def get_departures(airport: str, after: str) -> list:
    if not re.search(r"(Z|[+-]\d\d:\d\d)$", after):
        raise AgentError("after: time zone designator missing")
    return []


@mistake("time zone", "meaning", effects="none", asked={"team": "ops", "display_zone": "CST"},
         reason="CST is the time of Chicago, of China or of Cuba")
def list_on_call(team: str, display_zone: Literal["UTC", "America/Chicago", "Asia/Shanghai"] = "UTC") -> list:
    return []


@mistake("paging", "meaning", effects="none", asked={"customer": "K-9", "limit": 300, "starting_after": "in_88"},
         reason="the caller goes through pages of 300; a shorter page breaks the walk")
@mistake("polarity", "meaning", effects="none", asked={"customer": "K-9", "ending_before": "in_88"},
         earlier=[{"customer": "K-9", "starting_after": "in_40"}], reason="the other direction of the walk")
def list_invoices(customer: str, limit: int = 10, starting_after: str = "") -> list:
    if limit > 100:
        raise AgentError("Invalid integer: limit must be between 1 and 100")
    return []


@mistake("paging", "meaning", effects="none", asked={"user": "root", "start": 1000, "count": 1000},
         reason="a shorter count leaves a hole before the next start")
def list_audit_events(user: str, start: int = 0, count: int = 100) -> list:
    if count > 250:
        raise AgentError(f"count={count} is too high. Maximum: 250")
    return []


@mistake("enum", "meaning", effects="none", asked={"year": 2025, "granularity": "quarter"},
         reason="a quarter is none of the steps")
@mistake("currency", "meaning", effects="none", asked={"year": 2025, "currency": "SEK"},
         reason="figures in kronor are other figures")
def get_sales_report(year: int, granularity: Literal["day", "week", "month"] = "month",
                     currency: Literal["EUR", "NOK", "DKK"] = "EUR") -> dict:
    return {}


@mistake("polarity", "meaning", effects="none", asked={"city": "Lyon", "max_rooms": 3},
         reason="at most three rooms is not at least three")
@mistake("currency", "meaning", effects="none", asked={"city": "Lyon", "max_rent": "900 USD"},
         reason="the rent is in euros; 900 dollars are another amount")
def find_apartments(city: str, min_rooms: int = 1, max_rent: Annotated[float, "EUR per month"] = 5000.0) -> list:
    return []


@mistake("polarity", "meaning", effects="none", asked={"dish": "curry", "with_ingredients": ["peanut"]},
         earlier=[{"dish": "soup", "without_ingredients": ["peanut"]}], reason="with is the opposite of without")
def search_recipes(dish: str, without_ingredients: list[str] | None = None) -> list:
    return []


@mistake("unit", "meaning", effects="none", asked={"food": "rice", "amount": 1, "unit": "cup"},
         reason="how many grams a cup holds depends on the food and on the country")
def get_calories(food: str, amount: float, unit: Literal["g", "ml"] = "g") -> int:
    return 130


@mistake("unit", "meaning", effects="none", asked={"line": "office", "unit": "Mb"},
         reason="Mb are megabits, MB are megabytes")
def get_data_usage(line: str, unit: Literal["kB", "MB", "GB"] = "MB") -> float:
    return 1.5


@mistake("polarity", "meaning", effects="none", asked={"room": "lobby", "first": 50},
         earlier=[{"room": "lobby", "last": 20}], reason="the first messages are not the last ones")
@mistake("number", "meaning", effects="none", asked={"room": "lobby", "last": 2000},
         less=[{"room": "lobby", "last": 100}], reason="the newest 100 of the newest 2000")
def get_chat_history(room: str, last: int = 20) -> list:
    if last > 100:
        raise AgentError(f"You can fetch at most 100 messages at once (asked for {last}).")
    return []


@mistake("null", "meaning", effects="none", asked={"class_id": "7b", "enrolled": None},
         reason="null means those who left as well; the default hides them")
def list_students(class_id: str, enrolled: bool = True) -> list:
    return []


@mistake("number", "meaning", effects="none", asked={"query": "barista", "top": 200},
         less=[{"query": "barista", "top": 40}], reason="40 jobs are fewer, nothing else")
@mistake("null", "meaning", effects="none", asked={"query": "barista", "top": None},
         reason="null may mean all of them; the default gives 10")
def search_jobs(query: str, top: int = 10) -> list:
    if top > 40:
        raise AgentError(f"top: must be 40 or less, was {top}")
    return []


@mistake("date", "meaning", effects="none", asked={"museum": "Prado", "day": "10/11/2025"},
         reason="10 November or 11 October")
def check_ticket_availability(museum: str, day: str) -> bool:
    if not _is_date(day):
        raise AgentError(f"Bad date '{day}', expected yyyy-mm-dd")
    return True


@mistake("name", "meaning", effects="none", asked={"account": "acme", "updated_since": "2025-03-01"},
         reason="what was changed since then is more than what was created since then")
def list_new_deals(account: str, created_since: str = "") -> list:
    return []


@mistake("retention", "meaning", effects="idempotent", asked={"workspace": "law-1", "keep_messages": "forever"},
         reason="every accepted value deletes messages that were to be kept")
def set_chat_retention(workspace: str, keep_messages: Literal["30d", "90d", "1y"]) -> str:
    return "ok"


@mistake("setting", "meaning", effects="idempotent", asked={"mailbox": "info", "quota_gb": 100},
         reason="half of the asked space is another setting")
def set_mailbox_quota(mailbox: str, quota_gb: int) -> str:
    if quota_gb > 50:
        raise AgentError(f"quota_gb={quota_gb}: your plan allows up to 50")
    return "ok"
