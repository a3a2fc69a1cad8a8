"""Formats: how families of models write, each a renderer with its parser."""
