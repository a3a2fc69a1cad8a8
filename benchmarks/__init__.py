"""What serving a token costs, compared with the least that any ASGI server could spend on it."""
