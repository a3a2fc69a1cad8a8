"""Real weights behind this server and behind its peers: the same questions, side by side."""
