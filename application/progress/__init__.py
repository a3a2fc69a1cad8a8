"""What a run has read from outside, so that another server can go on with it."""
