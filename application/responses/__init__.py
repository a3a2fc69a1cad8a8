"""What `/v1/responses` does: create, follow, get, list, cancel, delete, compact, count tokens."""
