"""The HTTP API, on Litestar: handlers decode a request, call one service, and encode its result."""
