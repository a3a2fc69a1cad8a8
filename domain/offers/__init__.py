"""The offer of a request: its tools as specs for the model, and the choice among them."""
