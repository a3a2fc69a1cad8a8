"""One builder for each kind of output item."""
