"""Where prompt templates come from."""
