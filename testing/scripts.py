"""Messages that make the scripted models play a script."""

from __future__ import annotations

import json
from typing import Any


def script(*turns: Any) -> str:
    """Return a message with these turns: each is a part, or a list of parts.

    >>> script({"say": "Hello."})
    '@@script [{"say": "Hello."}]'
    """
    return f"@@script {json.dumps(turns)}"
