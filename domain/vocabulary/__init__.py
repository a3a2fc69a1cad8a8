"""The vocabulary of kinds: what an item, an event and a tool are, and what a kind declares."""
