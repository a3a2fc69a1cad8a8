"""A first request, to be copied: into a shell, or into Python."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence


def curl_line(url: str, model: str, *, keyed: bool = False) -> str:
    """Return a first request, to be pasted into a shell; `keyed` where it needs an API key."""
    body = json.dumps({"model": model, "input": "Say hello."})
    key = ' -H "authorization: Bearer $OPENAI_API_KEY"' if keyed else ""
    return (
        f"curl {url}/v1/responses -H 'content-type: application/json'{key} -d {shlex.quote(body)}"
    )


def python_lines(url: str, model: str, *, keyed: bool = False) -> Sequence[str]:
    """Return the same request for the official client."""
    key = "" if keyed else ', api_key="none"'  # the client takes OPENAI_API_KEY by itself
    return (
        "from openai import OpenAI",
        f'client = OpenAI(base_url="{url}/v1"{key})',
        f'response = client.responses.create(model={json.dumps(model)}, input="Say hello.")',
        "print(response.output_text)",
    )
