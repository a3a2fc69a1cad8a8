"""Requests that another server answers."""
