"""The tools that this server runs for a model, and what bounds their calls."""
