"""A model's turns: formats joined with engines, and the turns of the server's own."""
