"""Contract tests for a store, one module for each part of it; `testing/store.py` joins them."""
