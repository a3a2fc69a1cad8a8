"""Batches of requests: their states, their bodies, and the lines of their files."""
