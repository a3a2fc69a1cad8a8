"""The model servers of others, over HTTP: connections, keys, errors and event streams."""
