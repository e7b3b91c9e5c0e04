"""Records, failures, events and links: the vocabulary that every other package speaks."""
