"""Strict decoding in tests: what refuses unknown fields, and what must not."""

from __future__ import annotations

import importlib
from typing import Any

import msgspec
import pytest
import strict_decoding
from strict_decoding import FOREIGN_CLASSES, FOREIGN_MODULES, PARTIAL_VIEWS, VIEW_FIELDS
from struct_filler import encoded_fields, fill, find_structs

from mulligan.core.records import Run, decode, encode
from mulligan.learn.tracker import Tracker


def find_class(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def is_strict(struct: type[msgspec.Struct]) -> bool:
    return bool(struct.__struct_config__.forbid_unknown_fields)


def test_strict_decoding_covers_every_struct_but_the_foreign_ones() -> None:
    structs = list(find_structs())
    wrong = [
        f"{struct.__module__}:{struct.__name__}"
        for struct in structs
        if is_strict(struct) == strict_decoding.is_lenient(struct.__module__, struct.__name__)
    ]
    assert len(structs) > 100
    assert wrong == []


def test_strict_decoding_lists_only_modules_and_classes_that_exist() -> None:
    modules = {struct.__module__ for struct in find_structs()}
    assert sorted(FOREIGN_MODULES - modules) == []
    for path in [*FOREIGN_CLASSES, *PARTIAL_VIEWS]:
        assert not is_strict(find_class(path))


@pytest.mark.parametrize("path", PARTIAL_VIEWS)
def test_partial_views_read_fields_that_their_records_have(path: str) -> None:
    fields: set[str] = set().union(*(encoded_fields(find_class(record)) for record in PARTIAL_VIEWS[path]))
    assert encoded_fields(find_class(path)) - VIEW_FIELDS.get(path, set()) <= fields


def test_pruning_reads_when_a_session_last_failed() -> None:
    """It reads a list of dictionaries, in which no decoder checks a name."""
    (failure,) = msgspec.json.decode(encode(fill(Tracker)))["failures"]
    assert isinstance(failure["step"]["started_at"], int)


def test_records_refuse_unknown_fields() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        decode(b'{"id":"run_a","colour":"red"}', Run)


def test_strict_structs_are_ordinary_structs() -> None:
    assert type(Run) is msgspec.StructMeta
    assert isinstance(Run(id="run_a"), msgspec.Struct)
    assert issubclass(Run, msgspec.Struct)
    assert not isinstance("run_a", msgspec.Struct)
