"""Audit page: changes by a tenant's operators, newest first. It requires the role admin."""

from __future__ import annotations

from typing import Any

from mulligan.dashboard.page_query import PageQuery
from mulligan.report.audit_report import format_timestamp
from mulligan.store.base import AuditQuery, Store

MAX_SHOWN_ENTRIES = 200


def audit(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    entries = store.audit(tenant, AuditQuery(limit=MAX_SHOWN_ENTRIES))
    return {
        "rows": [(format_timestamp(entry.at), entry) for entry in entries],
        "is_cut": len(entries) == MAX_SHOWN_ENTRIES,
    }
