"""A model's own chat template, run as Hugging Face runs it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from antiphon.domain.errors import RequestError, SettingsError
from antiphon.domain.json import Json

DEFAULT, WITH_TOOLS = "default", "tool_use"
TOKEN_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class Generation(Extension):
    """`{% generation %}` marks what training counts; for a prompt it is its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own way to say it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes HTML, which no model was trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _strftime_now
    return environment


ENVIRONMENT = _environment()


class ChatTemplate:
    """Named templates, compiled once, with the special tokens that they write."""

    def __init__(self, sources: Mapping[str, str], tokens: Mapping[str, str]) -> None:
        """Raises: SettingsError for a template that does not compile."""
        try:
            self._templates = {
                name: ENVIRONMENT.from_string(source) for name, source in sources.items()
            }
        except jinja2.TemplateError as error:
            raise SettingsError(f"The chat template does not compile: {error}") from error
        self._tokens = tokens
        self._default = DEFAULT if DEFAULT in sources else next(iter(sources))
        self.source = "\n".join(sources.values())

    def render(
        self, messages: Sequence[Json], tools: Sequence[Json], options: Mapping[str, Any]
    ) -> str:
        """Return the prompt's text. Raises: RequestError where the template refuses."""
        name = WITH_TOOLS if tools and WITH_TOOLS in self._templates else self._default
        variables = {
            "add_generation_prompt": True,
            "documents": None,
            **self._tokens,
            **options,
            "messages": messages,
            "tools": tools or None,
        }
        try:
            return self._templates[name].render(variables)
        except Exception as error:  # a template is a program: it can fail in any way
            raise RequestError(
                f"The model's chat template cannot render this conversation: {error}",
                param="input",
            ) from error


def load_template(folder: Path) -> ChatTemplate:
    """Read the template of a model folder. Raises: SettingsError."""
    settings = read_json(folder / "tokenizer_config.json")
    sources = named_templates(settings.get("chat_template"))
    sources |= named_templates(read_json(folder / "chat_template.json").get("chat_template"))
    sources |= {
        file.stem: _read(file)
        for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))
    }
    if (folder / "chat_template.jinja").is_file():
        sources[DEFAULT] = _read(folder / "chat_template.jinja")
    if not sources:
        raise SettingsError(f"{str(folder)!r} has no chat template")
    known = read_json(folder / "special_tokens_map.json") | settings
    return ChatTemplate(sources, special_tokens(known))


def special_tokens(known: Mapping[str, Any]) -> dict[str, str]:
    """Return `bos_token`, `eos_token`… as templates know them: what is null is undefined."""
    values = {f"{name}_token": known.get(f"{name}_token") for name in TOKEN_NAMES}
    texts = {k: v.get("content") if isinstance(v, dict) else v for k, v in values.items()}
    return {k: v for k, v in texts.items() if isinstance(v, str)}


def named_templates(given: Any) -> dict[str, str]:
    """Return templates by name, given as one text, a list of named ones, or a mapping."""
    match given:
        case str():
            return {DEFAULT: given}
        case list():
            return {each["name"]: each["template"] for each in given}
        case dict():
            return dict(given)
    return {}


def read_json(file: Path) -> Json:
    """Return a file's object; an empty one if there is no such file. Raises: SettingsError."""
    if not file.is_file():
        return {}
    try:
        return msgspec.json.decode(_read(file), type=Json)
    except msgspec.DecodeError as error:
        raise SettingsError(f"{str(file)!r} is not JSON: {error}") from error


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{str(file)!r} cannot be read: {error}") from error
