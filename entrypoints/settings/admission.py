"""The settings of admission: what runs, what waits, and for how long."""

from __future__ import annotations

from typing import Annotated

from antiphon.entrypoints.settings.about import ADMISSION, MODELS, about
from antiphon.entrypoints.settings.adapters import AdapterSettings


class AdmissionSettings(AdapterSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Struct has one base, so each part of the settings extends the part before it."""

    max_runs: Annotated[
        int,
        about(
            ADMISSION,
            "Foreground responses that this server runs at the same time. Others wait. If clients "
            "need keys, one tenant may have three quarters of these, and of the next two.",
            ge=1,
        ),
    ] = 256
    max_queued: Annotated[
        int,
        about(
            ADMISSION,
            "Foreground responses that may wait for others to end. Any more are refused at once: "
            "with 429 if the tenant has its share of them, with 503 if the server is full.",
            ge=0,
        ),
    ] = 1024
    max_prompt_tokens: Annotated[
        int,
        about(
            ADMISSION,
            "Prompt tokens of the foreground responses that run at the same time, in total.",
            ge=1,
        ),
    ] = 4_000_000
    queue_s: Annotated[
        float,
        about(ADMISSION, "Seconds that a foreground response may wait before it is refused.", gt=0),
    ] = 30.0
    first_token_s: Annotated[
        float,
        about(
            ADMISSION,
            "Seconds that the engine has for the first token of a turn. The response then fails.",
            gt=0,
        ),
    ] = 300.0
    between_tokens_s: Annotated[
        float,
        about(
            ADMISSION,
            "Seconds that the engine has for each further token. The response then fails, with "
            "the output so far.",
            gt=0,
        ),
    ] = 120.0
    engine_restarts: Annotated[
        int,
        about(
            MODELS,
            "How often in a row an engine that has died, or does not start, is started again. The "
            "server then ends with exit code 3, unless another model may still work.",
            ge=0,
        ),
    ] = 5
