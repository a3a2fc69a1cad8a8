"""Models that are no pair of format and engine."""
