"""The rules of the Responses API as pure code: no I/O, clock, randomness or library but msgspec."""
