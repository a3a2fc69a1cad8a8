"""The attributes of spans: the only ones that are exported.

The names are those of the OpenTelemetry semantic conventions for generative AI, as of version
1.41 (development), and a few of ours under `antiphon.`.
"""

from __future__ import annotations

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT_NAME = "gen_ai.agent.name"
CONVERSATION_ID = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"

STATUS = "antiphon.response.status"
BACKGROUND = "antiphon.response.background"
REQUEST_ID = "antiphon.request.id"
QUEUE_SECONDS = "antiphon.queue.seconds"
SERVER = "antiphon.server"
EPOCH = "antiphon.epoch"
TURN_KIND = "antiphon.turn.kind"
ATTEMPTS = "antiphon.turn.attempts"
UNMARKED_CALLS = "antiphon.turn.unmarked_calls"
IS_REPAIRED = "antiphon.turn.is_repaired"
RESUMED_TOKENS = "antiphon.turn.resumed_tokens"
TOOL_SERVER = "antiphon.tool.server"
TOOL_RESULT = "antiphon.tool.result"
OUTPUT_BYTES = "antiphon.tool.output_bytes"

ATTRIBUTES = frozenset(
    value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str)
)
"""All names that a span may have."""
