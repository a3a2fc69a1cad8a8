"""Formats: a renderer with its parser."""
