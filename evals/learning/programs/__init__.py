"""Ordinary programs with known truth. Importing this fills `learning.player.PROGRAMS`."""

from learning.programs import corrections, fallbacks, loops, models, others, pairs

__all__ = ["corrections", "fallbacks", "loops", "models", "others", "pairs"]
