"""`antiphon doctor`: what is right on this machine, what is not, and what to do."""
