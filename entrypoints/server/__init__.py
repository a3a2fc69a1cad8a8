"""A server: what it starts, what it serves, what it tells its operator."""
