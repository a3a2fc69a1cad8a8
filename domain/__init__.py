"""The Responses protocol as pure rules: no I/O, clock, chance or third party but msgspec."""
