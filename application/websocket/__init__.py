"""WebSocket mode: lanes, steering, continuations."""
