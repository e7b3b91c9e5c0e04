"""From a call that returned to a row in the store: nothing lost, nothing doubled, nobody waits."""
