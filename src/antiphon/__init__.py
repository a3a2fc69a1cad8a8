"""Antiphon: a server for the Responses API over models that you run yourself."""

__version__ = "0.1.0"
