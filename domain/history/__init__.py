"""The conversation that a turn continues, and the items that a client is shown of it."""
