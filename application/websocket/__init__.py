"""WebSocket mode: the lanes, continuations and steering of one connection."""
