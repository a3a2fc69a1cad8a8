"""Sources of API keys besides the store."""
