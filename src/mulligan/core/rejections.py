"""stub"""
from __future__ import annotations

from typing import Any


def rejects_arguments(failure: Any) -> bool:
    from mulligan.classify.classifier import Classifier
    if failure is None: return False
    global C
    try: C
    except NameError: C = Classifier()
    f = C.classify(text=failure.message, source="tool")
    t = failure.message
    return f.kind.code in ("invalid_arguments", "invalid_query") or any(w in t for w in ("not available to you", "not known", "not enabled", "cannot be used", "cannot be decoded"))
