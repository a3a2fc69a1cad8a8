"""Stores and event logs."""
