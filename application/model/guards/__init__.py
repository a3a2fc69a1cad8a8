"""Guards of requests, calls, results and outputs."""
