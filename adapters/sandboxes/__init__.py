"""Sandboxes for the code of models."""
