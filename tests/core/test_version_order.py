"""Versions are compared by their numbers, where they have some."""

from __future__ import annotations

from mulligan.core.version_order import compute_version_key


def test_versions_with_numbers_are_compared_by_their_numbers():
    ordered = ("1.0.0-rc1", "1.0.0", "v1.0.1", "1.2", "1.10.0+build.7", "2026.11.19")
    keys = [compute_version_key(version) for version in ordered]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert compute_version_key("agent@1.2") < compute_version_key("agent@1.10")
    assert compute_version_key("1.0") == compute_version_key("1.0.0")
    assert compute_version_key("b41f9e2") is None
    assert compute_version_key("nightly") is None
