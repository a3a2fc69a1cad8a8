"""Count a prompt's tokens: by the server if it can, else by an estimate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from antiphon.adapters.models.chat_completions.request import RequestBody
from antiphon.adapters.upstreams.client import UpstreamClient
from antiphon.domain.bounds import count_of
from antiphon.domain.errors import EngineError
from antiphon.domain.json import Json

BYTES_PER_TOKEN = 4
"""English text has some four bytes a token; other languages and code have fewer."""
MESSAGE_TOKENS = 4
IMAGE_TOKENS = 1000
COUNT_S = 30.0
COUNTED_FIELDS = ("model", "messages", "tools", "chat_template_kwargs")
PROBE: Json = {"messages": [{"role": "user", "content": "Hi"}]}


class TokenCounter:
    """Counts the tokens of request bodies. Until `probe` finds a way to be exact, it estimates."""

    def __init__(self, client: UpstreamClient) -> None:
        self._client = client
        self._ask: Callable[[Json], Awaitable[int]] | None = None

    @property
    def is_exact(self) -> bool:
        return self._ask is not None

    async def probe(self, model: str) -> None:
        """Find out how the server counts tokens, if it does."""
        for ask in (self._ask_for_messages, self._ask_for_text):
            try:
                await ask(PROBE | {"model": model})
            except (EngineError, LookupError, TypeError):
                continue
            self._ask = ask
            return

    async def count(self, body: RequestBody) -> int:
        """Return the number of the prompt's tokens; an estimate if the server cannot count it."""
        if self._ask is not None:
            try:
                return await self._ask(body.fields)
            except (EngineError, LookupError, TypeError):
                pass  # a prompt beyond the context, for example
        return estimate(body.fields)

    async def _ask_for_messages(self, fields: Json) -> int:
        """As vLLM's `/tokenize` does it: with the messages."""
        request = {name: fields[name] for name in COUNTED_FIELDS if name in fields}
        answer = await self._post("/tokenize", {**request, "add_generation_prompt": True})
        return _size(answer["count"])

    async def _ask_for_text(self, fields: Json) -> int:
        """As llama.cpp does it: the prompt's text first, then its tokens."""
        request = {name: fields[name] for name in COUNTED_FIELDS if name in fields}
        prompt = (await self._post("/apply-template", request))["prompt"]
        answer = await self._post(
            "/tokenize", {"content": prompt, "add_special": True, "parse_special": True}
        )
        return len(list(answer["tokens"]))

    async def _post(self, path: str, body: Json) -> Json:
        answer = await self._client.post(
            path, msgspec.json.encode(body), timeout_s=COUNT_S, at_root=True
        )
        value = answer.json()
        return value if isinstance(value, dict) else {}


def estimate(fields: Json) -> int:
    """Return about how many tokens the prompt of a request has."""
    messages: Sequence[Json] = fields["messages"]
    images = sum(
        1
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if part.get("type") == "image_url"
    )
    size = sum(_bytes_of(message) for message in messages)
    size += len(msgspec.json.encode(fields["tools"])) if "tools" in fields else 0
    return size // BYTES_PER_TOKEN + MESSAGE_TOKENS * len(messages) + IMAGE_TOKENS * images


def _bytes_of(message: Json) -> int:
    """Return the size of a message's texts; images are counted by their number."""
    content = message.get("content")
    texts = [part.get("text") or "" for part in content] if isinstance(content, list) else [content]
    calls = message.get("tool_calls")
    size = sum(len(str(text or "").encode("utf-8", "surrogatepass")) for text in texts)
    size += len(msgspec.json.encode(calls)) if calls else 0
    return size + len(str(message.get("reasoning_content") or message.get("reasoning") or ""))


def _size(value: Any) -> int:
    count = count_of(value, least=1)
    if count is None:
        raise TypeError("not a number of tokens")
    return count
