"""vLLM's engine options, as on its command line → its engine arguments and LoRA adapters."""

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


class Parsed(NamedTuple):
    arguments: Namespace
    adapters: Sequence[LoRARequest]


def parse(options: Sequence[str], *, model: str, names: Sequence[str]) -> Parsed:
    """Read the options. Raises: SettingsError for one that vLLM does not know or accept."""
    parser = AsyncEngineArgs.add_cli_args(
        FlexibleArgumentParser(prog="vllm", add_help=False, allow_abbrev=False)
    )
    parser.add_argument("--lora-modules", nargs="+", action="extend", default=[])
    parser.error = _refuse
    namespace = parser.parse_args(list(options))
    if namespace.model != parser.get_default("model"):
        raise SettingsError("The option --model of vLLM has no place here: name the model itself.")
    namespace.model = model
    namespace.served_model_name = list(names)
    adapters = [_adapter(i, text) for i, text in enumerate(namespace.lora_modules, start=1)]
    if adapters:
        namespace.enable_lora = True
    return Parsed(namespace, adapters)


def build(arguments: Namespace) -> AsyncLLM:
    """Load the model; takes half a minute at least, and blocks. Raises: whatever vLLM raises."""
    return AsyncLLM.from_engine_args(AsyncEngineArgs.from_cli_args(arguments))


def _refuse(message: str) -> NoReturn:
    one_line = " ".join(message.split())
    raise SettingsError(f"vLLM refuses its options: {one_line}")


def _adapter(number: int, text: str) -> LoRARequest:
    """Read `name=path`, or vLLM's other form, a JSON object with `name` and `path`."""
    fields: dict[str, Any] = {}
    if text.startswith("{"):
        try:
            fields = json.loads(text)
        except ValueError:
            _refuse(f"--lora-modules {text!r} is not JSON")
    elif "=" in text:
        fields["name"], _, fields["path"] = text.partition("=")
    if not (fields.get("name") and fields.get("path")):
        _refuse(f"--lora-modules expects name=path, not {text!r}")
    return LoRARequest(
        lora_name=fields["name"],
        lora_int_id=number,
        lora_path=fields["path"],
        base_model_name=fields.get("base_model_name"),
    )
