"""The output of `antiphon formats`: the families of models, and a check of one model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from antiphon.adapters.formats.chat_template.detection import HARMONY, UNDETECTED
from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.adapters.formats.format_check import FormatCapabilities, FormatReport, check_format
from antiphon.entrypoints.commands.terminal import printable, printable_json
from antiphon.entrypoints.wiring.models import family_of

EXIT_NO_CALLS = 1
MAX_SHOWN_CHARACTERS = 4000

CAPABILITIES: Sequence[tuple[str, str]] = (
    ("images", "images in messages"),
    ("tool_images", "images in tools' results"),
    ("parallel_calls", "several calls in a message"),
    ("object_arguments", "arguments as objects"),
    ("thinking_switch", "reasoning can be switched off"),
)


def list_formats(*, as_json: bool) -> None:
    """Print every format with the models that it is for."""
    rows = [("harmony", "gpt-oss")]
    rows += [
        (f"chat:{name}", row.models) for name, row in FAMILIES.items() if name not in UNDETECTED
    ]
    if as_json:
        _print_json([{"format": name, "models": models} for name, models in rows])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("FORMAT", no_wrap=True)
    table.add_column("MODELS", overflow="fold")
    for name, models in rows:
        table.add_row(Text(name), Text(models))
    Console(highlight=False).print(table)


def check(path: Path, name: str, template_file: Path | None, *, as_json: bool) -> int:
    """Print what is known about a model's format; return the exit code.

    It is 0 if calls are written and read back, 1 if not.
    Raises: SettingsError if there is nothing to check.
    """
    family = HARMONY if name == HARMONY else family_of(name)
    report = check_format(path, family, template_file=template_file)
    if as_json:
        _print_json(report)
    else:
        Console(highlight=False, soft_wrap=True).print(Text("\n".join(_lines(report))))
    return 0 if report.reads_call and report.prompt else EXIT_NO_CALLS


def _print_json(value: object) -> None:
    text = printable_json(msgspec.json.format(msgspec.json.encode(value)).decode())
    Console(highlight=False, soft_wrap=True).print(Text(text))


def _lines(report: FormatReport) -> Iterator[str]:
    how = "named with --format" if report.is_chosen else "recognized"
    yield f"{report.model}: {report.format} ({how})"
    yield from _list("because", report.reasons)
    yield from _list("close to it", [f"chat:{name}" for name in report.candidates])
    yield from _list("notes", report.notes)
    yield from _capability_lines(report.capabilities)
    yield from _block("A conversation with a tool, as the model sees it", report.prompt)
    yield from _block("A call, as the model writes it", report.written_call)
    yield ""
    yield _verdict(report)


def _verdict(report: FormatReport) -> str:
    if report.reads_call and not report.prompt:
        return (
            "CALLS ARE READ BACK, BUT THE TEMPLATE CANNOT WRITE THEM into a conversation (see the "
            "notes): name a better template with --chat-template."
        )
    if report.reads_call:
        return "Calls are read back."
    if report.knows_calls:
        return "CALLS ARE NOT READ BACK."
    return (
        "NO WAY OF CALLING TOOLS IS RECOGNIZED: requests with tools will be refused. If the model "
        "calls tools, try a format of `antiphon formats` with --format."
    )


def _list(title: str, texts: Sequence[str]) -> Iterator[str]:
    if texts:
        yield f"{title}:"
        yield from (f"  - {printable(text)}" for text in texts)


def _capability_lines(capabilities: FormatCapabilities | None) -> Iterator[str]:
    if capabilities is None:
        return
    yield "the template:"
    for name, text in CAPABILITIES:
        yield f"  - {text}: {'yes' if getattr(capabilities, name) else 'no'}"
    yield f"  - efforts of reasoning: {', '.join(capabilities.efforts) or 'none'}"


def _block(title: str, text: str) -> Iterator[str]:
    if text:
        yield ""
        yield f"{title}:"
        yield from (f"  | {line}" for line in _shorten(printable(text)).split("\n"))


def _shorten(text: str) -> str:
    """Leave out the middle of a long text."""
    if len(text) <= MAX_SHOWN_CHARACTERS:
        return text
    half = MAX_SHOWN_CHARACTERS // 2
    omitted = len(text) - 2 * half
    return f"{text[:half]}\n… {omitted:,} characters …\n{text[-half:]}"
