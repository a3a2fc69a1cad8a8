"""The web: pages that a search finds, and pages of a URL as text."""
