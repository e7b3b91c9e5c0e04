"""Mistaken calls of operations and data tools: energy, logistics, medicine, analytics, storage, trading, media, ..."""

import re
from typing import Literal, TypedDict

from mistakes import Batch

from mulligan import AgentError

batch = Batch()
mistake = batch.add


def _need_date(name: str, value: str) -> None:
    if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", value):
        raise AgentError(f"{name} must be a date in the form YYYY-MM-DD, got {value!r}.")


def _need_utc(name: str, value: str) -> None:
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", value):
        raise AgentError(f"Invalid {name}: expected a UTC timestamp such as 2025-01-31T08:00:00Z")


# ---------------------------------------------------------------------------------------------- energy and IoT


@mistake("unit", "meaning", effects="idempotent", asked={"battery_id": "B-12", "rate": 5.0, "unit": "kWh"},
         earlier=[{"battery_id": "B-11", "rate": 4.0, "unit": "kW"}],
         reason="kWh is an amount of energy, not a rate; the caller may have meant a charge of 5 kWh")
@mistake("unit", "equivalent", effects="idempotent", asked={"battery_id": "B-12", "rate": 5.0, "unit": "kw"},
         same=[{"battery_id": "B-12", "rate": 5.0, "unit": "kW"}], reason="kw has no other reading than kilowatt")
def set_battery_charge_rate(battery_id: str, rate: float, unit: Literal["W", "kW"]) -> str:
    return f"{battery_id}: {rate} {unit}"


@mistake("unit", "meaning", effects="idempotent", asked={"plantId": "PV7", "limitPercent": 0.7},
         reason="0.7 may be the fraction 70 % or 0.7 %; no integer says it with certainty")
@mistake("type", "equivalent", effects="idempotent", asked={"plantId": "PV7", "limitPercent": "70%"},
         same=[{"plantId": "PV7", "limitPercent": 70}], reason="70% as percent is the number 70")
def setFeedInLimit(plantId: str, limitPercent: int) -> dict:
    if not 0 <= limitPercent <= 100:
        raise AgentError("limitPercent out of range 0..100")
    return {"plantId": plantId, "limitPercent": limitPercent}


@mistake("enum", "meaning", effects="none",
         asked={"meter_id": "M1", "start": "2025-01-01", "end": "2025-01-02", "resolution": "30m"},
         reason="half-hourly readings are not offered; 15m gives other rows and other values per row")
@mistake("name", "form", effects="none",
         asked={"meterId": "M1", "start": "2025-01-01", "end": "2025-01-02", "resolution": "1h"},
         same=[{"meter_id": "M1", "start": "2025-01-01", "end": "2025-01-02", "resolution": "1h"}],
         reason="camelCase spelling of meter_id")
def get_meter_readings(meter_id: str, start: str, end: str, resolution: Literal["15m", "1h", "1d"] = "15m") -> list:
    _need_date("start", start)
    _need_date("end", end)
    return []


@mistake("enum", "meaning", effects="once", asked={"topic": "plant/1/cmd", "payload": "START", "qos": 3},
         reason="there is no quality of service 3; which one the caller relies on is unknown")
@mistake("type", "form", effects="once", asked={"topic": "plant/1/cmd", "payload": "START", "qos": "1"},
         same=[{"topic": "plant/1/cmd", "payload": "START", "qos": 1}], reason="the text '1' is the number 1")
def publish_mqtt(topic: str, payload: str, qos: Literal[0, 1, 2] = 0, retain: bool = False) -> bool:
    return True


@mistake("unit", "meaning", effects="idempotent", asked={"device_id": "th-3", "fahrenheit": 70},
         reason="70 F is 21.11... C; the tool takes half degrees only, and 70 as celsius is absurd")
@mistake("number", "meaning", effects="idempotent", asked={"device_id": "th-3", "celsius": 72},
         earlier=[{"device_id": "th-3", "celsius": 30}],
         reason="probably 72 F; clamping to 30 C overheats the room, converting is a guess")
def thermostat_set_target(device_id: str, celsius: float) -> str:
    if not 5 <= celsius <= 30:
        raise AgentError(f"celsius must be between 5 and 30, got {celsius}.")
    if (celsius * 2) % 1:
        raise AgentError("celsius must be a multiple of 0.5.")
    return "ok"


@mistake("setting", "meaning", effects="idempotent", asked={"sensor_id": "s-9", "seconds": 10},
         reason="wants a reading every 10 s; a minute is another setting")
@mistake("name", "meaning", effects="idempotent", asked={"sensor_id": "s-9", "interval": 90},
         earlier=[{"sensor_id": "s-8", "seconds": 300}],
         reason="interval has no unit: 90 seconds or 90 minutes are both common")
def set_sensor_interval(sensor_id: str, seconds: int) -> str:
    if seconds < 60:
        raise AgentError(f"Reporting interval too short: {seconds} s. The minimum is 60 s.")
    return "ok"


@mistake("enum", "meaning", effects="once", asked={"valve": "V-101", "action": "stop"},
         reason="stop may be to halt the movement where it is; it is neither open nor close")
@mistake("enum", "form", effects="once", asked={"valve": "V-101", "action": "Open"},
         same=[{"valve": "V-101", "action": "open"}], reason="another case of an ordinary word")
def valve_command(valve: str, action: Literal["open", "close"]) -> str:
    return action


@mistake("enum", "meaning", effects="idempotent", asked={"zone": "ground", "mode": "off"},
         earlier=[{"zone": "ground", "mode": "away"}], reason="wants the alarm off; both modes arm it")
def alarm_arm(zone: str, mode: Literal["away", "home", "night"]) -> str:
    return mode


@mistake("unit", "meaning", effects="idempotent", asked={"entity_id": "light.hall", "brightness": 80},
         reason="brightness is 0-255 by convention, brightness_pct is a percentage: 80 is not 80 %")
def light_turn_on(entity_id: str, brightness_pct: int = 100, transition: float = 0.0) -> str:
    if not 0 <= brightness_pct <= 100:
        raise AgentError("brightness_pct must be 0 to 100")
    return "on"


@mistake("unit", "meaning", effects="once", asked={"meter": "FM-2", "k_factor": 1.07, "unit": "L/h"},
         reason="litres per hour is neither litres per minute nor cubic metres per hour")
def calibrate_flow_meter(meter: str, k_factor: float, unit: Literal["L/min", "m3/h"]) -> str:
    return "calibrated"


@mistake("setting", "meaning", effects="idempotent", asked={"charger_id": "EVC-4", "amps": 63},
         reason="asks for 63 A; 32 A is another charging current and may not be what the plan assumes")
@mistake("type", "equivalent", effects="idempotent", asked={"charger_id": "EVC-4", "amps": "16A"},
         same=[{"charger_id": "EVC-4", "amps": 16}], reason="16A in amps is the number 16")
def set_ev_charger_current(charger_id: str, amps: int) -> str:
    if not 6 <= amps <= 32:
        raise AgentError(f"amps: {amps} is outside the allowed range of this charger (6-32)")
    return "ok"


@mistake("enum", "meaning", effects="once",
         asked={"feeder": "F12", "started_at": "2025-02-03T04:05:06Z", "severity": "medium"},
         reason="medium is between minor and major; either choice pages other people")
@mistake("enum", "form", effects="once",
         asked={"feeder": "F12", "started_at": "2025-02-03T04:05:06Z", "severity": " Major"},
         same=[{"feeder": "F12", "started_at": "2025-02-03T04:05:06Z", "severity": "major"}],
         reason="surrounding space and case of an ordinary word")
def report_outage(feeder: str, started_at: str, severity: Literal["minor", "major", "critical"]) -> int:
    _need_utc("started_at", started_at)
    return 1


@mistake("paging", "meaning", effects="none", asked={"device": "pump-1", "metric": "rpm", "limit": 5000},
         less=[{"device": "pump-1", "metric": "rpm", "limit": 1000}],
         reason="a program that computes with the points would silently work on a fifth of them")
def read_telemetry(device: str, metric: str, limit: int = 100) -> list:
    if limit > 1000:
        raise AgentError(f"limit must not exceed 1000 (was {limit})")
    return []


@mistake("flag", "meaning", effects="once",
         asked={"group": "gw-eu", "version": "2.4.1", "rollout_percent": 10, "skip_battery_check": True},
         reason="the flag carries intent; without it the update may do something else than planned")
@mistake("other", "meaning", effects="once", asked={"group": "gw-eu", "version": "latest", "rollout_percent": 10},
         earlier=[{"group": "gw-us", "version": "2.4.1", "rollout_percent": 10}],
         reason="which version is the latest is not known; the earlier one is a guess")
@mistake("structure", "form", effects="once",
         asked={"arguments": {"group": "gw-eu", "version": "2.4.1", "rollout_percent": 10}},
         same=[{"group": "gw-eu", "version": "2.4.1", "rollout_percent": 10}], reason="arguments wrapped once more")
def ota_update(group: str, version: str, rollout_percent: int, force: bool = False) -> str:
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise AgentError(f"'{version}' is not a semantic version (MAJOR.MINOR.PATCH)")
    return "queued"


@mistake("number", "meaning", effects="once", asked={"slave": 1, "address": 40001, "value": 7},
         reason="40001 may be the Modicon notation of register 0 or 1; the raw address is a guess")
def modbus_write_register(slave: int, address: int, value: int) -> str:
    if not 0 <= address <= 9999:
        raise AgentError("Illegal data address: must be 0..9999")
    return "ok"


@mistake("enum", "meaning", effects="none", asked={"zone": "DK", "day": "2025-04-01"},
         reason="Denmark has two bidding zones with different prices")
@mistake("date", "meaning", effects="none", asked={"zone": "DK1", "day": "tomorrow"},
         earlier=[{"zone": "DK1", "day": "2025-04-01"}],
         reason="a relative day depends on the caller's clock and zone; the earlier day is not tomorrow")
@mistake("date", "equivalent", effects="none", asked={"zone": "DK1", "day": "2025/04/01"},
         same=[{"zone": "DK1", "day": "2025-04-01"}], reason="year first: the same date with other separators")
def get_day_ahead_prices(zone: Literal["DK1", "DK2", "FR", "AT"], day: str) -> list:
    _need_date("day", day)
    return []


@mistake("currency", "meaning", effects="once", asked={"market": "intraday", "mwh": 2.5, "price_usd": 81.0},
         reason="81 USD are not 81 EUR, and the rate is unknown")
@mistake("type", "form", effects="once", asked={"market": "intraday", "mwh": "2.5", "price_eur": "81"},
         same=[{"market": "intraday", "mwh": 2.5, "price_eur": 81}], reason="numbers as text")
def submit_energy_bid(market: Literal["day_ahead", "intraday"], mwh: float, price_eur: float) -> str:
    return "bid-1"


# ---------------------------------------------------------------------------------------------- logistics


@mistake("unit", "meaning", effects="once", asked={"order_id": "O-88", "weight_lb": 11, "service": "express"},
         reason="11 lb are 4.98951607 kg; the tool takes two decimals, and 11 kg is wrong")
@mistake("enum", "meaning", effects="once", asked={"order_id": "O-88", "weight_kg": 4.5, "service": "overnight"},
         reason="overnight is a promise of delivery that express need not keep")
@mistake("type", "form", effects="once",
         asked={"order_id": "O-88", "weight_kg": 4.5, "service": "express", "signatureRequired": "true"},
         same=[{"order_id": "O-88", "weight_kg": 4.5, "service": "express", "signature_required": True}],
         reason="camelCase name and the text 'true'")
def create_shipment(
    order_id: str, weight_kg: float, service: Literal["standard", "express"], signature_required: bool = False
) -> str:
    if round(weight_kg, 2) != weight_kg:
        raise AgentError("weight_kg takes at most two decimals")
    return "SHP-1"


@mistake("enum", "meaning", effects="none", asked={"carrier": "dpd", "tracking_number": "0998123"},
         reason="DPD is another carrier than DHL; the number does not exist there")
@mistake("enum", "form", effects="none", asked={"carrier": "FedEx", "tracking_number": "7712"},
         same=[{"carrier": "fedex", "tracking_number": "7712"}], reason="the brand's own capitals")
def track_package(carrier: Literal["ups", "fedex", "dhl", "usps"], tracking_number: str) -> str:
    return "in transit"


@mistake("date", "meaning", effects="once",
         asked={"route": "MUC-VIE", "pickup_date": "03/04/2025", "pallets": 12},
         reason="3 April or 4 March")
@mistake("enum", "meaning", effects="once",
         asked={"route": "MUC-VIE", "pickup_date": "2025-04-03", "pallets": 12, "temperature_mode": "heated"},
         reason="no member is a heated truck")
def book_truck(
    route: str, pickup_date: str, pallets: int, temperature_mode: Literal["ambient", "chilled", "frozen"] = "ambient"
) -> str:
    _need_date("pickup_date", pickup_date)
    return "TRK-5"


@mistake("other", "meaning", effects="once", asked={"sku": "A1", "quantity": 40, "target": "W2"},
         earlier=[{"sku": "B7", "quantity": 10, "source": "W1", "target": "W2"}],
         reason="the source is missing; the warehouse of the earlier transfer is a guess")
@mistake("name", "meaning", effects="once",
         asked={"sku": "A1", "quantity": 40, "warehouse": "W1", "other_warehouse": "W2"},
         reason="which of the two gives and which receives is not said")
def transfer_stock(sku: str, quantity: int, source: str, target: str) -> str:
    if source == target:
        raise AgentError("source and target must differ")
    return "moved"


@mistake("polarity", "meaning", effects="idempotent", asked={"sku": "A1", "max_qty": 500},
         reason="a maximum stock level is not a minimum")
@mistake("type", "form", effects="idempotent", asked={"sku": "A1", "min_qty": 25.0},
         same=[{"sku": "A1", "min_qty": 25}], reason="25.0 is the integer 25")
def set_reorder_point(sku: str, min_qty: int) -> str:
    return "ok"


@mistake("polarity", "meaning", effects="none", asked={"warehouse_ids": ["W1"], "above": 100},
         reason="asks for stock above 100; below is the opposite")
@mistake("structure", "form", effects="none", asked={"warehouse_ids": "W1"}, same=[{"warehouse_ids": ["W1"]}],
         reason="one value where a list is expected")
def get_inventory(warehouse_ids: list[str], below: int | None = None) -> list:
    return []


@mistake("other", "meaning", effects="once", asked={"hold_ids": "all"}, earlier=[{"hold_ids": ["H-1", "H-2"]}],
         reason="which holds are 'all' is not known here; the earlier ones are not all")
@mistake("structure", "form", effects="once", asked={"hold_ids": '["H-31", "H-32"]'},
         same=[{"hold_ids": ["H-31", "H-32"]}], reason="JSON text of the list")
def release_holds(hold_ids: list[str]) -> int:
    for hold in hold_ids:
        if not re.fullmatch(r"H-\d+", hold):
            raise AgentError(f"No such hold: {hold}. Hold ids look like H-123.")
    return len(hold_ids)


@mistake("date", "equivalent", effects="once",
         asked={"address_id": 7, "window_start": "2:30 PM", "window_end": "4:00 PM"},
         same=[{"address_id": 7, "window_start": "14:30", "window_end": "16:00"}],
         reason="the same times in 24-hour notation")
@mistake("date", "meaning", effects="once", asked={"address_id": 7, "window_start": "morning", "window_end": "12:00"},
         earlier=[{"address_id": 7, "window_start": "08:00", "window_end": "12:00"}],
         reason="when the morning starts is a guess, although 08:00 was used before")
def schedule_pickup(address_id: int, window_start: str, window_end: str) -> str:
    for value in (window_start, window_end):
        if not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", value):
            raise AgentError(f"Time {value!r} is not in 24-hour format HH:MM")
    if window_start >= window_end:
        raise AgentError("window_end must be after window_start")
    return "booked"


@mistake("currency", "meaning", effects="once", asked={"value": 900.0, "currency": "CHF", "hs_code": "847130"},
         reason="Swiss francs are not offered and another currency changes the declared value")
@mistake("currency", "meaning", effects="once", asked={"value": 900.0, "currency": "$", "hs_code": "847130"},
         reason="$ may be any dollar; a customs declaration is no place to guess")
@mistake("type", "meaning", effects="once", asked={"value": 900.0, "currency": "EUR", "hs_code": 10121},
         reason="five digits: a leading zero may be lost, or the code is cut; 010121 or 101210 are guesses")
def declare_customs(value: float, currency: Literal["EUR", "USD", "GBP"], hs_code: str) -> str:
    if not re.fullmatch(r"\d{6}", hs_code):
        raise AgentError("hs_code: exactly six digits are required")
    return "MRN-1"


# ---------------------------------------------------------------------------------------------- medicine


@mistake("unit", "meaning", effects="once",
         asked={"patient_id": "P5", "drug": "heparin", "dose": 5000, "unit": "IU"},
         reason="international units are no mass")
@mistake("unit", "equivalent", effects="once",
         asked={"patient_id": "P5", "drug": "fentanyl", "dose": 50, "unit": "µg"},
         same=[{"patient_id": "P5", "drug": "fentanyl", "dose": 50, "unit": "mcg"}],
         reason="µg and mcg are both the microgram")
def record_administered_dose(patient_id: str, drug: str, dose: float, unit: Literal["mcg", "mg", "g"]) -> str:
    return "recorded"


@mistake("unit", "meaning", effects="once", asked={"patient": "P5", "rate": 4, "rate_unit": "mL/min"},
         earlier=[{"patient": "P6", "rate": 80, "rate_unit": "mL/h"}],
         reason="4 mL/min are 240 mL/h, more than the pump takes; 4 mL/h is a sixtieth")
def start_infusion(patient: str, rate: float, rate_unit: Literal["mL/h", "mg/h"]) -> str:
    if rate > 200:
        raise AgentError("rate exceeds the maximum of this pump (200 per hour)")
    return "running"


@mistake("unit", "meaning", effects="once", asked={"patient_id": "P5", "temp_f": 101.2, "pulse": 88},
         reason="101.2 F is 38.44... C; the chart takes one decimal, so a value would be rounded into the record")
@mistake("type", "form", effects="once", asked={"patient_id": "P5", "temp_c": "38.4", "pulse": "88"},
         same=[{"patient_id": "P5", "temp_c": 38.4, "pulse": 88}], reason="numbers as text")
def record_vitals(patient_id: str, temp_c: float, pulse: int) -> str:
    if not 30 <= temp_c <= 44 or round(temp_c, 1) != temp_c:
        raise AgentError("temp_c must be between 30.0 and 44.0 with one decimal")
    return "ok"


@mistake("enum", "equivalent", effects="none", asked={"patient_id": "P5", "test": "HbA1c", "order": "ascending"},
         same=[{"patient_id": "P5", "test": "hba1c", "order": "asc"}],
         reason="the usual capitals of HbA1c, and ascending is asc")
@mistake("enum", "meaning", effects="none", asked={"patient_id": "P5", "test": "CR"},
         reason="CR may be creatinine, C-reactive protein cut short, or chromium")
def find_lab_results(
    patient_id: str, test: Literal["glucose", "hba1c", "creatinine", "crp"], order: Literal["asc", "desc"] = "desc"
) -> list:
    return []


@mistake("unit", "meaning", effects="idempotent", asked={"patient": "P9", "low": 4.2, "high": 10.5, "unit": "mg/dL"},
         reason="the figures look like mmol/L, the unit says mg/dL: one of them is wrong and only the caller knows")
def set_glucose_alert(patient: str, low: float, high: float, unit: Literal["mmol/L"] = "mmol/L") -> str:
    return "ok"


@mistake("enum", "meaning", effects="once", asked={"patient": "P9", "drug": "timolol", "frequency": "OD"},
         reason="OD is once daily or the right eye")
@mistake("enum", "form", effects="once", asked={"patient": "P9", "drug": "timolol", "frequency": "Twice daily"},
         same=[{"patient": "P9", "drug": "timolol", "frequency": "twice_daily"}],
         reason="the same words with space and capital")
def create_prescription(
    patient: str, drug: str, frequency: Literal["once_daily", "twice_daily", "every_other_day"]
) -> str:
    return "RX-1"


@mistake("type", "meaning", effects="once", asked={"mrn": 42117, "clinic": "cardio", "start": "2025-06-02"},
         earlier=[{"mrn": "00091177", "clinic": "cardio", "start": "2025-06-01"}],
         reason="five digits of eight: zeros may be lost, or digits; a wrong number is another patient")
def book_appointment(mrn: str, clinic: str, start: str) -> str:
    if not re.fullmatch(r"\d{8}", mrn):
        raise AgentError("MRN must have 8 digits")
    return "APT-3"


@mistake("name", "meaning", effects="once", asked={"patient_a": "P5", "patient_b": "P77"},
         reason="which record survives is not said")
def merge_patient_records(survivor_id: str, duplicate_id: str) -> str:
    return "merged"


@mistake("polarity", "meaning", effects="none", asked={"patient_id": "P5", "until": "2020-01-01"},
         reason="until is the opposite end of since")
def get_vaccinations(patient_id: str, since: str = "1900-01-01") -> list:
    _need_date("since", since)
    return []


@mistake("enum", "meaning", effects="once", asked={"patient_id": "P5", "modality": "XR", "side": "bilateral"},
         reason="both sides are neither left nor right")
@mistake("enum", "equivalent", effects="once", asked={"patient_id": "P5", "modality": "MRI", "side": "left"},
         same=[{"patient_id": "P5", "modality": "MR", "side": "left"}], reason="MR is the code of MRI")
def order_imaging(patient_id: str, modality: Literal["CT", "MR", "US", "XR"], side: Literal["left", "right"]) -> str:
    return "IMG-8"


@mistake("permission", "meaning", effects="idempotent",
         asked={"patient_id": "P5", "recipient": "insurer", "scope": "all_but_psychiatry"},
         reason="a partial consent is neither full nor summary")
def set_data_sharing_consent(patient_id: str, recipient: str, scope: Literal["full", "summary", "nothing"]) -> str:
    return scope


# ---------------------------------------------------------------------------------------------- analytics


@mistake("enum", "meaning", effects="none",
         asked={"metric": "new_users", "start_date": "2025-01-01", "end_date": "2025-03-31"},
         reason="new users are a part of the users: another figure")
@mistake("enum", "equivalent", effects="none",
         asked={"metric": "users", "start_date": "2025-01-01", "end_date": "2025-03-31", "granularity": "daily"},
         same=[{"metric": "users", "start_date": "2025-01-01", "end_date": "2025-03-31", "granularity": "day"}],
         reason="daily granularity is one row per day")
@mistake("enum", "meaning", effects="none",
         asked={"metric": "users", "start_date": "2025-01-01", "end_date": "2025-03-31", "granularity": "quarter"},
         reason="unique users of a quarter are not the sum of months")
def run_report(
    metric: Literal["sessions", "users", "revenue"],
    start_date: str,
    end_date: str,
    granularity: Literal["day", "week", "month"] = "day",
) -> list:
    _need_date("start_date", start_date)
    _need_date("end_date", end_date)
    return []


@mistake("structure", "form", effects="once",
         asked={"name": "signup", "steps": '["visit", "form", "paid"]', "window_days": 30},
         same=[{"name": "signup", "steps": ["visit", "form", "paid"], "window_days": 30}],
         reason="JSON text of the list")
@mistake("setting", "meaning", effects="once",
         asked={"name": "signup", "steps": ["visit", "paid"], "window_days": 365},
         reason="a window of 90 days counts other conversions than one of a year")
def createFunnel(name: str, steps: list[str], window_days: int = 30) -> str:
    if window_days > 90:
        raise AgentError("window_days: at most 90 days are supported.")
    return "fun_1"


@mistake("retention", "meaning", effects="idempotent", asked={"property_id": "G-1", "months": 24},
         reason="26 keeps data too long, 14 deletes too early")
def set_data_retention(property_id: str, months: Literal[2, 14, 26]) -> str:
    return "ok"


@mistake("number", "meaning", effects="none", asked={"site": "shop", "limit": 100},
         less=[{"site": "shop", "limit": 50}], reason="asks for the top 100 pages; the top 50 are the first of them")
def top_pages(site: str, limit: int = 10) -> list:
    if limit > 50:
        raise AgentError(f"limit: {limit} is greater than the maximum of 50")
    return []


@mistake("polarity", "meaning", effects="once", asked={"name": "external", "exclude_tags": ["staff", "bot"]},
         earlier=[{"name": "internal", "include_tags": ["staff"]}],
         reason="excluding is the opposite of including")
def create_segment(name: str, include_tags: list[str]) -> str:
    return "seg_4"


@mistake("enum", "meaning", effects="once", asked={"table": "orders", "format": "json"},
         reason="JSON Lines is another file format than one JSON document; a reader of JSON fails on it")
@mistake("enum", "form", effects="once", asked={"table": "orders", "format": "CSV"},
         same=[{"table": "orders", "format": "csv"}], reason="another case of the format's name")
@mistake("null", "form", effects="once", asked={"table": "orders", "format": "parquet", "compression": None},
         same=[{"table": "orders", "format": "parquet"}], reason="null compression is no compression, the default")
def export_table(
    table: str, format: Literal["csv", "parquet", "jsonl"], compression: Literal["none", "gzip"] = "none"
) -> str:
    return "export-1"


@mistake("enum", "equivalent", effects="once", asked={"metric": "cpu", "operator": ">", "threshold": 90},
         same=[{"metric": "cpu", "operator": "gt", "threshold": 90}], reason="> is greater than")
@mistake("enum", "meaning", effects="once", asked={"metric": "errors", "operator": ">=", "threshold": 1},
         earlier=[{"metric": "cpu", "operator": "gt", "threshold": 90}],
         reason="greater or equal is not greater: one error would raise no alert")
def create_alert_rule(metric: str, operator: Literal["gt", "lt"], threshold: int) -> str:
    if threshold < 1:
        raise AgentError("threshold must be 1 or more")
    return "rule-2"


@mistake("enum", "equivalent", effects="none", asked={"column": "latency", "func": "mean"},
         same=[{"column": "latency", "func": "avg"}], reason="the mean is the average of SQL")
@mistake("enum", "meaning", effects="none", asked={"column": "latency", "func": "median"},
         reason="the median is not the mean")
def aggregate_column(column: str, func: Literal["sum", "avg", "min", "max", "count"]) -> float:
    return 0.0


@mistake("number", "meaning", effects="idempotent", asked={"service": "api", "rate": 10},
         reason="perhaps 10 %, perhaps 1 of 10, perhaps 10 traces a second; clamping to 1.0 samples all")
@mistake("type", "form", effects="idempotent", asked={"service": "api", "rate": "0.1"},
         same=[{"service": "api", "rate": 0.1}], reason="a number as text")
def set_trace_sampling(service: str, rate: float) -> str:
    if not 0 <= rate <= 1:
        raise AgentError(f"Sampling rate must be in [0, 1], got {rate}")
    return "ok"


@mistake("other", "meaning", effects="none", asked={"dataset": "visits", "columns": "*"},
         earlier=[{"dataset": "visits", "columns": ["day", "clicks"]}],
         reason="all columns are wanted, and which these are is not known here")
@mistake("structure", "form", effects="none", asked={"dataset": "visits", "columns": "day"},
         same=[{"dataset": "visits", "columns": ["day"]}], reason="one value where a list is expected")
def preview_dataset(dataset: str, columns: list[str]) -> list:
    for column in columns:
        if not column.isidentifier():
            raise AgentError(f"Unknown column {column!r}")
    return []


# ---------------------------------------------------------------------------------------------- file storage


@mistake("permission", "meaning", effects="idempotent",
         asked={"Bucket": "logs", "Key": "a.txt", "ACL": "authenticated-read"},
         reason="neither private nor open to the world")
@mistake("name", "form", effects="idempotent", asked={"bucket": "logs", "key": "a.txt", "acl": "private"},
         same=[{"Bucket": "logs", "Key": "a.txt", "ACL": "private"}], reason="another case of the argument names")
def put_object_acl(Bucket: str, Key: str, ACL: Literal["private", "public-read"]) -> str:
    return ACL


@mistake("null", "meaning", effects="once", asked={"path": "/q3.pdf", "access": "view", "expires_days": None},
         reason="null may be a link that never expires or the default of a week")
@mistake("null", "meaning", effects="once", asked={"path": "/q3.pdf", "access": "view", "expires_at": None},
         reason="asks for a link without expiry; dropping the null makes it die after 7 days")
@mistake("permission", "meaning", effects="once", asked={"path": "/q3.pdf", "access": "comment"},
         reason="commenting is more than viewing and less than editing")
def create_share_link(path: str, access: Literal["view", "edit"], expires_days: int = 7) -> str:
    return "https://files.example/x"


@mistake("flag", "meaning", effects="once", asked={"bucket": "tmp", "prefix": "2023/", "dry_run": True},
         earlier=[{"bucket": "tmp", "prefix": "2022/"}],
         reason="asks for a trial run; without the flag the objects are deleted")
@mistake("name", "form", effects="once", asked={"bucket": "tmp", "prefx": "2023/"},
         same=[{"bucket": "tmp", "prefix": "2023/"}], reason="one missing letter in a required argument's name")
def delete_objects(bucket: str, prefix: str) -> int:
    if not prefix:
        raise AgentError("prefix must not be empty")
    return 0


@mistake("retention", "meaning", effects="idempotent", asked={"bucket": "invoices", "expire_after_days": 3650},
         reason="a year instead of ten deletes invoices nine years too early")
@mistake("retention", "meaning", effects="idempotent", asked={"bucket": "invoices", "expire_after_days": 0},
         reason="0 may mean never or at once; 1 day is neither")
def set_lifecycle_rule(bucket: str, expire_after_days: int) -> str:
    if not 1 <= expire_after_days <= 365:
        raise AgentError(f"expire_after_days={expire_after_days} not allowed: choose 1 to 365")
    return "ok"


@mistake("name", "form", effects="once", asked={"from": "/in/a.csv", "to": "/done/a.csv"},
         same=[{"source": "/in/a.csv", "destination": "/done/a.csv"}],
         reason="from and to of a move are its source and its destination")
@mistake("flag", "meaning", effects="once",
         asked={"source": "/in/a.csv", "destination": "/done/a.csv", "on_conflict": "rename"},
         reason="renaming on a conflict is neither to overwrite nor to fail")
def move_file(source: str, destination: str, overwrite: bool = False) -> str:
    return destination


@mistake("paging", "meaning", effects="none", asked={"folder": "/in", "page": 3, "page_size": 5000},
         reason="page 3 of 1000 each is another range than page 3 of 5000 each")
@mistake("type", "form", effects="none", asked={"folder": "/in", "page": "3", "page_size": "500"},
         same=[{"folder": "/in", "page": 3, "page_size": 500}], reason="numbers as text")
def list_files(folder: str, page: int = 1, page_size: int = 100) -> list:
    if page_size > 1000:
        raise AgentError("page_size may not be larger than 1000")
    return []


@mistake("setting", "meaning", effects="idempotent", asked={"user": "kim", "gigabytes": 0.5},
         reason="half a gigabyte is no integer; 0 or 1 is another quota")
@mistake("unit", "meaning", effects="idempotent", asked={"user": "kim", "terabits": 1},
         reason="a terabit is 125 gigabytes, more than the plan allows; 1 gigabyte is wrong")
def set_user_quota(user: str, gigabytes: int) -> str:
    if gigabytes > 100:
        raise AgentError("Quota may not exceed 100 GB on this plan")
    return "ok"


@mistake("unit", "meaning", effects="idempotent", asked={"link": "wan1", "rate": 3, "unit": "GBps"},
         reason="GBps is gigabytes, eight times Gbps; 24 Gbps is beyond the link")
def limit_bandwidth(link: str, rate: int, unit: Literal["Mbps", "Gbps"]) -> str:
    if rate > (10 if unit == "Gbps" else 10_000):
        raise AgentError("The link is limited to 10 Gbps")
    return "ok"


@mistake("other", "meaning", effects="once", asked={"file_id": "f1", "version_id": "previous"},
         earlier=[{"file_id": "f2", "version_id": "v12"}],
         reason="which version is the previous one is not known; v12 belongs to another file")
@mistake("type", "form", effects="once", asked={"file_id": "f1", "version_id": " v7\n"},
         same=[{"file_id": "f1", "version_id": "v7"}], reason="surrounding white space")
def restore_file_version(file_id: str, version_id: str) -> str:
    if not re.fullmatch(r"v\d+", version_id):
        raise AgentError(f"version_id {version_id!r} is malformed (expected v<number>)")
    return "restored"


@mistake("enum", "meaning", effects="idempotent", asked={"bucket": "arch", "storage_class": "DEEP_ARCHIVE"},
         reason="another class with another price and retrieval time than GLACIER")
@mistake("enum", "form", effects="idempotent", asked={"bucket": "arch", "storage_class": "standard-ia"},
         same=[{"bucket": "arch", "storage_class": "STANDARD_IA"}], reason="another case and separator")
def set_storage_class(bucket: str, storage_class: Literal["STANDARD", "STANDARD_IA", "GLACIER"]) -> str:
    return "ok"


@mistake("polarity", "meaning", effects="none", asked={"query": "budget", "modified_before": "2024-01-01"},
         reason="before is the opposite of after")
@mistake("number", "meaning", effects="none", asked={"query": "budget", "max_results": 500},
         less=[{"query": "budget", "max_results": 100}], reason="fewer hits than asked, nothing else")
@mistake("null", "form", effects="none", asked={"query": "budget", "max_results": 20, "highlight": None},
         same=[{"query": "budget", "max_results": 20}], reason="a null argument that the tool does not have")
def search_files(query: str, modified_after: str | None = None, max_results: int = 10) -> list:
    if max_results > 100:
        raise AgentError("max_results must be <= 100")
    return []


@mistake("type", "meaning", effects="idempotent", asked={"path": "/srv/app.conf", "mode": 420},
         reason="the number 420 is octal 644 for a program and '420' for a reader: other rights")
def chmod_path(path: str, mode: str) -> str:
    if not re.fullmatch(r"[0-7]{3}", mode):
        raise AgentError("mode must be three octal digits")
    return mode


# ---------------------------------------------------------------------------------------------- trading


@mistake("enum", "meaning", effects="once",
         asked={"symbol": "SAP", "side": "buy", "quantity": 10, "limit_price": 120.0, "time_in_force": "FOK"},
         reason="fill-or-kill forbids a partial fill, immediate-or-cancel allows it")
@mistake("enum", "meaning", effects="once",
         asked={"symbol": "SAP", "side": "short", "quantity": 10, "limit_price": 120.0},
         reason="a short sale is not the sale of what one has")
@mistake("enum", "form", effects="once",
         asked={"symbol": "SAP", "side": "BUY", "quantity": "10", "limit_price": 120.0},
         same=[{"symbol": "SAP", "side": "buy", "quantity": 10, "limit_price": 120.0}],
         reason="another case of buy, and a number as text")
def place_limit_order(
    symbol: str,
    side: Literal["buy", "sell"],
    quantity: int,
    limit_price: float,
    time_in_force: Literal["DAY", "GTC", "IOC"] = "DAY",
) -> str:
    return "ord-1"


@mistake("unit", "meaning", effects="none", asked={"symbol": "BTC-EUR", "interval": "1M"},
         earlier=[{"symbol": "BTC-EUR", "interval": "1m"}], reason="1M is a month, 1m a minute")
@mistake("enum", "equivalent", effects="none", asked={"symbol": "BTC-EUR", "interval": "1D"},
         same=[{"symbol": "BTC-EUR", "interval": "1d"}], reason="1D has no other reading than one day")
def get_candles(symbol: str, interval: Literal["1m", "5m", "1h", "1d"], limit: int = 100) -> list:
    return []


@mistake("null", "meaning", effects="once", asked={"symbol": None}, earlier=[{"symbol": "SAP"}],
         reason="null may mean the orders of all symbols; the earlier symbol is a guess")
def cancel_open_orders(symbol: str) -> int:
    return 0


@mistake("name", "meaning", effects="once", asked={"position_id": "p1", "stop_percent": 5},
         reason="5 % below the entry is not a price of 5")
@mistake("polarity", "meaning", effects="once", asked={"position_id": "p1", "take_profit_price": 140.0},
         earlier=[{"position_id": "p2", "stop_price": 95.0}],
         reason="taking profit is the opposite of stopping a loss")
def set_stop_loss(position_id: str, stop_price: float) -> str:
    return "ok"


@mistake("currency", "meaning", effects="none",
         asked={"amount": 100.0, "from_currency": "kr", "to_currency": "EUR"},
         reason="kr is the crown of Sweden, Norway, Denmark or Iceland")
@mistake("currency", "form", effects="none",
         asked={"amount": 100.0, "from_currency": "sek", "to_currency": "eur"},
         same=[{"amount": 100.0, "from_currency": "SEK", "to_currency": "EUR"}],
         reason="currency codes in lower case")
def convert_currency(amount: float, from_currency: str, to_currency: str) -> float:
    for code in (from_currency, to_currency):
        if code not in {"EUR", "USD", "SEK", "NOK", "DKK", "GBP"}:
            raise AgentError(f"Unknown currency code {code!r}; use ISO 4217, for example EUR")
    return 0.0


@mistake("setting", "meaning", effects="idempotent", asked={"desk": "fx", "limit_usd": 25_000_000},
         reason="10 million is another limit than the one decided")
@mistake("currency", "meaning", effects="idempotent", asked={"desk": "fx", "limit_eur": 5_000_000},
         reason="5 million euros are not 5 million dollars")
def set_risk_limit(desk: str, limit_usd: int) -> str:
    if limit_usd > 10_000_000:
        raise AgentError("limit_usd above 10000000 requires a manual approval")
    return "ok"


@mistake("name", "equivalent", effects="none", asked={"ticker": "MSFT"}, same=[{"symbol": "MSFT"}],
         reason="the ticker is the symbol, and there is no other argument")
@mistake("structure", "meaning", effects="none", asked={"symbol": ["MSFT", "AAPL"]},
         reason="two quotes are wanted; one of them is not the answer")
@mistake("structure", "form", effects="none", asked={"input": {"symbol": "MSFT"}}, same=[{"symbol": "MSFT"}],
         reason="arguments wrapped in input")
def get_quote(symbol: str) -> float:
    if not re.fullmatch(r"[A-Z]{1,5}", symbol):
        raise AgentError(f"invalid symbol: {symbol}")
    return 1.0


@mistake("number", "meaning", effects="idempotent", asked={"symbol": "ETH", "leverage": 50},
         reason="20 is another leverage; margin and orders were computed for 50")
@mistake("type", "equivalent", effects="idempotent", asked={"symbol": "ETH", "leverage": "10x"},
         same=[{"symbol": "ETH", "leverage": 10}], reason="a leverage of 10x is 10")
def set_leverage(symbol: str, leverage: int) -> str:
    if not 1 <= leverage <= 20:
        raise AgentError(f"leverage must be 1-20, {leverage} given")
    return "ok"


@mistake("paging", "meaning", effects="none", asked={"account": "A1", "cursor": "eyJwIjo0fQ", "limit": 1000},
         reason="a program that counts on 1000 per page takes a shorter page for the last one")
@mistake("paging", "meaning", effects="none", asked={"account": "A1", "page": 4},
         reason="the tool has cursors; without the page it gives the first trades again")
def list_trades(account: str, cursor: str | None = None, limit: int = 100) -> list:
    if limit > 500:
        raise AgentError("limit too large, maximum 500")
    return []


@mistake("enum", "meaning", effects="once", asked={"portfolio": "core", "method": "hifo"},
         reason="highest-in-first-out gives another tax lot than FIFO or LIFO")
def close_tax_lots(portfolio: str, method: Literal["fifo", "lifo"]) -> int:
    return 0


# ---------------------------------------------------------------------------------------------- media


@mistake("enum", "equivalent", effects="once", asked={"asset_id": "v1", "codec": "H.264", "resolution": "1080p"},
         same=[{"asset_id": "v1", "codec": "h264", "resolution": "1080p"}], reason="another spelling of h264")
@mistake("enum", "meaning", effects="once", asked={"asset_id": "v1", "codec": "h264", "resolution": "1080i"},
         reason="interlaced is not progressive")
@mistake("enum", "equivalent", effects="once", asked={"asset_id": "v1", "codec": "hevc", "resolution": "720p"},
         same=[{"asset_id": "v1", "codec": "h265", "resolution": "720p"}], reason="HEVC is H.265")
def transcode_video(
    asset_id: str, codec: Literal["h264", "h265", "av1"], resolution: Literal["720p", "1080p", "2160p"]
) -> str:
    return "job-1"


@mistake("unit", "meaning", effects="once", asked={"clip_id": "c1", "start": 5, "end": 90},
         reason="seconds, frames or milliseconds: not said")
@mistake("name", "form", effects="once", asked={"clipId": "c1", "startMs": 5000, "endMs": 9000},
         same=[{"clip_id": "c1", "start_ms": 5000, "end_ms": 9000}], reason="camelCase names")
def trim_clip(clip_id: str, start_ms: int, end_ms: int) -> str:
    if end_ms <= start_ms:
        raise AgentError("end_ms must be greater than start_ms")
    return "c1-trim"


@mistake("permission", "meaning", effects="idempotent", asked={"video_id": "v1", "visibility": "hidden"},
         reason="hidden may be private or unlisted: who has the link sees it or not")
@mistake("enum", "form", effects="idempotent", asked={"video_id": "v1", "visibility": '"Unlisted"'},
         same=[{"video_id": "v1", "visibility": "unlisted"}], reason="surrounding quotes and a capital")
def set_video_visibility(video_id: str, visibility: Literal["private", "unlisted", "public"]) -> str:
    return visibility


@mistake("unit", "meaning", effects="once", asked={"track": "t1", "target": -14.0, "unit": "dB"},
         reason="a plain dB may be loudness or peak")
def normalize_audio(track: str, target: float, unit: Literal["LUFS", "dBTP"]) -> str:
    return "ok"


@mistake("number", "meaning", effects="once", asked={"video": "v1", "at_seconds": 3.5, "width": 3840},
         reason="a picture of half the width is another picture and is stored as the thumbnail")
def generateThumbnail(video: str, at_seconds: float, width: int = 640) -> str:
    if width > 1920:
        raise AgentError("width: must be less than or equal to 1920")
    return "thumb.jpg"


@mistake("polarity", "meaning", effects="none", asked={"video": "v1", "sort": "oldest"},
         reason="oldest first is the opposite of newest first")
@mistake("null", "form", effects="none", asked={"video": "v1", "sort": "top", "author": ""},
         same=[{"video": "v1", "sort": "top"}], reason="an empty argument that the tool does not have")
def list_comments(video: str, sort: Literal["newest", "top"] = "newest") -> list:
    return []


@mistake("time zone", "meaning", effects="once", asked={"episode": "e7", "publish_at": "2025-05-01T09:00:00"},
         earlier=[{"episode": "e6", "publish_at": "2025-04-24T07:00:00Z"}],
         reason="no time zone: 9:00 of the caller need not be 9:00 UTC")
@mistake("time zone", "equivalent", effects="once", asked={"episode": "e7", "publish_at": "2025-05-01T09:00:00+02:00"},
         same=[{"episode": "e7", "publish_at": "2025-05-01T07:00:00Z"}], reason="the same instant in UTC")
@mistake("date", "meaning", effects="once", asked={"episode": "e7", "publish_at": "now"},
         reason="the tool takes an instant, and which one is now is not known from the call")
def publish_episode(episode: str, publish_at: str) -> str:
    _need_utc("publish_at", publish_at)
    return "scheduled"


@mistake("enum", "meaning", effects="once", asked={"video": "v1", "language": "zh-TW"},
         reason="traditional Chinese of Taiwan is not zh-CN")
@mistake("enum", "form", effects="once", asked={"video": "v1", "language": "pt_br"},
         same=[{"video": "v1", "language": "pt-BR"}], reason="another spelling of the language tag")
def add_subtitles(video: str, language: Literal["en", "de", "pt-BR", "pt-PT", "zh-CN"]) -> str:
    return language


# ---------------------------------------------------------------------------------------------- cloud and DevOps


@mistake("number", "meaning", effects="idempotent", asked={"name": "web", "replicas": "+2"},
         earlier=[{"name": "web", "replicas": 4}], reason="two more than now, not two in all")
@mistake("setting", "meaning", effects="idempotent", asked={"name": "web", "replicas": 100},
         reason="50 are half of the capacity that was asked for")
@mistake("type", "form", effects="idempotent", asked={"name": "web", "replicas": "3"},
         same=[{"name": "web", "replicas": 3}], reason="a number as text")
def scale_deployment(name: str, replicas: int) -> str:
    if replicas > 50:
        raise AgentError(f"replicas exceeds the namespace quota (50), requested {replicas}")
    return "scaled"


@mistake("unit", "meaning", effects="idempotent", asked={"service": "api", "limit": "512M"},
         reason="M is 1000 squared, Mi is 1024 squared: 512M is no whole number of Mi")
@mistake("type", "equivalent", effects="idempotent", asked={"service": "api", "limit": "512 Mi"},
         same=[{"service": "api", "limit": "512Mi"}], reason="a space between number and unit")
def set_memory_limit(service: str, limit: str) -> str:
    if not re.fullmatch(r"\d+(Mi|Gi)", limit):
        raise AgentError(f"memory limit {limit!r} does not match <integer>(Mi|Gi)")
    return limit


@mistake("enum", "meaning", effects="once", asked={"service": "cart", "environment": "test"},
         earlier=[{"service": "cart", "environment": "staging"}], reason="there is no test environment here")
@mistake("enum", "form", effects="once", asked={"service": "cart", "environment": "Production"},
         same=[{"service": "cart", "environment": "production"}], reason="another case of the same word")
def restart_service(service: str, environment: Literal["staging", "production"]) -> str:
    return "restarting"


@mistake("time zone", "meaning", effects="once", asked={"cron": "0 2 * * *", "timezone": "EST"},
         reason="EST is UTC-5 all year, New York changes to summer time")
@mistake("date", "meaning", effects="once", asked={"cron": "0 30 2 * * 1", "timezone": "UTC"},
         reason="six fields: seconds first or a year last, so dropping one is a guess")
@mistake("enum", "form", effects="once", asked={"cron": "0 2 * * *", "timezone": "europe/berlin"},
         same=[{"cron": "0 2 * * *", "timezone": "Europe/Berlin"}], reason="another case of the zone's name")
def schedule_job(cron: str, timezone: Literal["UTC", "Europe/Berlin", "America/New_York"] = "UTC") -> str:
    if len(cron.split()) != 5:
        raise AgentError("cron expression must have five fields")
    return "job-7"


@mistake("enum", "equivalent", effects="none", asked={"service": "api", "level": "WARNING"},
         same=[{"service": "api", "level": "warn"}], reason="warning is the long name of the level warn")
@mistake("enum", "meaning", effects="none", asked={"service": "api", "level": "audit"},
         reason="audit records are no log level here")
@mistake("number", "meaning", effects="none", asked={"service": "api", "level": "error", "since_minutes": 10080},
         reason="a week was asked; no error in the last day does not mean none in the week")
def get_logs(service: str, level: Literal["debug", "info", "warn", "error"], since_minutes: int = 60) -> list:
    if since_minutes > 1440:
        raise AgentError("Logs are searchable for 1440 minutes only")
    return []


@mistake("flag", "meaning", effects="once", asked={"playbook": "patch.yml", "verbose": True},
         reason="verbose is more than not quiet, and quiet=true is its opposite")
@mistake("flag", "meaning", effects="once", asked={"playbook": "patch.yml", "check": True},
         reason="check mode changes nothing; without it the playbook runs for real")
def run_playbook(playbook: str, quiet: bool = False) -> str:
    return "changed"


@mistake("flag", "meaning", effects="once", asked={"node": "n4", "grace_seconds": 60, "ignore_daemonsets": True},
         reason="the flag carries intent, and force is another one")
@mistake("number", "meaning", effects="once", asked={"node": "n4", "grace_seconds": -1},
         reason="-1 is the grace period of each pod; 0 kills at once")
def drain_node(node: str, grace_seconds: int, force: bool = False) -> str:
    if grace_seconds < 0:
        raise AgentError("grace_seconds must be non-negative")
    return "drained"


@mistake("setting", "meaning", effects="idempotent",
         asked={"zone": "x.io", "name": "www", "type": "A", "value": "192.0.2.1", "ttl": 5},
         reason="a caller who wants 5 seconds plans a switch; 60 is another setting")
@mistake("enum", "form", effects="idempotent",
         asked={"zone": "x.io", "name": "www", "type": "cname", "value": "x.io."},
         same=[{"zone": "x.io", "name": "www", "type": "CNAME", "value": "x.io."}],
         reason="record types are the same in any case")
def upsert_dns_record(
    zone: str, name: str, type: Literal["A", "AAAA", "CNAME", "TXT"], value: str, ttl: int = 300
) -> str:
    if ttl < 60:
        raise AgentError(f"TTL {ttl} is below the minimum of 60")
    return "ok"


@mistake("permission", "meaning", effects="idempotent", asked={"port": 443, "cidr": "any", "protocol": "tcp"},
         earlier=[{"port": 22, "cidr": "10.0.0.0/8", "protocol": "tcp"}],
         reason="any may be IPv4 only or both; the earlier network is another one")
@mistake("permission", "meaning", effects="idempotent",
         asked={"port": 53, "cidr": "10.0.0.0/8", "protocol": "both"}, reason="one rule has one protocol")
def open_firewall_port(port: int, cidr: str, protocol: Literal["tcp", "udp"]) -> str:
    if not re.fullmatch(r"\d+\.\d+\.\d+\.\d+/\d+", cidr):
        raise AgentError(f"{cidr!r} is not a CIDR block")
    return "sg-1"


@mistake("name", "meaning", effects="once", asked={"app": "shop", "from_version": "3.1.0"},
         reason="the version to leave is not the version to go to")
@mistake("name", "form", effects="once", asked={"app": "shop", "to-version": "3.0.9"},
         same=[{"app": "shop", "to_version": "3.0.9"}], reason="kebab-case spelling")
def rollback_release(app: str, to_version: str) -> str:
    return "rolled back"


@mistake("retention", "meaning", effects="once", asked={"database": "crm", "retention_days": 90},
         reason="the snapshot would vanish after 35 days")
@mistake("retention", "meaning", effects="once", asked={"database": "crm", "retention_days": None},
         reason="null may mean to keep it for ever; the default is a week")
def create_snapshot(database: str, retention_days: int = 7) -> str:
    if retention_days > 35:
        raise AgentError("retention_days: maximum 35 on this plan")
    return "snap-1"


@mistake("number", "meaning", effects="idempotent",
         asked={"group": "web", "min_instances": 10, "max_instances": 2},
         reason="swapped or mistyped: only the caller knows")
@mistake("structure", "form", effects="idempotent",
         asked={"params": {"group": "web", "min_instances": 2, "max_instances": 10}},
         same=[{"group": "web", "min_instances": 2, "max_instances": 10}], reason="arguments wrapped in params")
def configure_autoscaling(group: str, min_instances: int, max_instances: int) -> str:
    if min_instances > max_instances:
        raise AgentError("min_instances must not be greater than max_instances")
    return "ok"


@mistake("enum", "meaning", effects="once", asked={"name": "events", "partitions": 6, "cleanup": "compact,delete"},
         reason="both policies together are neither of the two")
@mistake("type", "form", effects="once", asked={"name": "events", "partitions": 6.0},
         same=[{"name": "events", "partitions": 6}], reason="6.0 is the integer 6")
def kafka_create_topic(name: str, partitions: int, cleanup: Literal["compact", "delete"] = "delete") -> str:
    return name


# ---------------------------------------------------------------------------------------------- databases


@mistake("structure", "equivalent", effects="once", asked={"table": "people", "columns": "last_name, first_name"},
         same=[{"table": "people", "columns": ["last_name", "first_name"]}],
         reason="a comma list of column names; names have no comma")
@mistake("other", "meaning", effects="once", asked={"table": "people", "columns": ["email"], "where": "active"},
         reason="a partial index is not an index of the whole table")
def create_index(table: str, columns: list[str], unique: bool = False) -> str:
    for column in columns:
        if not column.isidentifier():
            raise AgentError(f"column {column!r} does not exist")
    return "idx"


@mistake("polarity", "meaning", effects="once", asked={"table": "sessions", "newer_than_days": 30},
         earlier=[{"table": "sessions", "older_than_days": 90}],
         reason="the other half of the rows would be deleted")
@mistake("type", "meaning", effects="once", asked={"table": "sessions", "older_than_days": "1y"},
         reason="365 or 366 days is a guess, and 1 day is far off")
def purge_rows(table: str, older_than_days: int) -> int:
    return 0


@mistake("paging", "meaning", effects="none", asked={"table": "orders", "offset": 2000, "limit": 1000},
         reason="the next call would go on at offset 3000 and miss rows")
@mistake("enum", "form", effects="none", asked={"table": "orders", "direction": "DESC"},
         same=[{"table": "orders", "direction": "desc"}], reason="the SQL word in capitals")
def fetch_rows(table: str, offset: int = 0, limit: int = 50, direction: Literal["asc", "desc"] = "asc") -> list:
    if limit > 200:
        raise AgentError("limit: expected <= 200")
    return []


@mistake("enum", "meaning", effects="idempotent",
         asked={"table": "stock", "record": {"sku": "A1", "qty": 3}, "on_conflict": "replace"},
         reason="to replace a row clears the other columns, to update keeps them")
@mistake("structure", "form", effects="idempotent", asked={"table": "stock", "record": '{"sku": "A1", "qty": 3}'},
         same=[{"table": "stock", "record": {"sku": "A1", "qty": 3}}], reason="JSON text of the object")
def upsert_record(table: str, record: dict, on_conflict: Literal["update", "ignore"] = "update") -> str:
    return "ok"


@mistake("enum", "form", effects="idempotent", asked={"session": "s1", "level": "READ COMMITTED"},
         same=[{"session": "s1", "level": "read_committed"}], reason="the SQL spelling of the level")
@mistake("enum", "meaning", effects="idempotent", asked={"session": "s1", "level": "read_uncommitted"},
         reason="one prefix away and the opposite guarantee")
def set_isolation_level(
    session: str, level: Literal["read_committed", "repeatable_read", "serializable"]
) -> str:
    return level


@mistake("time zone", "meaning", effects="once", asked={"cluster": "c1", "point_in_time": "2025-10-26 02:30 Berlin"},
         reason="2:30 exists twice in that night")
def restore_to_point(cluster: str, point_in_time: str) -> str:
    _need_utc("point_in_time", point_in_time)
    return "restoring"


@mistake("structure", "meaning", effects="once", asked={"pid": [4711, 4712]},
         reason="two queries shall end, and one call ends one")
@mistake("type", "form", effects="once", asked={"pid": "4711"}, same=[{"pid": 4711}], reason="a number as text")
def kill_query(pid: int) -> bool:
    return True


@mistake("enum", "equivalent", effects="once", asked={"path": "/in/a.txt", "delimiter": "tab"},
         same=[{"path": "/in/a.txt", "delimiter": "\t"}], reason="tab is the name of the tab character")
@mistake("enum", "meaning", effects="once", asked={"path": "/in/a.txt", "delimiter": "|"},
         reason="a file with bars read by another delimiter gives one column")
def import_csv(path: str, delimiter: Literal[",", ";", "\t"] = ",", has_header: bool = True) -> int:
    return 0


@mistake("enum", "meaning", effects="once", asked={"records": [{"id": 1}], "on_error": "retry"},
         reason="to try again is neither to skip nor to abort")
@mistake("structure", "form", effects="once", asked={"records": {"id": 1}, "on_error": "abort"},
         same=[{"records": [{"id": 1}], "on_error": "abort"}], reason="one record where a list is expected")
def load_batch(records: list[dict], on_error: Literal["skip", "abort"] = "abort") -> int:
    return len(records)


@mistake("null", "meaning", effects="none", asked={"source": "crm", "cursor": None},
         earlier=[{"source": "crm", "cursor": "c_000812"}],
         reason="null may mean from the beginning; the earlier cursor gives the changes of the last run")
def sync_changes(source: str, cursor: str) -> list:
    return []


@mistake("number", "meaning", effects="idempotent", asked={"stream": "clicks", "offset": "earliest"},
         reason="the earliest kept offset is not 0 once old segments are deleted")
def reset_consumer(stream: str, offset: int) -> str:
    return "ok"


# ---------------------------------------------------------------------------------------------- mail, chat, calendar


@mistake("structure", "form", effects="once",
         asked={"to": "ann@x.org, bob@x.org", "subject": "Hi", "body": "..."},
         same=[{"to": ["ann@x.org", "bob@x.org"], "subject": "Hi", "body": "..."}],
         reason="two addresses in one text, as in a mail header")
@mistake("permission", "meaning", effects="once",
         asked={"to": ["ann@x.org"], "bcc": ["boss@x.org"], "subject": "Hi", "body": "..."},
         reason="cc shows the address to all, leaving it out does not reach the boss")
def send_email(to: list[str], subject: str, body: str, cc: list[str] | None = None) -> str:
    for address in to:
        if not re.fullmatch(r"[^@\s,]+@[^@\s,]+", address):
            raise AgentError(f"not a valid address: {address}")
    return "sent"


@mistake("time zone", "meaning", effects="once",
         asked={"title": "Sync", "start": "2025-06-02T10:00", "tz": "IST"},
         reason="India, Israel or Ireland")
def create_calendar_event(
    title: str, start: str, tz: Literal["Asia/Kolkata", "Asia/Jerusalem", "Europe/Dublin", "UTC"], note: str = ""
) -> str:
    return "ev1"


@mistake("flag", "meaning", effects="once", asked={"channel": "#ops", "text": "done", "notify_all": True},
         reason="a mention of all is more than not silent, and silent is its opposite")
@mistake("null", "form", effects="once", asked={"channel": "#ops", "text": "done", "thread": None, "silent": "false"},
         same=[{"channel": "#ops", "text": "done", "silent": False}],
         reason="a null argument that the tool does not have, and false as text")
def post_message(channel: str, text: str, silent: bool = False) -> str:
    return "1712.3"


@mistake("number", "meaning", effects="none", asked={"query": "invoice", "max_hits": 250},
         less=[{"query": "invoice", "max_hits": 100}], reason="fewer hits than asked, nothing else")
@mistake("name", "form", effects="none", asked={"query": "invoice", "unread-only": True},
         same=[{"query": "invoice", "unread_only": True}], reason="kebab-case spelling")
@mistake("polarity", "meaning", effects="none", asked={"query": "invoice", "read_only": True},
         reason="mails already read are the opposite of unread ones; nothing here selects them")
def search_mail(query: str, unread_only: bool = False, max_hits: int = 20) -> list:
    if max_hits > 100:
        raise AgentError("max_hits cannot be more than 100")
    return []


@mistake("retention", "meaning", effects="idempotent", asked={"channel": "#legal", "days": -1},
         reason="-1 means for ever; 1 day deletes everything, 1825 deletes after five years")
def set_channel_retention(channel: str, days: int) -> str:
    if not 1 <= days <= 1825:
        raise AgentError("days must be in the range 1..1825")
    return "ok"


# ---------------------------------------------------------------------------------------------- payments and office


@mistake("currency", "meaning", effects="once", asked={"payment_id": "pay_1", "amount": 12},
         earlier=[{"payment_id": "pay_0", "amount_cents": 500}],
         reason="12 may be cents or whole units of the currency")
@mistake("type", "form", effects="once", asked={"payment_id": "pay_1", "amount_cents": "1250"},
         same=[{"payment_id": "pay_1", "amount_cents": 1250}], reason="a number as text")
def refund_payment(payment_id: str, amount_cents: int) -> str:
    return "re_1"


class Line(TypedDict):
    sku: str
    qty: int


@mistake("structure", "form", effects="once",
         asked={"customer": "C1", "lines": [{"sku": "A1", "qty": "2"}], "currency": "eur"},
         same=[{"customer": "C1", "lines": [{"sku": "A1", "qty": 2}], "currency": "EUR"}],
         reason="a number as text within a line and the currency code in lower case")
@mistake("number", "meaning", effects="once",
         asked={"customer": "C1", "lines": [{"sku": "A1", "qty": 2.5}], "currency": "EUR"},
         reason="two and a half pieces are neither two nor three")
@mistake("unit", "meaning", effects="once",
         asked={"customer": "C1", "lines": [{"sku": "A1", "qty": "2 boxes"}], "currency": "EUR"},
         reason="how many pieces a box has is not known; 2 pieces is wrong")
def create_invoice(customer: str, lines: list[Line], currency: Literal["USD", "EUR", "GBP"]) -> str:
    return "INV-1"


@mistake("name", "meaning", effects="once",
         asked={"account": "DE11", "counterparty": "DE22", "amount": 50.0},
         earlier=[{"from_account": "DE11", "to_account": "DE33", "amount": 20.0}],
         reason="who pays and who receives is not said")
@mistake("number", "meaning", effects="once",
         asked={"from_account": "DE11", "to_account": "DE22", "amount": "1,250"},
         reason="1250 in English, 1.25 in German notation, and the accounts are German")
def transfer_funds(from_account: str, to_account: str, amount: float) -> str:
    return "tx1"


@mistake("date", "equivalent", effects="none", asked={"account": "DE11", "month": "03/2025"},
         same=[{"account": "DE11", "month": "2025-03"}], reason="a month and a four-digit year have one reading")
@mistake("date", "meaning", effects="none", asked={"account": "DE11", "month": "2025-Q1"},
         reason="a quarter is three months")
def get_statement(account: str, month: str) -> str:
    if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", month):
        raise AgentError("month must look like 2025-07")
    return "pdf"


@mistake("polarity", "meaning", effects="once", asked={"after": "2020-01-01"},
         reason="archiving what is newer is the opposite of what is older")
def archive_invoices(before: str) -> int:
    _need_date("before", before)
    return 0


@mistake("enum", "meaning", effects="idempotent", asked={"lead_id": 17, "status": "converted"},
         reason="converted is more than qualified")
@mistake("type", "form", effects="idempotent", asked={"lead_id": "17", "status": "contacted "},
         same=[{"lead_id": 17, "status": "contacted"}], reason="a number as text and a space at the end")
def update_lead(lead_id: int, status: Literal["new", "contacted", "qualified", "unqualified"]) -> str:
    return status


@mistake("permission", "meaning", effects="idempotent", asked={"user": "lee", "role": "admin"},
         reason="an administrator is neither an editor nor the owner")
@mistake("enum", "form", effects="idempotent", asked={"user": "lee", "role": "Editor"},
         same=[{"user": "lee", "role": "editor"}], reason="another case of the same word")
def grant_role(user: str, role: Literal["viewer", "editor", "owner"]) -> str:
    return role


@mistake("name", "meaning", effects="once", asked={"employee_id": 1042, "monthly_salary": 4000},
         reason="12, 13 or 14 payments a year")
def set_annual_salary(employee_id: int, annual_salary: int) -> str:
    return "ok"


@mistake("date", "meaning", effects="once", asked={"employee_id": 1042, "first_day": "2025-02-30", "days": 3},
         reason="that day does not exist; 28 February or 2 March is a guess")
def approve_leave(employee_id: int, first_day: str, days: int) -> str:
    _need_date("first_day", first_day)
    if first_day[5:] in {"02-30", "02-31", "04-31", "06-31", "09-31", "11-31"}:
        raise AgentError(f"first_day: {first_day} is not a calendar day")
    return "approved"


# ---------------------------------------------------------------------------------------------- geodata and travel


@mistake("number", "meaning", effects="none", asked={"lat": 139.69, "lon": 35.68},
         reason="swapped or mistyped; clamping to the pole is nonsense")
@mistake("name", "equivalent", effects="none", asked={"latitude": 35.68, "longitude": 139.69},
         same=[{"lat": 35.68, "lon": 139.69}], reason="the long names of lat and lon")
def reverse_geocode(lat: float, lon: float) -> str:
    if not -90 <= lat <= 90:
        raise AgentError(f"lat must be between -90 and 90, got {lat}")
    return "Tokyo"


@mistake("unit", "meaning", effects="none", asked={"lat": 48.1, "lon": 11.5, "radius": 5},
         reason="5 of what; a search within 5 metres finds nothing and says so")
def find_nearby(lat: float, lon: float, radius_m: int) -> list:
    return []


@mistake("polarity", "meaning", effects="none", asked={"origin": "Bonn", "destination": "Ulm", "prefer": ["tolls"]},
         reason="to prefer is the opposite of to avoid")
@mistake("structure", "form", effects="none", asked={"origin": "Bonn", "destination": "Ulm", "avoid": "ferries"},
         same=[{"origin": "Bonn", "destination": "Ulm", "avoid": ["ferries"]}],
         reason="one value where a list is expected")
def plan_route(
    origin: str, destination: str, avoid: list[Literal["tolls", "ferries", "highways"]] | None = None
) -> str:
    return "route"


@mistake("structure", "form", effects="none", asked={"bbox": "[5.9, 47.3, 15.0, 55.0]", "layer": "wind"},
         same=[{"bbox": [5.9, 47.3, 15.0, 55.0], "layer": "wind"}], reason="JSON text of the list")
@mistake("structure", "meaning", effects="none", asked={"bbox": [5.9, 47.3], "layer": "wind"},
         reason="one corner is no box")
def get_weather_grid(bbox: list[float], layer: Literal["wind", "rain", "temperature"]) -> list:
    if len(bbox) != 4:
        raise AgentError("bbox needs four numbers: west, south, east, north")
    return []


# ---------------------------------------------------------------------------------------------- security and others


@mistake("retention", "meaning", effects="idempotent", asked={"ip": "203.0.113.9", "duration_hours": 8760},
         reason="a block of a year would end after a month")
@mistake("null", "meaning", effects="idempotent", asked={"ip": "203.0.113.9", "duration_hours": None},
         reason="null may mean for ever; the default is one day")
def block_ip(ip: str, duration_hours: int = 24) -> str:
    if duration_hours > 720:
        raise AgentError("duration_hours: blocks last at most 720 hours")
    return "blocked"


@mistake("flag", "meaning", effects="once", asked={"key_id": "k1", "grace_hours": 24},
         reason="without the grace period the old key ends at once and clients fail")
def rotate_api_key(key_id: str) -> str:
    return "k2"


@mistake("permission", "meaning", effects="idempotent", asked={"group": "staff", "policy": "disabled"},
         earlier=[{"group": "guests", "policy": "optional"}], reason="optional is not disabled")
def set_mfa_policy(group: str, policy: Literal["required", "optional"]) -> str:
    return policy


@mistake("enum", "meaning", effects="once", asked={"template_id": 5, "audience": "unsubscribed"},
         reason="one prefix away from people who get mail, and the opposite of them")
@mistake("structure", "form", effects="once",
         asked={"arguments": '{"template_id": 5, "audience": "customers"}'},
         same=[{"template_id": 5, "audience": "customers"}], reason="JSON text of the arguments in a wrapper")
def send_campaign(template_id: int, audience: Literal["subscribed", "customers"]) -> str:
    return "cmp_1"


@mistake("enum", "meaning", effects="once", asked={"student_id": 9, "course": "MA1", "grade": "B+"},
         reason="B+ is better than B and worse than A")
@mistake("type", "equivalent", effects="once", asked={"student_id": "9", "course": "MA1", "grade": "b"},
         same=[{"student_id": 9, "course": "MA1", "grade": "B"}], reason="a number as text and a grade in lower case")
def submit_grade(student_id: int, course: str, grade: Literal["A", "B", "C", "D", "F"]) -> str:
    return grade


@mistake("permission", "meaning", effects="once", asked={"case_no": "7 O 12/25", "doc": "d1", "access": "redacted"},
         reason="a redacted filing is neither public in full nor sealed")
def file_court_document(case_no: str, doc: str, access: Literal["public", "sealed"]) -> str:
    return "filed"


@mistake("number", "meaning", effects="once", asked={"player": "neo", "points": -50},
         reason="takes points away; 50 or 1 gives them")
def award_points(player: str, points: int) -> int:
    if points < 1:
        raise AgentError("points must be positive")
    return points


@mistake("enum", "meaning", effects="none", asked={"player": "neo", "queue": "unranked"},
         reason="unranked is not ranked, and may be casual or tournament")
def get_match_history(player: str, queue: Literal["ranked", "casual", "tournament"]) -> list:
    return []


@mistake("structure", "form", effects="once", asked={"room_ids": ["3", "5"]}, same=[{"room_ids": [3, 5]}],
         reason="numbers as text within a list")
@mistake("structure", "meaning", effects="once", asked={"room_ids": "3-5"},
         reason="a range with room 4, or rooms 3 and 5: a guess")
def start_vacuum_robot(room_ids: list[int]) -> str:
    return "cleaning"


# ---------------------------------------------------------------------------------------------- more that only reads


@mistake("enum", "meaning", effects="none", asked={"site": "roof-2", "azimuth": "SE"},
         reason="south-east is between two members and has another yield")
def estimate_solar_yield(site: str, azimuth: Literal["N", "E", "S", "W"]) -> float:
    return 0.0


@mistake("enum", "meaning", effects="none", asked={"site": "s1", "quantity": "apparent"},
         earlier=[{"site": "s1", "quantity": "active"}], reason="apparent power is neither active nor reactive power")
def GetPowerSeries(site: str, quantity: Literal["active", "reactive"]) -> list:
    return []


@mistake("unit", "meaning", effects="none", asked={"value": 10.0, "unit": "gal"},
         reason="US and imperial gallons differ by a fifth")
def to_litres(value: float, unit: Literal["us_gal", "imp_gal", "bbl"]) -> float:
    return 0.0


@mistake("enum", "meaning", effects="none", asked={"origin": "CNSHA", "destination": "DEHAM", "incoterm": "DDP"},
         reason="DDP includes the duties, DAP does not: another price")
def quote_freight(origin: str, destination: str, incoterm: Literal["FCA", "FOB", "DAP"]) -> float:
    return 0.0


@mistake("time zone", "meaning", effects="none", asked={"shipment_id": "S1", "timezone": "CST"},
         reason="Central or China Standard Time")
def get_eta(shipment_id: str, timezone: Literal["UTC", "America/Chicago", "Asia/Shanghai"] = "UTC") -> str:
    return ""


@mistake("polarity", "meaning", effects="none", asked={"drugs": ["a", "b"], "max_severity": "moderate"},
         reason="up to moderate is not moderate and above")
def check_interactions(drugs: list[str], min_severity: Literal["mild", "moderate", "severe"] = "mild") -> list:
    return []


@mistake("unit", "meaning", effects="none", asked={"weight_lbs": 155, "mg_per_kg": 7.5},
         reason="155 lb are 70.3068... kg, which the tool does not take; 155 kg doubles the dose")
@mistake("name", "form", effects="none", asked={"weightKg": "70.5", "mgPerKg": 7.5},
         same=[{"weight_kg": 70.5, "mg_per_kg": 7.5}], reason="camelCase names and a number as text")
def calculate_dose(weight_kg: float, mg_per_kg: float) -> float:
    if (weight_kg * 2) % 1:
        raise AgentError("weight_kg: use steps of 0.5")
    return weight_kg * mg_per_kg


@mistake("enum", "meaning", effects="none", asked={"condition": "asthma", "phase": "2/3"},
         reason="a combined phase is neither 2 nor 3")
@mistake("type", "form", effects="none", asked={"condition": "asthma", "phase": 2},
         same=[{"condition": "asthma", "phase": "2"}], reason="the number 2 is the text '2'")
def search_trials(condition: str, phase: Literal["1", "2", "3"]) -> list:
    return []


@mistake("polarity", "meaning", effects="none", asked={"diagnosis": "E11", "max_age": 65},
         reason="at most 65 is the other part of the cohort")
def cohort_size(diagnosis: str, min_age: int = 0) -> int:
    return 0


@mistake("enum", "meaning", effects="none", asked={"metric": "revenue", "period": "ytd"},
         reason="year to date is not year over year")
def compare_periods(metric: str, period: Literal["wow", "mom", "yoy"]) -> float:
    return 0.0


@mistake("enum", "meaning", effects="none", asked={"metric": "latency", "p": 99.9},
         reason="the tail beyond 99 is what was asked for")
@mistake("type", "equivalent", effects="none", asked={"metric": "latency", "p": "p95"},
         same=[{"metric": "latency", "p": 95}], reason="p95 is the percentile 95")
def get_percentile(metric: str, p: Literal[50, 90, 95, 99]) -> float:
    return 0.0


@mistake("enum", "meaning", effects="none", asked={"channel": "search"}, earlier=[{"channel": "paid_search"}],
         reason="paid or organic search")
def get_conversion_rate(channel: Literal["paid_search", "organic_search", "email"]) -> float:
    return 0.0


@mistake("paging", "meaning", effects="none", asked={"Bucket": "logs", "MaxKeys": 100000},
         reason="a job that asks for all keys in one page would take the first 1000 for all")
def list_objects(Bucket: str, MaxKeys: int = 1000, StartAfter: str | None = None) -> list:
    if MaxKeys > 1000:
        raise AgentError("InvalidArgument: MaxKeys may be at most 1000")
    return []


@mistake("name", "meaning", effects="none", asked={"file_id": "f1", "version_a": "v2", "version_b": "v3"},
         reason="which of the two is the base is not said, and the difference has a direction")
def diff_versions(file_id: str, base_version: str, head_version: str) -> str:
    return ""


@mistake("enum", "meaning", effects="none", asked={"path": "/a.iso", "algorithm": "sha1"},
         reason="another digest that matches nothing the caller compares with")
@mistake("enum", "form", effects="none", asked={"path": "/a.iso", "algorithm": "SHA-256"},
         same=[{"path": "/a.iso", "algorithm": "sha256"}], reason="the official spelling of sha256")
def get_file_hash(path: str, algorithm: Literal["md5", "sha256", "sha512"] = "sha256") -> str:
    return ""


@mistake("date", "meaning", effects="none", asked={"symbol": "SPY", "expiry": "06/09/25"},
         reason="three readings of the date")
def get_option_chain(symbol: str, expiry: str) -> list:
    _need_date("expiry", expiry)
    return []


@mistake("name", "meaning", effects="none", asked={"currency1": "EUR", "currency2": "USD"},
         reason="which is the base is not said; the other way round is the reciprocal")
def get_fx_rate(base: str, quote: str) -> float:
    return 1.0


@mistake("polarity", "meaning", effects="none", asked={"sector": "energy", "max_pe": 15.0},
         reason="a maximum is not a minimum")
def screen_stocks(sector: str, min_pe: float | None = None) -> list:
    return []


@mistake("number", "meaning", effects="none", asked={"symbol": "SAP", "depth": 50},
         reason="a price impact computed from 20 levels is wrong where 50 were wanted")
def get_order_book(symbol: str, depth: Literal[5, 10, 20] = 10) -> dict:
    return {}


@mistake("polarity", "meaning", effects="none", asked={"query": "rain", "explicit": "only"},
         reason="only explicit songs: to include them gives others, to exclude them is the opposite")
def search_music(query: str, explicit: Literal["include", "exclude"] = "include") -> list:
    return []


@mistake("enum", "meaning", effects="none", asked={"video": "v1", "format": "txt"},
         reason="plain text without times is neither SRT nor VTT")
def get_captions(video: str, format: Literal["srt", "vtt"] = "srt") -> str:
    return ""


@mistake("enum", "meaning", effects="none", asked={"team": "sre", "status": "acknowledged"},
         reason="acknowledged incidents are a part of the open ones at best")
def list_incidents(team: str, status: Literal["open", "resolved"]) -> list:
    return []


@mistake("enum", "meaning", effects="none", asked={"month": "2025-03", "metric": "net_amortized"},
         reason="net of discounts is another sum than amortized")
def get_cost_report(month: str, metric: Literal["blended", "unblended", "amortized"] = "unblended") -> float:
    return 0.0


@mistake("null", "meaning", effects="none", asked={"namespace": None}, earlier=[{"namespace": "shop"}],
         reason="null may mean all namespaces; default is one of them")
def list_pods(namespace: str = "default") -> list:
    return []


@mistake("enum", "meaning", effects="none", asked={"station": "9414290", "datum": "MHW"},
         reason="heights over mean high water differ by metres from those over another datum")
def get_tides(station: str, datum: Literal["MLLW", "MSL"] = "MLLW") -> list:
    return []


@mistake("number", "meaning", effects="none", asked={"x": 402000.0, "y": 5650000.0, "epsg": 25833},
         reason="UTM zone 33 is not zone 32: one digit is hundreds of kilometres")
def to_wgs84(x: float, y: float, epsg: Literal[3857, 25831, 25832]) -> list:
    return []


@mistake("number", "meaning", effects="none",
         asked={"city": "Rome", "checkin": "2025-07-01", "nights": 2, "guests": 14},
         reason="rooms for 9 do not hold 14")
def search_hotels(city: str, checkin: str, nights: int, guests: int = 2) -> list:
    if guests > 9:
        raise AgentError("Online search is limited to 9 guests")
    return []


@mistake("date", "meaning", effects="none", asked={"class_id": "7b", "week": "last"},
         earlier=[{"class_id": "7b", "week": 12}], reason="which week was the last one is not known here")
def get_attendance(class_id: str, week: int) -> list:
    return []


@mistake("enum", "meaning", effects="none", asked={"actor": "lee", "action": "login_failed"},
         reason="a failed login is the opposite of a login")
def query_audit_log(actor: str, action: Literal["login", "logout", "export"]) -> list:
    return []


@mistake("polarity", "meaning", effects="none", asked={"player": "neo", "first": 10},
         reason="the first ten games are not the last ten")
def get_score_history(player: str, last: int = 20) -> list:
    return []
