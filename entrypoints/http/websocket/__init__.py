"""The API over WebSocket."""
