"""What is recorded of a run while it runs, and who is told of it."""
