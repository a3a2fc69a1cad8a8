"""Tokens of an OpenID Connect issuer: its keys, and tokens that they signed."""
