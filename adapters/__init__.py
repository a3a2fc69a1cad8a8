"""The implementations of the ports: engines, formats, models, stores, tool servers and others."""
