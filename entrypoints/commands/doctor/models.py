"""Checks of the models: their formats, and their engines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from antiphon.adapters.formats.format_check import check_format
from antiphon.application.model.supervision import SupervisedModel
from antiphon.entrypoints.commands.doctor.findings import (
    Check,
    Finding,
    Installation,
    ok,
    problem,
    skipped,
    warning,
)
from antiphon.entrypoints.settings import ModelTable, Settings
from antiphon.entrypoints.wiring.models import build_models, family_of

START_S = 900.0
"""A large model takes minutes to load."""
WITH_TOKENS = ("vllm", "vllm_http")
HARMONY = "harmony"


def check_formats(installation: Installation) -> Iterator[Finding]:
    """Yield for each model whether a tool call is written and read back in its format."""
    settings = installation.settings
    for table in settings.models or [_table_of(settings)]:
        yield _check_format(table)


def _table_of(settings: Settings) -> ModelTable:
    return ModelTable(
        name=(settings.model or "the scripted models",),
        engine=settings.engine,
        format=settings.format,
        chat_template=settings.chat_template,
        options={"model": settings.model},
    )


def _check_format(table: ModelTable) -> Finding:
    name = table.name[0]
    if table.engine not in WITH_TOKENS:
        return skipped(f"{name}: the engine {table.engine} has its own format.")
    folder = table.tokenizer or Path(str(table.options.get("model"))).expanduser()
    if not folder.exists():
        return skipped(
            f"{name}: the model is not a folder here. `antiphon formats check FOLDER` checks one."
        )
    family = HARMONY if table.format == HARMONY else family_of(table.format)
    report = check_format(folder, family, template_file=table.chat_template)
    notes = " ".join(report.notes)
    advice = f"Run `antiphon formats check {folder}`, or try another --format or --chat-template."
    if not report.knows_calls:
        return warning(f"{name}: no way of calling tools is known for {report.format}.", advice)
    if not report.prompt:
        return problem(f"{name}: the template cannot write tool calls. {notes}".strip(), advice)
    if not report.reads_call:
        return problem(f"{name}: a tool call is not read back. {notes}".strip(), advice)
    return ok(f"{name}: a tool call is written and read back as {report.format}. {notes}".strip())


async def check_engines(installation: Installation) -> Sequence[Finding]:
    """Return for each model whether its engine starts and answers. They start side by side."""
    if installation.quick:
        return [skipped("--quick leaves the models out.")]
    return await asyncio.gather(*map(_start, build_models(installation.settings)))


async def _start(model: SupervisedModel) -> Finding:
    name = model.names[0]
    try:
        await model.start()
        await model.check()
        return ok(
            f"{name} is ready: format {model.format_name}, {model.context_length:,} tokens of "
            "context."
        )
    except Exception as error:  # an operator's own engine may raise anything
        return problem(
            f"{name} does not start: {error or type(error).__name__}",
            "Check the model's name or folder, its options, and the server that runs it.",
        )
    finally:
        await model.aclose()


CHECKS: Sequence[Check] = (
    Check(name="formats", run=check_formats, limit_s=60),
    Check(name="models", run=check_engines, limit_s=START_S),
)
