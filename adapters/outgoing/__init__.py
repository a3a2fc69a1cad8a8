"""Connections to other servers: by which way, whom they trust, what they may cost."""
