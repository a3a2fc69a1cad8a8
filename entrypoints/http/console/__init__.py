"""The console: static pages over the public API, and the sessions of browsers."""
