"""Who may send requests, from where, and whose turn it is."""
