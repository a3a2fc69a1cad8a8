"""The record of what a run has read from outside, so that another server can continue it."""
