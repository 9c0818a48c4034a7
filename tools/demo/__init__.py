"""A training run that is killed in the middle of a save, resumed, and branched: ``make demo``."""
