"""Sources of prompt templates."""
