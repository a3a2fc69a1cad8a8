"""The routes of containers, and of the skills that they mount."""
