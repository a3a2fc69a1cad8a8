"""Retrieval from files and the web: chunks, filters, ranking and citations."""
