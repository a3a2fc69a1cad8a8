"""Several processes that serve one port over one store, and the one that looks after them."""
