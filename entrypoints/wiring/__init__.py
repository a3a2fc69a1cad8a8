"""Which adapter the settings choose for each port; `container.py` joins them."""
