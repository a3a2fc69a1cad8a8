"""A process of a server: its event loop, its memory, its logs, the workers beside it."""
