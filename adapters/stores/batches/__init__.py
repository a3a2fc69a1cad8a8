"""Batches in SQLite, in a file beside the uploaded files, or in memory."""
