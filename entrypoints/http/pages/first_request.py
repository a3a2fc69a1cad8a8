"""A first request for users to copy, as a curl command and as Python."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence


def curl_line(url: str, model: str, *, needs_key: bool = False) -> str:
    """Return a first request as a curl command, with an API key if it needs one."""
    body = json.dumps({"model": model, "input": "Say hello."})
    key = ' -H "authorization: Bearer $OPENAI_API_KEY"' if needs_key else ""
    return (
        f"curl {url}/v1/responses -H 'content-type: application/json'{key} -d {shlex.quote(body)}"
    )


def python_lines(url: str, model: str, *, needs_key: bool = False) -> Sequence[str]:
    """Return the same request for OpenAI's Python client."""
    key = "" if needs_key else ', api_key="none"'  # the client reads OPENAI_API_KEY by default
    return (
        "from openai import OpenAI",
        f'client = OpenAI(base_url="{url}/v1"{key})',
        f'response = client.responses.create(model={json.dumps(model)}, input="Say hello.")',
        "print(response.output_text)",
    )
