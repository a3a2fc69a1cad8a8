"""Blocks as parts of items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from antiphon.domain.content import InputFile, InputImage, InputText, Part
from antiphon.entrypoints.http.doors.messages.request import (
    Base64Source,
    ContentSource,
    DocumentBlock,
    FileSource,
    ImageBlock,
    SearchResultBlock,
    TextBlock,
    TextSource,
    ToolReferenceBlock,
    UrlSource,
)

EXTENSIONS = {"application/pdf": "pdf", "text/plain": "txt"}
"""Of the names that documents without a title get."""


def parts_of(block: Any) -> Iterator[Part]:
    """Yield the parts that a block of a user's message, or of a tool's result, stands for."""
    match block:
        case TextBlock(text=text):
            if text:
                yield InputText(text=text)
        case ImageBlock():
            yield _image(block)
        case DocumentBlock(source=ContentSource(content=content)):
            yield from _introduction(block.title, block.context)
            blocks = (TextBlock(text=content),) if isinstance(content, str) else content
            for each in blocks:
                yield from parts_of(each)
        case DocumentBlock():
            yield from _introduction(None, block.context)
            yield _file(block)
        case SearchResultBlock(source=source, title=title, content=texts):
            text = "\n".join(each.text for each in texts)
            yield InputText(text=f"{title}\n{source}\n\n{text}")
        case ToolReferenceBlock(tool_name=name):
            yield InputText(text=f"The tool {name} can be called.")


def is_media(block: Any) -> bool:
    return isinstance(block, ImageBlock | DocumentBlock)


def _introduction(*texts: str | None) -> Iterator[Part]:
    for text in texts:
        if text:
            yield InputText(text=text)


def _image(block: ImageBlock) -> Part:
    match block.source:
        case Base64Source(media_type=kind, data=data):
            return InputImage(image_url=f"data:{kind};base64,{data}")
        case UrlSource(url=url):
            return InputImage(image_url=url)
        case FileSource(file_id=file_id):
            return InputImage(file_id=file_id)


def _file(block: DocumentBlock) -> Part:
    match block.source:
        case Base64Source(media_type=kind, data=data):
            name = block.title or f"document.{EXTENSIONS.get(kind, 'bin')}"
            return InputFile(file_data=f"data:{kind};base64,{data}", filename=name)
        case UrlSource(url=url):
            return InputFile(file_url=url)
        case FileSource(file_id=file_id):
            return InputFile(file_id=file_id)
        case TextSource(data=text):
            return InputText(text=f"{block.title}\n\n{text}" if block.title else text)
    raise AssertionError("a document that consists of blocks is no file")
