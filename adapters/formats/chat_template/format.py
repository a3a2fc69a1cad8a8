"""The chat-template format: a family's row, a tokenizer and a renderer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from antiphon.adapters.formats.chat_template.constraint import constraint
from antiphon.adapters.formats.chat_template.detection import HARMONY, detect, has_calls, log
from antiphon.adapters.formats.chat_template.effort import EFFORTS
from antiphon.adapters.formats.chat_template.families import FAMILIES, Family
from antiphon.adapters.formats.chat_template.mistral_common import MistralRenderer, TekkenTokenizer
from antiphon.adapters.formats.chat_template.parsing.parser import ChatTemplateParser
from antiphon.adapters.formats.chat_template.renderer import ChatRenderer, TemplateRenderer
from antiphon.adapters.formats.chat_template.template import (
    NAME_A_TEMPLATE,
    ChatTemplate,
    load_template,
    named_templates,
    read_json,
    read_template,
    special_tokens,
)
from antiphon.adapters.formats.chat_template.tokenizer import (
    FolderTokenizer,
    HfTokenizer,
    Tokenizer,
)
from antiphon.adapters.formats.tools import callable_tools
from antiphon.adapters.formats.transcript import transcript
from antiphon.adapters.formats.turn_cache import approvals_as_calls
from antiphon.application.ports import Constraint, Format, Json, Parser, Prompt, Turn
from antiphon.domain.errors import RequestError, SettingsError
from antiphon.domain.items import Item

NO_CALLS = (
    "The server does not know how this model calls tools (its format is {name}). Send no tools, or "
    "tool_choice none; the server's --format can name another format."
)

PROMPT_TAIL_TOKENS = 16
"""How many tokens at the end of a prompt are searched for the marker that opens reasoning."""

MAX_CACHED_TAILS = 64
"""Lists of labels, each after one end of a prompt: a model has few of both."""


class ChatTemplateFormat(Format):
    """The format of a family of models with chat templates."""

    skip_special_tokens = False
    reads_text = True
    efforts: Sequence[str] = EFFORTS

    def __init__(
        self,
        name: str,
        family: Family,
        tokenizer: Tokenizer,
        *,
        renderer: ChatRenderer,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        self.stop_token_ids: Sequence[int] = tuple(stop_token_ids)
        self.name = f"chat:{name}"
        self._family = family
        self._reasoning_openings = family.reasoning_openings
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._find_first_tokens = lru_cache(MAX_CACHED_TAILS)(self._first_tokens_after)

    @property
    def family(self) -> Family:
        """Return the row of the table that the format follows."""
        return self._family

    @property
    def reads_images(self) -> bool:  # type: ignore[override]  # the renderer knows it
        return self._renderer.reads_images

    async def render(self, turn: Turn) -> Prompt:
        if turn.tools and not has_calls(self._family) and callable_tools(turn):
            raise RequestError(NO_CALLS.format(name=self.name), param="tools")
        prompt = await self._renderer.render(turn)
        return self._begin_answer(prompt) if turn.begins_answer else prompt

    def make_parser(self, turn: Turn, prompt: Prompt) -> Parser:
        return ChatTemplateParser(
            self._family,
            self._tokenizer,
            turn=turn,
            starts_in_reasoning=self._ends_in_reasoning(prompt),
        )

    def remember(
        self,
        turn: Turn,
        prompt: Prompt,
        *,
        token_ids: Sequence[int],
        parser: Parser,
        items: Sequence[Item],
    ) -> None:
        has_end = bool(token_ids) and token_ids[-1] in self.stop_token_ids
        self._renderer.turn_cache.remember(
            prompt.prefix_digest,
            list(transcript(approvals_as_calls(items) if turn.tools else items, turn.tools)),
            token_ids if has_end and parser.is_well_formed else None,
            has_reasoning=parser.reasoning_tokens > 0,
        )

    def constraint(self, turn: Turn, prompt: Prompt) -> Constraint | None:
        if not turn.tools and turn.text.format.get("type") == "text":
            return None
        return constraint(self._family, turn, inside_reasoning=self._ends_in_reasoning(prompt))

    def first_tokens(self, prompt: Prompt, texts: Sequence[str]) -> Sequence[int | None]:
        return self._find_first_tokens(self._plain_tail(prompt), tuple(texts))

    async def encode(self, text: str, turn: Turn) -> Sequence[int]:
        return await self._renderer.encode(text, turn)

    def text(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids)

    def messages(self, token_ids: Sequence[int]) -> list[Json]:
        ids = list(token_ids)
        text = self._tokenizer.decode(ids)
        return [{"type": "raw_message_tokens", "message": text, "tokens": ids}]

    def _ends_in_reasoning(self, prompt: Prompt) -> bool:
        if self._family.think is None:
            return False
        tail = self._tail(prompt)
        # The marker of visible text may end as one that opens reasoning does.
        return tail.endswith(self._reasoning_openings) and not self._has_begun_text(tail)

    def _has_begun_text(self, tail: str) -> bool:
        return self._family.text is not None and tail.endswith(self._family.text[0])

    def _tail(self, prompt: Prompt) -> str:
        return self._tokenizer.decode(prompt.token_ids[-PROMPT_TAIL_TOKENS:]).rstrip()

    def _begin_answer(self, prompt: Prompt) -> Prompt:
        """Return the prompt after reasoning that it has opened, and before visible text."""
        family, tail = self._family, self._tail(prompt)
        if self._has_begun_text(tail):
            return prompt
        ends = (end for begin, end in family.thinks if tail.endswith(family.openings_of(begin)))
        opening = next(ends, "")
        if opening:
            opening += family.message_start or "\n\n"
        if family.text is not None:
            opening += family.header_space + family.text[0]
        if not opening:
            return prompt
        ids = self._tokenizer.encode(opening, special=True)
        return replace(prompt, token_ids=[*prompt.token_ids, *ids])

    def _plain_tail(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the tokens at the end of the prompt that a text may join: those of text."""
        tail = tuple(prompt.token_ids[-PROMPT_TAIL_TOKENS:])
        added = self._added_ids
        after = [place + 1 for place, token in enumerate(tail) if token in added]
        return tail[after[-1] :] if after else tail

    @cached_property
    def _added_ids(self) -> frozenset[int | None]:
        return frozenset(map(self._tokenizer.token_id, self._tokenizer.added_tokens()))

    def _first_tokens_after(
        self, tail: tuple[int, ...], texts: tuple[str, ...]
    ) -> Sequence[int | None]:
        # With what is before it: many tokenizers write the start of a text in another way.
        before = self._tokenizer.decode(tail)
        start = self._tokenizer.encode(before, special=True) if before else []
        found = (self._tokenizer.encode(before + text, special=True) for text in texts)
        return [ids[-1] if ids and ids[:-1] == start else None for ids in found]


def load(
    folder: Path, *, family: str | Family = "auto", template_file: Path | None = None
) -> ChatTemplateFormat:
    """Return the format of a model folder: its template, its tokenizer and its stop tokens.

    `family` is a name in the table, "auto", or a family of one's own. The template of
    `template_file` is used instead of the folder's.
    Raises: SettingsError if a file is missing or broken, or the family is unknown.
    """
    if not folder.is_dir():
        raise SettingsError(f"There is no model folder {str(folder)!r}.")
    if has_only_tekken(folder):
        return _load_tekken(folder, family, template_file)
    template = load_template(folder, template_file)
    tokenizer = FolderTokenizer.load(folder / "tokenizer.json")
    generation = read_json(folder / "generation_config.json")
    eos = special_tokens(read_json(folder / "tokenizer_config.json")).get("eos_token", "")
    stop_token_ids = [*_stop_token_ids(generation), tokenizer.token_id(eos)]
    return _make_format(
        template,
        tokenizer,
        _resolve_family(family, template, tokenizer, read_json(folder / "config.json")),
        stop_token_ids=stop_token_ids,
    )


def has_only_tekken(folder: Path) -> bool:
    """Whether the folder has Mistral's own tokenizer and no other."""
    return (folder / "tekken.json").is_file() and not (folder / "tokenizer.json").is_file()


def _load_tekken(
    folder: Path, family: str | Family, template_file: Path | None
) -> ChatTemplateFormat:
    tokenizer = TekkenTokenizer.load(folder / "tekken.json")
    stop_token_ids = [tokenizer.stop_token_id]
    if template_file:
        template = load_template(folder, template_file)
        named = _resolve_family(family, template, tokenizer, {})
        return _make_format(template, tokenizer, named, stop_token_ids=stop_token_ids)
    if family == "auto":
        family = "mistral" if tokenizer.token_id("[ARGS]") is not None else "mistral_array"
    name, row = find_family(family)
    return ChatTemplateFormat(
        name, row, tokenizer, renderer=MistralRenderer(tokenizer), stop_token_ids=stop_token_ids
    )


def from_hf_tokenizer(
    tokenizer: Any,
    *,
    family: str | Family = "auto",
    template_file: Path | None = None,
    model_type: str = "",
) -> ChatTemplateFormat:
    """Return the format of a transformers tokenizer, with its template or that of a file.

    `model_type`, as in the model's config.json, helps to recognize the family.
    Raises: SettingsError if there is no template, or the family is unknown.
    """
    template = read_template(template_file) if template_file else None
    sources = named_templates(template or getattr(tokenizer, "chat_template", None))
    if not sources:
        raise SettingsError(f"The tokenizer has no chat template. {NAME_A_TEMPLATE}")
    tokens = special_tokens(getattr(tokenizer, "special_tokens_map", {}))
    chat_template, own_tokenizer = ChatTemplate(sources, tokens), HfTokenizer(tokenizer)
    return _make_format(
        chat_template,
        own_tokenizer,
        _resolve_family(family, chat_template, own_tokenizer, {"model_type": model_type}),
        stop_token_ids=[getattr(tokenizer, "eos_token_id", None)],
    )


def _make_format(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    family: tuple[str, Family],
    *,
    stop_token_ids: Sequence[int | None],
) -> ChatTemplateFormat:
    name, row = family
    all_ids = [*stop_token_ids, *(tokenizer.token_id(marker) for marker in row.end_markers)]
    return ChatTemplateFormat(
        name,
        row,
        tokenizer,
        renderer=TemplateRenderer(template, tokenizer, row),
        stop_token_ids=sorted({token for token in all_ids if token is not None}),
    )


def _resolve_family(
    family: str | Family, template: ChatTemplate, tokenizer: Tokenizer, config: Mapping[str, Any]
) -> tuple[str, Family]:
    if family != "auto":
        return find_family(family)
    detection = detect(template, tokenizer, config)
    if detection.family == HARMONY:
        raise SettingsError("This is a model with gpt-oss's format; add `--format harmony`.")
    log(detection)
    return find_family(detection.family)


def find_family(family: str | Family) -> tuple[str, Family]:
    """Return a family with its name. Raises: SettingsError if it is unknown."""
    if isinstance(family, Family):
        return "own", family
    if family not in FAMILIES:
        names = ", ".join(sorted(FAMILIES))
        raise SettingsError(f"There is no chat format {family!r}; choose one of: auto, {names}.")
    return family, FAMILIES[family]


def _stop_token_ids(generation: Mapping[str, Any]) -> list[int]:
    eos = generation.get("eos_token_id")
    ids = eos if isinstance(eos, list) else [eos]
    return [token for token in ids if isinstance(token, int)]
