"""The vector stores of one server, in a SQLite file."""
