"""Skills for tests: folders as zip archives, honest ones and others."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]


def manifest(name: str = "csv-tools", description: str = "Reads CSV files.", body: str = "") -> str:
    return f"---\nname: {name}\ndescription: {description}\n---\n{body}"


def zipped(files: Mapping[str, str | bytes]) -> bytes:
    """Return an archive of these files, as common tools make it."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in files.items():
            entry = zipfile.ZipInfo(name)  # with a time that is always the same
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, body)
    return content.getvalue()


def skill(name: str = "csv-tools", *, body: str = "Look.", **files: str) -> bytes:
    """Return the archive of a skill whose folder has its name."""
    written = {"SKILL.md": manifest(name, body=body), **files}
    return zipped({f"{name}/{path}": text for path, text in written.items()})


def inline(archive: bytes, name: str = "csv-tools", description: str = "Reads CSV.") -> Json:
    data = base64.b64encode(archive).decode()
    source = {"type": "base64", "media_type": "application/zip", "data": data}
    return {"type": "inline", "name": name, "description": description, "source": source}


def reference(skill_id: str, version: str | None = None) -> Json:
    found = {"type": "skill_reference", "skill_id": skill_id}
    return found if version is None else {**found, "version": version}
