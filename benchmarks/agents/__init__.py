"""Sessions of agents: what each turn costs the server, and how much of its prompt is new."""
