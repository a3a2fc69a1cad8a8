"""Entry points: settings, container, HTTP API, command line."""
