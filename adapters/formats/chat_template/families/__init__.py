"""The table of chat-template families: the markers of each, and how it writes a call.

The parser, the constraint builder, the call writer and the detection read this table; a family is a
row. The parser is lenient and accepts several spellings of a call. The constraint is exact: it
allows the one spelling in `call_form`.

To add a family: a row in the module of its kind, and a golden in tests/golden/chat_template. Only a
new way to read a call needs a reader in payloads/, only a new way to write arguments a style in
argument_styles.py.
"""

from collections.abc import Mapping

from antiphon.adapters.formats.chat_template.families.chatml import CHATML_FAMILIES
from antiphon.adapters.formats.chat_template.families.cohere import COHERE_FAMILIES
from antiphon.adapters.formats.chat_template.families.deepseek import DEEPSEEK_FAMILIES
from antiphon.adapters.formats.chat_template.families.family import CallForm, Family, Region, Signs
from antiphon.adapters.formats.chat_template.families.gemma import GEMMA_FAMILIES
from antiphon.adapters.formats.chat_template.families.glm import GLM_FAMILIES
from antiphon.adapters.formats.chat_template.families.granite import GRANITE_FAMILIES
from antiphon.adapters.formats.chat_template.families.json_lists import JSON_LIST_FAMILIES
from antiphon.adapters.formats.chat_template.families.json_objects import JSON_OBJECT_FAMILIES
from antiphon.adapters.formats.chat_template.families.kimi import KIMI_FAMILIES
from antiphon.adapters.formats.chat_template.families.kimi_k3 import KIMI_K3_FAMILIES
from antiphon.adapters.formats.chat_template.families.llama import LLAMA_FAMILIES
from antiphon.adapters.formats.chat_template.families.marked import MARKED_FAMILIES
from antiphon.adapters.formats.chat_template.families.messages import MESSAGE_FAMILIES
from antiphon.adapters.formats.chat_template.families.minimax import MINIMAX_FAMILIES
from antiphon.adapters.formats.chat_template.families.mistral import MISTRAL_FAMILIES
from antiphon.adapters.formats.chat_template.families.python_calls import PYTHON_FAMILIES
from antiphon.adapters.formats.chat_template.families.qwen import QWEN_FAMILIES
from antiphon.adapters.formats.chat_template.families.tagged import TAGGED_FAMILIES

__all__ = ["FAMILIES", "CallForm", "Family", "Region", "Signs"]

FAMILIES: Mapping[str, Family] = {
    **CHATML_FAMILIES,
    **COHERE_FAMILIES,
    **DEEPSEEK_FAMILIES,
    **GRANITE_FAMILIES,
    **JSON_LIST_FAMILIES,
    **JSON_OBJECT_FAMILIES,
    **KIMI_FAMILIES,
    **GLM_FAMILIES,
    **GEMMA_FAMILIES,
    **KIMI_K3_FAMILIES,
    **LLAMA_FAMILIES,
    **MARKED_FAMILIES,
    **MESSAGE_FAMILIES,
    **MINIMAX_FAMILIES,
    **MISTRAL_FAMILIES,
    **PYTHON_FAMILIES,
    **QWEN_FAMILIES,
    **TAGGED_FAMILIES,
}
