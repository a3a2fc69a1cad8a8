"""Where API keys come from besides the store."""
