"""JSON values, as Python has them."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
"""A JSON object whose shape is not fixed here."""
