"""The tools that this server runs for a model, and the budgets of their calls."""
