"""A turn's text becomes deltas: markers are found, and calls are read."""
