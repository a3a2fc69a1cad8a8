"""URLs from which keys may be fetched: nobody on the way may replace what they answer."""

from __future__ import annotations

import re

LOOPBACK = r"(localhost|127(\.\d{1,3}){3}|\[::1\])"
SECURE_URL = (
    rf"^(https://[^/@\s?#\\]+|http://{LOOPBACK}(:\d{{1,5}})?)(/[^\s?#\\]*)?(\?[^\s#\\]*)?\Z"
)
"""https, or plain http on this machine; without credentials and fragment."""


def is_secure(url: str) -> bool:
    """Whether keys may be fetched from this URL.

    >>> is_secure("https://id.example.org/keys?app=1"), is_secure("http://127.0.0.1:8080/keys")
    (True, True)
    >>> is_secure("http://id.example.org/keys"), is_secure("http://localhost.example.org/keys")
    (False, False)
    """
    return re.match(SECURE_URL, url) is not None
