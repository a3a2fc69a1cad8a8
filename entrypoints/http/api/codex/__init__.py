"""The catalog of models for Codex, with instructions of our own."""
