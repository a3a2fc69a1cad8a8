"""The bodies of requests: their fields, how they are decoded, and the checks that they pass."""
