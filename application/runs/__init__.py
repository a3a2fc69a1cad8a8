"""The run of a response: the loop over turns, the journal, restoring, leases and the heartbeat."""
