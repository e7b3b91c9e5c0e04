"""An evaluation of learning: ordinary programs, played fifty times, against what is known to be true of them."""
