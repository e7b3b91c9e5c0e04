"""The name that 0.1.0 documented for `mulligan.contract.store`."""

from mulligan.contract.store import Retention as Retention
