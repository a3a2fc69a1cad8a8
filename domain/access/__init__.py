"""Callers, their rights and limits, and secrets that nobody is shown."""
