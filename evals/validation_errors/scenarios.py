"""Tool calls with one field of a nested object under another name, and calls that no rename may change.

Each scenario has a tool's schema and a call. `right` is the call as it was meant, or None where nothing may be
suggested. The wrong names were chosen as people write them, before the matching of names was looked at.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

Schema = dict[str, Any]


class Scenario(NamedTuple):
    """One call, the schema it was made for, and the right call."""

    name: str
    schema: Schema
    arguments: dict[str, Any]
    right: dict[str, Any] | None
    validated: Schema
    """The schema that the library validates. It differs from the declared one if the error contradicts the schema."""


def obj(optional: Schema | None = None, **required: Any) -> Schema:
    """Return the schema of an object. Names may end with `_` to be legal in Python."""
    fields = {name.rstrip("_"): value for name, value in required.items()}
    return {"type": "object", "properties": {**fields, **(optional or {})}, "required": list(fields)}


def arr(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def any_of(*branches: Schema) -> Schema:
    return {"anyOf": list(branches)}


def one_of(*branches: Schema) -> Schema:
    return {"oneOf": list(branches)}


def const(value: str) -> Schema:
    return {"type": "string", "const": value}


def enum(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


STR: Schema = {"type": "string"}
INT: Schema = {"type": "integer"}
NUM: Schema = {"type": "number"}
BOOL: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}

ADDRESS = obj(street=STR, city=STR, postcode=STR, country=STR)
PERIOD = obj(start=STR, end=STR)
LINE = obj({"note": STR}, sku=STR, quantity=INT)
STOP = obj(station=STR, minutes=INT)
CARD = obj(type=const("card"), holder=STR, expires=STR)
TRANSFER = obj(type=const("transfer"), bank=STR, reference=STR)
CIRCLE = obj(shape=const("circle"), radius=NUM)
BOX = obj(shape=const("box"), width=NUM, height=NUM)
ONCE = obj(at=STR)
EVERY = obj(interval=INT, unit=enum("minutes", "hours", "days"))
TEXT_FILTER = obj(field=STR, contains=STR)
RANGE_FILTER = obj(field=STR, lowest=NUM, highest=NUM)
LEAF = obj(title=STR, weight=NUM)
GUEST = obj({"vegetarian": BOOL}, name=STR, age=INT)

# (name, schema of all arguments, the right call, path of the object, right name, wrong name)
_RENAMES: list[tuple[str, Schema, dict[str, Any], tuple[str | int, ...], str, str]] = [
    ("address zip", obj(order=STR, address=ADDRESS),
     {"order": "A-17", "address": {"street": "Elm 4", "city": "Bern", "postcode": "3011", "country": "CH"}},
     ("address",), "postcode", "zip"),
    ("address town", obj(name=STR, home=ADDRESS),
     {"name": "Ida", "home": {"street": "Elm 4", "city": "Bern", "postcode": "3011", "country": "CH"}},
     ("home",), "city", "town"),
    ("address nation", obj(site=obj(title=STR, location=ADDRESS)),
     {"site": {"title": "Pier", "location": {"street": "Quay 1", "city": "Kiel", "postcode": "24103", "country": "D"}}},
     ("site", "location"), "country", "nation"),
    ("period from", obj(room=STR, period=PERIOD),
     {"room": "12b", "period": {"start": "2026-03-01", "end": "2026-03-04"}}, ("period",), "start", "from"),
    ("period until", obj(room=STR, period=PERIOD),
     {"room": "12b", "period": {"start": "2026-03-01", "end": "2026-03-04"}}, ("period",), "end", "until"),
    ("line units", obj(order=STR, lines=arr(LINE)),
     {"order": "A-17", "lines": [{"sku": "K9", "quantity": 2}]}, ("lines", 0), "quantity", "units"),
    ("second line count", obj(order=STR, lines=arr(LINE)),
     {"order": "A-17", "lines": [{"sku": "K9", "quantity": 2}, {"sku": "K7", "quantity": 1, "note": "gift"}]},
     ("lines", 1), "quantity", "count"),
    ("line article", obj(basket=obj(lines=arr(LINE))),
     {"basket": {"lines": [{"sku": "K9", "quantity": 2}]}}, ("basket", "lines", 0), "sku", "article"),
    ("stop duration", obj(route=STR, stops=arr(STOP)),
     {"route": "S3", "stops": [{"station": "Mitte", "minutes": 4}, {"station": "West", "minutes": 9}]},
     ("stops", 0), "minutes", "duration"),
    ("stop halt", obj(route=STR, stops=arr(STOP)),
     {"route": "S3", "stops": [{"station": "Mitte", "minutes": 4}]}, ("stops", 0), "station", "halt"),
    ("card bearer", obj(invoice=STR, method=any_of(CARD, TRANSFER)),
     {"invoice": "R-1", "method": {"type": "card", "holder": "Ida Roth", "expires": "04/29"}},
     ("method",), "holder", "bearer"),
    ("card valid until", obj(invoice=STR, method=one_of(CARD, TRANSFER)),
     {"invoice": "R-1", "method": {"type": "card", "holder": "Ida Roth", "expires": "04/29"}},
     ("method",), "expires", "valid_until"),
    ("transfer subject", obj(invoice=STR, method=any_of(CARD, TRANSFER, NULL)),
     {"invoice": "R-1", "method": {"type": "transfer", "bank": "Nord", "reference": "March rent"}},
     ("method",), "reference", "subject"),
    ("circle size", obj(layer=STR, figure=any_of(CIRCLE, BOX)),
     {"layer": "base", "figure": {"shape": "circle", "radius": 2.5}}, ("figure",), "radius", "size"),
    ("box breadth", obj(layer=STR, figures=arr(one_of(CIRCLE, BOX))),
     {"layer": "base", "figures": [{"shape": "circle", "radius": 2.5}, {"shape": "box", "width": 3, "height": 4}]},
     ("figures", 1), "width", "breadth"),
    ("circle in list", obj(layer=STR, figures=arr(any_of(CIRCLE, BOX))),
     {"layer": "base", "figures": [{"shape": "circle", "radius": 1.5}]}, ("figures", 0), "radius", "r"),
    ("schedule every", obj(job=STR, schedule=any_of(ONCE, EVERY)),
     {"job": "backup", "schedule": {"interval": 6, "unit": "hours"}}, ("schedule",), "interval", "every"),
    ("schedule scale", obj(job=STR, schedule=any_of(ONCE, EVERY)),
     {"job": "backup", "schedule": {"interval": 6, "unit": "hours"}}, ("schedule",), "unit", "measure"),
    ("schedule optional", obj({"schedule": any_of(EVERY, NULL)}, job=STR),
     {"job": "backup", "schedule": {"interval": 6, "unit": "hours"}}, ("schedule",), "interval", "frequency"),
    ("filter needle", obj(table=STR, filters=arr(any_of(TEXT_FILTER, RANGE_FILTER))),
     {"table": "trees", "filters": [{"field": "name", "contains": "oak"}]}, ("filters", 0), "contains", "includes"),
    ("filter bottom", obj(table=STR, filters=arr(any_of(TEXT_FILTER, RANGE_FILTER))),
     {"table": "trees", "filters": [{"field": "height", "lowest": 2, "highest": 9}]},
     ("filters", 0), "lowest", "bottom"),
    ("filter column", obj(table=STR, where=one_of(TEXT_FILTER, RANGE_FILTER)),
     {"table": "trees", "where": {"field": "height", "lowest": 2, "highest": 9}}, ("where",), "field", "column"),
    ("leaf caption", obj(tree=obj(label=STR, leaves=arr(LEAF))),
     {"tree": {"label": "t", "leaves": [{"title": "a", "weight": 1.5}, {"title": "b", "weight": 2.5}]}},
     ("tree", "leaves", 1), "title", "caption"),
    ("leaf mass", obj(tree=obj(label=STR, leaves=arr(LEAF))),
     {"tree": {"label": "t", "leaves": [{"title": "a", "weight": 1.5}]}}, ("tree", "leaves", 0), "weight", "mass"),
    ("guest years", obj(table=INT, guests=arr(GUEST)),
     {"table": 4, "guests": [{"name": "Ida", "age": 41, "vegetarian": True}]}, ("guests", 0), "age", "years"),
    ("guest called", obj(table=INT, guests=arr(GUEST)),
     {"table": 4, "guests": [{"name": "Ida", "age": 41}]}, ("guests", 0), "name", "called"),
    ("font px", obj(text=STR, font=obj({"bold": BOOL}, family=STR, size=INT)),
     {"text": "Hi", "font": {"family": "Inter", "size": 12, "bold": False}}, ("font",), "size", "px"),
    ("font typeface", obj(text=STR, font=obj({"bold": BOOL}, family=STR, size=INT)),
     {"text": "Hi", "font": {"family": "Inter", "size": 12}}, ("font",), "family", "typeface"),
    ("weather place", obj(request=obj(place=obj(latitude=NUM, longitude=NUM), days=INT)),
     {"request": {"place": {"latitude": 46.9, "longitude": 7.4}, "days": 3}},
     ("request", "place"), "longitude", "lng"),
    ("weather horizon", obj(request=obj(place=obj(latitude=NUM, longitude=NUM), days=INT)),
     {"request": {"place": {"latitude": 46.9, "longitude": 7.4}, "days": 3}}, ("request",), "days", "horizon"),
    ("recipe grams", obj(recipe=obj(name=STR, ingredients=arr(obj({"chopped": BOOL}, item=STR, grams=INT)))),
     {"recipe": {"name": "Soup", "ingredients": [{"item": "leek", "grams": 200, "chopped": True}]}},
     ("recipe", "ingredients", 0), "grams", "weight_g"),
    ("recipe thing", obj(recipe=obj(name=STR, ingredients=arr(obj({"chopped": BOOL}, item=STR, grams=INT)))),
     {"recipe": {"name": "Soup", "ingredients": [{"item": "leek", "grams": 200}]}},
     ("recipe", "ingredients", 0), "item", "ingredient"),
    ("ticket level", obj(ticket=obj(title=STR, severity=enum("low", "high"))),
     {"ticket": {"title": "Leak", "severity": "high"}}, ("ticket",), "severity", "level"),
    ("ticket summary", obj(ticket=obj(title=STR, severity=enum("low", "high"))),
     {"ticket": {"title": "Leak", "severity": "high"}}, ("ticket",), "title", "summary"),
    ("chart points", obj(chart=obj(kind=enum("bar", "line"), series=arr(obj(label=STR, values=arr(NUM))))),
     {"chart": {"kind": "bar", "series": [{"label": "a", "values": [1, 2.5]}]}},
     ("chart", "series", 0), "values", "points"),
    ("chart entries", obj(chart=obj(kind=enum("bar", "line"), series=arr(obj(label=STR, values=arr(NUM))))),
     {"chart": {"kind": "bar", "series": [{"label": "a", "values": [1, 2.5]}]}}, ("chart",), "series", "lines"),
    ("alarm active", obj(alarm=obj({"sound": STR}, time=STR, enabled=BOOL)),
     {"alarm": {"time": "07:30", "enabled": True, "sound": "bell"}}, ("alarm",), "enabled", "active"),
    ("alarm hour", obj(alarm=obj({"sound": STR}, time=STR, enabled=BOOL)),
     {"alarm": {"time": "07:30", "enabled": True}}, ("alarm",), "time", "hour"),
    ("deep union",
     obj(plan=obj(stage=any_of(obj(kind=const("walk"), steps=INT), obj(kind=const("rest"), seconds=INT)))),
     {"plan": {"stage": {"kind": "rest", "seconds": 90}}}, ("plan", "stage"), "seconds", "pause"),
    ("below union",
     obj(entry=any_of(obj(kind=const("photo"), frame=obj(width=INT, height=INT)), obj(kind=const("text"), words=STR))),
     {"entry": {"kind": "photo", "frame": {"width": 4, "height": 3}}}, ("entry", "frame"), "height", "depth"),
    ("list below union", obj(entry=any_of(obj(kind=const("album"), pages=arr(obj(number=INT, title=STR))), NULL)),
     {"entry": {"kind": "album", "pages": [{"number": 1, "title": "Sea"}]}}, ("entry", "pages", 0), "title", "heading"),
    ("profile rank", obj(profile=obj({"tags": arr(STR)}, nickname=STR, level=INT), season=STR),
     {"season": "spring", "profile": {"nickname": "Ro", "level": 3, "tags": ["a"]}}, ("profile",), "level", "rank"),
    ("spelling", obj(grid=obj(row_count=INT, column_count=INT)),
     {"grid": {"row_count": 3, "column_count": 4}}, ("grid",), "row_count", "rowCount"),
    ("slip in union", obj(figure=one_of(CIRCLE, BOX)),
     {"figure": {"shape": "box", "width": 3, "height": 4}}, ("figure",), "height", "heigth"),
]  # fmt: skip


def _replaced(value: Any, path: tuple[str | int, ...], change: Any) -> Any:
    value = copy.deepcopy(value)
    holder = value
    for part in path:
        holder = holder[part]
    change(holder)
    return value


def _rename(holder: dict[str, Any], old: str, new: str) -> None:
    items = [(new if name == old else name, value) for name, value in holder.items()]
    holder.clear()
    holder.update(items)


def positives() -> list[Scenario]:
    """Return the calls with one field under another name."""
    return [
        Scenario(name, schema, _replaced(call, path, lambda holder: _rename(holder, right, wrong)), call, schema)  # noqa: B023
        for name, schema, call, path, right, wrong in _RENAMES
    ]


def negatives() -> list[Scenario]:
    """Return the calls where nothing may be suggested."""
    address = obj(order=STR, address=ADDRESS)
    valid_address = {"street": "Elm 4", "city": "Bern", "postcode": "3011", "country": "CH"}
    laxer = obj(order=STR, address=obj({"region": STR}, street=STR, city=STR, postcode=STR, country=STR))
    stricter = obj(order=STR, address=obj(street=STR, city=STR, county=STR, country=STR))
    rows: list[tuple[str, Schema, dict[str, Any], Schema | None]] = [
        ("two missing", address, {"order": "A", "address": {"street": "Elm 4", "city": "Bern", "zone": "3011"}}, None),
        ("two missing in array", obj(lines=arr(LINE)), {"lines": [{"thing": "K9"}]}, None),
        ("two undeclared", address,
         {"order": "A", "address": {"street": "Elm 4", "city": "Bern", "country": "CH", "zone": "3", "area": "4"}},
         None),
        ("two undeclared in union", obj(figure=any_of(CIRCLE, BOX)),
         {"figure": {"shape": "circle", "size": 2.5, "extent": 3.5}}, None),
        ("text for integer", obj(lines=arr(LINE)), {"lines": [{"sku": "K9", "remark": "two of them"}]}, None),
        ("number for text", address,
         {"order": "A", "address": {"street": "Elm 4", "city": "Bern", "country": "CH", "zone": 3011}}, None),
        ("list for number", obj(figure=any_of(CIRCLE, BOX)), {"figure": {"shape": "circle", "size": [2.5]}}, None),
        ("object for text", obj(period=PERIOD), {"period": {"start": "2026-03-01", "finish": {"day": 4}}}, None),
        ("text outside enum", obj(ticket=obj(title=STR, severity=enum("low", "high"))),
         {"ticket": {"title": "Leak", "mood": "calm"}}, None),
        ("amount", obj(refund=obj(reason=STR, amount=NUM)), {"refund": {"reason": "late", "stars": 4}}, None),
        ("price in array", obj(offers=arr(obj(title=STR, price=NUM))),
         {"offers": [{"title": "Tea", "weight": 50}]}, None),
        ("total in union", obj(bill=any_of(obj(kind=const("cash"), total=NUM), NULL)),
         {"bill": {"kind": "cash", "people": 4}}, None),
        ("id", obj(item=obj(title=STR, id=STR)), {"item": {"title": "Tea", "color": "green"}}, None),
        ("order_id", obj(parcel=obj(weight=NUM, order_id=STR)), {"parcel": {"weight": 1.5, "label": "fragile"}}, None),
        ("uuid in array", obj(nodes=arr(obj(title=STR, uuid=STR))), {"nodes": [{"title": "a", "color": "red"}]}, None),
        ("customer", obj(visit=obj(day=STR, customer=STR)), {"visit": {"day": "Monday", "mood": "good"}}, None),
        ("path", obj(export=obj(format=STR, path=STR)), {"export": {"format": "csv", "title": "Trees"}}, None),
        ("url", obj(hook=obj(event=STR, url=STR)), {"hook": {"event": "push", "title": "Build"}}, None),
        ("recipient", obj(message=obj(text=STR, recipient=STR)), {"message": {"text": "Hi", "mood": "good"}}, None),
        ("role", obj(person=obj(name=STR, role=STR)), {"person": {"name": "Ida", "hobby": "chess"}}, None),
        ("force", obj(job=obj(name=STR, force=BOOL)), {"job": {"name": "copy", "urgent": True}}, None),
        ("nothing undeclared", obj(period=PERIOD), {"period": {"start": "2026-03-01"}}, None),
        ("ambiguous branches", obj(part=any_of(obj(name=STR, length=INT), obj(name=STR, volume=INT))),
         {"part": {"name": "pipe", "extent": 4}}, None),
        # The call fits the declared schema, and the error claims another one.
        ("valid call, error names an undeclared field", address, {"order": "A", "address": valid_address}, stricter),
        ("valid call with an optional field", laxer,
         {"order": "A", "address": {**valid_address, "region": "BE"}},
         obj(order=STR, address=obj(street=STR, city=STR, postcode=STR, country=STR, county=STR))),
    ]  # fmt: skip
    return [Scenario(name, schema, call, None, validated or schema) for name, schema, call, validated in rows]
