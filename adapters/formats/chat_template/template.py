"""A model's own chat template, rendered as Hugging Face renders it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from antiphon.domain.errors import RequestError, SettingsError
from antiphon.domain.json import Json

DEFAULT_TEMPLATE, TOOL_TEMPLATE = "default", "tool_use"
NAME_A_TEMPLATE = "Name one with --chat-template FILE."
REFUSED = "The model's chat template cannot render this conversation: "
DICT_ATTRIBUTES = frozenset(dir(dict))
LOOP_ATTRIBUTES = {name for name in dir(LoopContext) if not name.startswith("_")}
TEXT_METHODS = {name for name in dir(str) if not name.startswith(("_", "format"))}
TOKEN_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class Generation(Extension):
    """`{% generation %}` marks a text for training; in a prompt it is just its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja's convention

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
    # jinja's own filter escapes HTML, which models were not trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def strftime_at(seconds: float, form: str) -> str:
    """Return what a template's `strftime_now` returned at that time, in seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime(form)


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox that knows at once that keys of messages, methods of texts and places in loops are
    safe.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        # For each key, the sandbox would first look for an attribute, and catch the exception.
        if type(obj) is dict and attribute in obj and attribute not in DICT_ATTRIBUTES:
            return obj[attribute]
        if type(obj) is str and attribute in TEXT_METHODS:
            return getattr(obj, attribute)
        if type(obj) is LoopContext and attribute in LOOP_ATTRIBUTES:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


ENVIRONMENT = _environment()


class ChatTemplate:
    """Compiled templates by name, with the special tokens that they write."""

    def __init__(self, sources: Mapping[str, str], tokens: Mapping[str, str]) -> None:
        """Compile the sources. Raises: SettingsError if one does not compile."""
        try:
            self._templates = {
                name: ENVIRONMENT.from_string(source) for name, source in sources.items()
            }
        except jinja2.TemplateError as error:
            raise SettingsError(f"The chat template does not compile: {error}") from error
        self._tokens = tokens
        self._default = DEFAULT_TEMPLATE if DEFAULT_TEMPLATE in sources else next(iter(sources))
        self.source = "\n".join(sources.values())

    def render(
        self, messages: Sequence[Json], tools: Sequence[Json], options: Mapping[str, Any]
    ) -> str:
        """Return the prompt's text. Raises: RequestError where the template refuses."""
        name = TOOL_TEMPLATE if tools and TOOL_TEMPLATE in self._templates else self._default
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
        except Exception as error:  # a template is a program and can fail in any way
            raise RequestError(
                f"{REFUSED}{error}",
                param="input",
            ) from error


def load_template(folder: Path, file: Path | None = None) -> ChatTemplate:
    """Read the template of a model folder, or of `file` instead. Raises: SettingsError."""
    sources = named_templates(read_template(file)) if file else _templates_of(folder)
    if not sources:
        raise SettingsError(f"{str(folder)!r} has no chat template. {NAME_A_TEMPLATE}")
    settings = read_json(folder / "tokenizer_config.json")
    names = read_json(folder / "special_tokens_map.json") | settings
    return ChatTemplate(sources, special_tokens(names))


def read_template(file: Path) -> str:
    """Return the source of a template in a file of its own. Raises: SettingsError."""
    return _read_text(file)


def _templates_of(folder: Path) -> dict[str, str]:
    settings = read_json(folder / "tokenizer_config.json")
    sources = named_templates(settings.get("chat_template"))
    sources |= named_templates(read_json(folder / "chat_template.json").get("chat_template"))
    sources |= {
        file.stem: _read_text(file)
        for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))
    }
    if (folder / "chat_template.jinja").is_file():
        sources[DEFAULT_TEMPLATE] = _read_text(folder / "chat_template.jinja")
    return sources


def special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the template variables `bos_token`, `eos_token`…; a null token is undefined."""
    values = {f"{name}_token": settings.get(f"{name}_token") for name in TOKEN_NAMES}
    texts = {k: v.get("content") if isinstance(v, dict) else v for k, v in values.items()}
    return {k: v for k, v in texts.items() if isinstance(v, str)}


def named_templates(templates: Any) -> dict[str, str]:
    """Return templates by name, from one text, a list of named templates, or a mapping."""
    match templates:
        case str():
            return {DEFAULT_TEMPLATE: templates}
        case list():
            return {template["name"]: template["template"] for template in templates}
        case dict():
            return dict(templates)
    return {}


def read_json(file: Path) -> Json:
    """Return the JSON object in a file, {} if there is no file. Raises: SettingsError."""
    if not file.is_file():
        return {}
    try:
        return msgspec.json.decode(_read_text(file), type=Json)
    except msgspec.DecodeError as error:
        raise SettingsError(f"{str(file)!r} is not JSON: {error}") from error


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{str(file)!r} cannot be read: {error}") from error
