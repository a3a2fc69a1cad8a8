"""Build the adapter that the settings choose for each port; `container.py` joins them."""
