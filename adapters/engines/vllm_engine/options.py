"""Parses vLLM's engine options, as on its command line, to engine arguments and LoRA adapters."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM

from antiphon.domain.errors import SettingsError


class ParsedOptions(NamedTuple):
    arguments: Namespace
    adapters: Sequence[LoRARequest]


def parse(options: Sequence[str], *, model: str, names: Sequence[str]) -> ParsedOptions:
    """Parse the options. Raises: SettingsError for one that vLLM does not know or accept."""
    parser = AsyncEngineArgs.add_cli_args(
        FlexibleArgumentParser(prog="vllm", add_help=False, allow_abbrev=False)
    )
    parser.add_argument("--lora-modules", nargs="+", action="extend", default=[])
    parser.error = _raise_settings_error
    namespace = parser.parse_args(list(options))
    if namespace.model != parser.get_default("model"):
        raise SettingsError("vLLM's option --model is not allowed here: name the model itself.")
    namespace.model = model
    namespace.served_model_name = list(names)
    adapters = [_parse_adapter(i, text) for i, text in enumerate(namespace.lora_modules, start=1)]
    if adapters:
        namespace.enable_lora = True
    return ParsedOptions(namespace, adapters)


def build(arguments: Namespace) -> AsyncLLM:
    """Load the model; blocks for half a minute or more. Raises: any error that vLLM raises."""
    return AsyncLLM.from_engine_args(AsyncEngineArgs.from_cli_args(arguments))


def _raise_settings_error(message: str) -> NoReturn:
    one_line = " ".join(message.split())
    raise SettingsError(f"vLLM rejects its options: {one_line}")


def _parse_adapter(number: int, text: str) -> LoRARequest:
    """Parse `name=path`, or vLLM's other form, a JSON object with `name` and `path`."""
    fields: dict[str, Any] = {}
    if text.startswith("{"):
        try:
            fields = json.loads(text)
        except ValueError:
            _raise_settings_error(f"--lora-modules {text!r} is not JSON")
    elif "=" in text:
        fields["name"], _, fields["path"] = text.partition("=")
    if not (fields.get("name") and fields.get("path")):
        _raise_settings_error(f"--lora-modules expects name=path, not {text!r}")
    return LoRARequest(
        lora_name=fields["name"],
        lora_int_id=number,
        lora_path=fields["path"],
        base_model_name=fields.get("base_model_name"),
    )
