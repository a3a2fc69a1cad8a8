"""The store in a SQLite file."""
