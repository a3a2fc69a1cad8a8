"""Stores of uploaded files."""
