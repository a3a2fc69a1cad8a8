"""The Response, its usage and metrics, and the trace of a run."""
