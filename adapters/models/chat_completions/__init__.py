"""Any server with a Chat Completions API as a model (docs/guides/upstreams.md)."""

from antiphon.adapters.models.chat_completions.model import ChatCompletionsModel
from antiphon.adapters.models.chat_completions.options import ChatOptions

__all__ = ["ChatCompletionsModel", "ChatOptions"]
