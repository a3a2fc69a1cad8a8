"""The record of a run, and the reports of it."""
