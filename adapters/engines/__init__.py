"""Engines: adapters of the Engine port."""
