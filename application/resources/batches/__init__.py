"""Batches of requests: what clients do with them, and how servers run them."""
