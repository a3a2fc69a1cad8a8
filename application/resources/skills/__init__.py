"""Skills: read from archives, kept by tenant and version, and mounted in containers."""
