"""Bytes and connections: HTTP, TLS, events in frames, and their bounds."""
