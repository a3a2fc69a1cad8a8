"""The commands `antiphon explain` and `antiphon replay`."""
