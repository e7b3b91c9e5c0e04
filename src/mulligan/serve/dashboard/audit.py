"""Audit page: changes by a tenant's operators, newest first. It requires the role admin."""

from __future__ import annotations

from typing import Any

from mulligan.remember.store import AuditQuery, Store
from mulligan.report.audit import written
from mulligan.serve.dashboard.asked import Asked

SHOWN = 200


def audit(store: Store, tenant: str, asked: Asked) -> dict[str, Any]:
    found = store.audit(tenant, AuditQuery(limit=SHOWN))
    return {"rows": [(written(each.at), each) for each in found], "is_cut": len(found) == SHOWN}
