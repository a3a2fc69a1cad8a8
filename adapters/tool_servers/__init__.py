"""Servers of tools that are called for a response."""
