"""Records, failures, events and links: the vocabulary that every other package speaks."""

import mulligan.core.kinds  # noqa: F401 - its rows give every kind its properties, also those read from a store
