"""Models of Mistral with `tekken.json` alone: mistral-common is their tokenizer and renderer.

Such a folder has no chat template. The library knows the format of each version of the tokenizer,
and checks the conversation as Mistral's own servers do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from antiphon.adapters.extras import install_command
from antiphon.adapters.formats.chat_template.renderer import ChatRenderer, chat_messages
from antiphon.adapters.formats.chat_template.template_capabilities import (
    TemplateCapabilities,
    with_fitting_call,
)
from antiphon.adapters.formats.chat_template.tokenizer import Tokenizer
from antiphon.adapters.formats.portions import check_length, has_large_tools, is_large
from antiphon.adapters.formats.role_rules import find_fittings
from antiphon.adapters.formats.tools import prompt_tools
from antiphon.adapters.formats.transcript import chat_turn_cache, function_of, transcript
from antiphon.application.ports import Prompt, Turn
from antiphon.application.support.fair_queue import FairQueue
from antiphon.application.support.threads import MAX_THREADS, compute_in_thread
from antiphon.domain.errors import RequestError, SettingsError
from antiphon.domain.history.conversation import leading_instructions
from antiphon.domain.json import Json

CALL_ID_LENGTH = 9
ARGUMENTS_AS_TEXT = TemplateCapabilities(object_arguments=False)


class TekkenTokenizer(Tokenizer):
    """A folder's `tekken.json`."""

    def __init__(self, mistral: Any) -> None:
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

        self.mistral = mistral
        self._inner = mistral.instruct_tokenizer.tokenizer
        self._keep_special = SpecialTokenPolicy.KEEP
        names = (self._inner.id_to_piece(token) for token in self._inner.special_ids)
        self._special = {name: self._inner.get_special_token(name) for name in sorted(names)}
        pattern = "|".join(map(re.escape, sorted(self._special, key=len, reverse=True)))
        self._split_special = re.compile(f"({pattern})").split

    @classmethod
    def load(cls, file: Path) -> TekkenTokenizer:
        """Load a file. Raises: SettingsError without the library or a valid file."""
        try:
            from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
        except ImportError:
            raise SettingsError(
                "Reading tekken.json needs a package. Install it with: "
                f"{install_command('mistral')}"
            ) from None
        try:
            return cls(MistralTokenizer.from_file(str(file)))
        except Exception as error:  # the library raises bare exceptions
            raise SettingsError(f"{str(file)!r} is not a tokenizer: {error}") from error

    @property
    def stop_token_id(self) -> int:
        """Return the token that ends a turn."""
        return int(self._inner.eos_id)

    def encode(self, text: str, *, special: bool) -> list[int]:
        if not special:
            return self._encode_text(text)
        parts = (
            [self._special[part]] if part in self._special else self._encode_text(part)
            for part in self._split_special(text)
        )
        return list(chain.from_iterable(parts))

    def _encode_text(self, text: str) -> list[int]:
        return list(self._inner.encode(text, bos=False, eos=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._inner.decode(list(token_ids), special_token_policy=self._keep_special))

    @property
    def start_ids(self) -> Sequence[int]:
        return (int(self._inner.bos_id),)

    def token_id(self, text: str) -> int | None:
        return self._special.get(text)

    def added_tokens(self) -> Mapping[str, bool]:
        return dict.fromkeys(self._special, True)


class MistralRenderer(ChatRenderer):
    """Writes prompts with mistral-common. Turns are always rendered anew."""

    reads_images = False

    def __init__(self, tokenizer: TekkenTokenizer) -> None:
        self._tokenizer = tokenizer
        self._thinks = tokenizer.token_id("[THINK]") is not None
        self.turn_cache = chat_turn_cache()
        self._writers = FairQueue(MAX_THREADS)
        self.fittings = find_fittings(self._render_sample)

    async def render(self, turn: Turn) -> Prompt:
        if is_large(turn) or has_large_tools(turn):
            async with self._writers.slot(turn.tenant):
                token_ids, fittings = await compute_in_thread(self._write, turn)
        else:
            token_ids, fittings = self._write(turn)
        check_length(len(token_ids), turn.max_prompt_tokens)
        _, items = leading_instructions(turn.items)
        entries = list(transcript(items, turn.tools))
        digest = self.turn_cache.fingerprint(turn.cache_salt, entries).of_all
        return Prompt(token_ids=token_ids, fittings=fittings, prefix_digest=digest)

    async def encode(self, text: str, turn: Turn) -> Sequence[int]:
        async with self._writers.slot(turn.tenant):
            ids = await compute_in_thread(self._tokenizer.encode, text, special=True)
        ids = self._tokenizer.begin_text(ids)
        check_length(len(ids), turn.max_prompt_tokens)
        return ids

    def _render_sample(self, messages: Sequence[Json], tools: Sequence[Json]) -> str:
        fitted = [with_fitting_call(message, ARGUMENTS_AS_TEXT) for message in messages]
        return self._tokenizer.decode(self._encode(fitted, tools))

    def _write(self, turn: Turn) -> tuple[list[int], Sequence[str]]:
        """Return the prompt's tokens, and the names of what changed the conversation.

        Raises: RequestError where the library refuses the turn.
        """
        messages, fittings = self.fittings.apply(
            chat_messages(turn, call_id_length=CALL_ID_LENGTH, capabilities=ARGUMENTS_AS_TEXT)
        )
        return self._encode(messages, [function_of(tool) for tool in prompt_tools(turn)]), fittings

    def _encode(self, messages: Sequence[Json], tools: Sequence[Json]) -> list[int]:
        from mistral_common.exceptions import MistralCommonException
        from mistral_common.protocol.instruct.request import ChatCompletionRequest
        from pydantic import ValidationError

        try:
            request = ChatCompletionRequest.from_openai(
                messages=[self._fit(message) for message in messages], tools=list(tools) or None
            )
            return list(self._tokenizer.mistral.encode_chat_completion(request).tokens)
        except (MistralCommonException, ValidationError, ValueError) as error:
            raise RequestError(
                f"Mistral's tokenizer refuses this conversation: {error}", param="input"
            ) from error

    def _fit(self, message: Json) -> Json:
        """Leave out what this version of the tokenizer cannot write."""
        dropped = {"thinking"} | (set() if self._thinks else {"reasoning_content", "reasoning"})
        return {key: value for key, value in message.items() if key not in dropped}
