"""A skill as a zip archive: which archives are skills, and what is in them.

Nothing of an archive is trusted: neither its sizes and counts, nor the names of its files. It is
read in pieces, and only SKILL.md is ever in memory.

    entries      1000 at most, 500 of them files; no links, devices or encrypted files
    names        relative, without `..`, backslashes or control characters, none twice
    sizes        25 MiB a file and 50 MiB together, unpacked
    SKILL.md     one, at the top or in the only folder at the top, with YAML front matter
"""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml
from msgspec import Struct

from antiphon.domain.errors import RequestError
from antiphon.domain.requests.skills import check_description, check_name, invalid_skill

MAX_ARCHIVE_BYTES = 50 * 1024**2
MAX_FILES = 500
MAX_ENTRIES = 1000
"""Folders have entries, too."""
MAX_FILE_BYTES = 25 * 1024**2
MAX_UNPACKED_BYTES = 50 * 1024**2
MAX_FRONT_MATTER_BYTES = 8 * 1024
MAX_BRACKETS = 200
"""Of a front matter: the time that PyYAML takes for nested ones grows with their square."""
MAX_PATH_BYTES = 512
MAX_PART_BYTES = 255
MAX_DEPTH = 16

MAX_DIRECTORY_BYTES = 1024**2
"""Of the list of entries in the archive, which `zipfile` reads as a whole."""

CHUNK_BYTES = 64 * 1024

MANIFEST = "SKILL.md"

IGNORED = ("__MACOSX", ".DS_Store")
"""Names that archivers add on their own."""

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
ENCRYPTED = 0x1
EPOCH = (1980, 1, 1, 0, 0, 0)


class SkillFacts(Struct, frozen=True, kw_only=True):
    """The facts of an archive: the front matter of its SKILL.md, and its size when unpacked."""

    name: str
    description: str
    unpacked_bytes: int


def read_facts(archive: bytes, path: str) -> SkillFacts:
    """Read the whole archive and check it. Raises: RequestError with this path."""
    unpacked_bytes = 0
    manifest = b""
    for name, chunks in unpack(archive, path):
        is_manifest = _is_manifest(name)
        for chunk in chunks:
            unpacked_bytes += len(chunk)
            if is_manifest and len(manifest) <= MAX_FRONT_MATTER_BYTES:
                manifest += chunk
    name, description = _read_front_matter(manifest, path)
    return SkillFacts(name=name, description=description, unpacked_bytes=unpacked_bytes)


def unpack(archive: bytes, path: str) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield each file: its path in the skill's folder, and its content in pieces.

    The pieces of a file must be read before the next file. Raises: RequestError with this path.
    """
    if len(archive) > MAX_ARCHIVE_BYTES:
        raise invalid_skill(
            f"The archive of a skill may have up to {MAX_ARCHIVE_BYTES} bytes.", path
        )
    with _reading(path), zipfile.ZipFile(_BoundedFile(archive)) as opened:
        entries = _files_of(opened, path)
        remaining_bytes = MAX_UNPACKED_BYTES
        for name, entry in entries.items():
            chunks = _chunks_of(opened, entry, remaining_bytes, path)
            size = 0

            def counted(chunks: Iterator[bytes] = chunks) -> Iterator[bytes]:
                nonlocal size
                with _reading(path):
                    for chunk in chunks:
                        size += len(chunk)
                        yield chunk

            yield name, counted()
            remaining_bytes -= size


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return the archive of these files. The same files make the same archive."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in sorted(files.items()):
            entry = zipfile.ZipInfo(name, date_time=EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, body)
    return content.getvalue()


class _BoundedFile(io.BytesIO):
    """An archive of which no piece larger than the list of its entries can be read at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = len(self.getbuffer()) - self.tell() if size is None or size < 0 else size
        if wanted > MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile("the list of entries is too long")
        return super().read(wanted)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turn the errors of `zipfile` into those of a request."""
    try:
        yield
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        IndexError,
        NotImplementedError,
        OSError,
        RuntimeError,
        UnicodeError,
        ValueError,
    ) as error:
        reason = str(error).rstrip(".")[:200] or "it ends too early"
        raise invalid_skill(f"The skill is no zip archive that can be read: {reason}.", path) from (
            None
        )


def _files_of(archive: zipfile.ZipFile, path: str) -> dict[str, zipfile.ZipInfo]:
    """Return the archive's files by their paths in the skill's folder. Raises: RequestError."""
    entries = archive.infolist()
    if len(entries) > MAX_ENTRIES:
        raise _too_many(path)
    files: dict[str, zipfile.ZipInfo] = {}
    for entry in entries:
        if not is_ignored(name := entry.orig_filename):
            _check_entry(entry, path)
            check_path(name.removesuffix("/"), path)
            if not entry.is_dir():
                if name in files:
                    raise invalid_skill(f"The skill has two files {name[:100]!r}.", path)
                files[name] = entry
    return {name: files[full_name] for full_name, name in skill_paths(list(files), path).items()}


def is_ignored(name: str) -> bool:
    return any(part in IGNORED for part in name.split("/"))


def skill_paths(names: list[str], path: str) -> dict[str, str]:
    """Return the path in the skill's folder of each of these files, all of which are valid.

    If all files are in one folder, that is the skill's. Raises: RequestError.
    """
    if len(names) > MAX_FILES:
        raise _too_many(path)
    top, _, _ = names[0].partition("/") if names else ("", "", "")
    inner = {name: name.removeprefix(f"{top}/") for name in names}
    if not any(map(_is_manifest, names)) and all(inner[name] != name for name in names):
        paths = inner
    else:
        paths = {name: name for name in names}
    manifests = [name for name in paths.values() if _is_manifest(name)]
    if len(manifests) != 1:
        raise invalid_skill(
            f"A skill has one SKILL.md, at the top or in the only folder at the top; this one has "
            f"{len(manifests) or 'none'}.",
            path,
        )
    folders = {folder for name in paths.values() for folder in _folders_of(name)}
    if both := folders & set(paths.values()):
        raise invalid_skill(f"{min(both)[:100]!r} is both a file and a folder.", path)
    # Models are told of SKILL.md, however the file is spelled.
    return {full: MANIFEST if _is_manifest(name) else name for full, name in paths.items()}


def _folders_of(name: str) -> Iterator[str]:
    parts = name.split("/")[:-1]
    for count in range(1, len(parts) + 1):
        yield "/".join(parts[:count])


def _is_manifest(name: str) -> bool:
    return name.lower() == MANIFEST.lower()


def _too_many(path: str) -> RequestError:
    return invalid_skill(f"A skill has up to {MAX_FILES} files.", path)


def _check_entry(entry: zipfile.ZipInfo, path: str) -> None:
    """Raises: RequestError for an entry that is neither a plain file nor a folder."""
    kind = stat.S_IFMT(entry.external_attr >> 16)
    name = entry.orig_filename[:100]
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise invalid_skill(f"{name!r} is a link or a device; a skill has files and folders.", path)
    if entry.flag_bits & ENCRYPTED:
        raise invalid_skill(f"{name!r} is encrypted.", path)
    if entry.compress_type not in METHODS:
        raise invalid_skill(f"{name!r} is not compressed by deflate, nor stored as it is.", path)


def check_path(name: str, path: str) -> None:
    """Raises: RequestError for a name that is no relative path of a file."""
    parts = name.split("/")
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        sizes = []
    if (
        not sizes
        or not all(0 < size <= MAX_PART_BYTES for size in sizes)
        or sum(sizes) + len(sizes) > MAX_PATH_BYTES
        or len(parts) > MAX_DEPTH
        or any(part in (".", "..") for part in parts)
        or "\\" in name
        or not name.isprintable()
    ):
        raise invalid_skill(
            f"{name[:100]!r} is no valid path. A file has a relative path of up to "
            f"{MAX_PATH_BYTES} bytes and {MAX_DEPTH} parts, without '..', backslashes and control "
            "characters.",
            path,
        )


def _chunks_of(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, remaining_bytes: int, path: str
) -> Iterator[bytes]:
    limit_bytes = min(MAX_FILE_BYTES, remaining_bytes)
    size = 0
    with archive.open(entry) as file:
        while chunk := file.read(CHUNK_BYTES):
            size += len(chunk)
            if size > limit_bytes:
                raise invalid_skill(
                    f"A skill has up to {MAX_UNPACKED_BYTES} bytes when it is unpacked, and each "
                    f"file up to {MAX_FILE_BYTES}.",
                    path,
                )
            yield chunk


def _read_front_matter(manifest: bytes, path: str) -> tuple[str, str]:
    """Return the name and the description in a SKILL.md. Raises: RequestError."""
    head, fence, _ = (
        manifest[:MAX_FRONT_MATTER_BYTES]
        .replace(b"\r\n", b"\n")
        .removeprefix(b"\xef\xbb\xbf")
        .partition(b"\n---")
    )
    if not fence or not head.startswith(b"---\n"):
        raise invalid_skill(
            "SKILL.md begins with YAML front matter between two lines '---', of up to "
            f"{MAX_FRONT_MATTER_BYTES} bytes.",
            path,
        )
    fields = _parse_yaml(head.removeprefix(b"---\n"), path)
    name, description = (_field_of(fields, each, path) for each in ("name", "description"))
    return check_name(name, path), check_description(description, path)


def _parse_yaml(text: bytes, path: str) -> Mapping[Any, Any]:
    if text.count(b"[") + text.count(b"{") > MAX_BRACKETS:
        raise invalid_skill(
            f"The front matter of SKILL.md has more than {MAX_BRACKETS} brackets.", path
        )
    # The base loader makes texts, lists and mappings only: no tag, number or date means anything,
    # and nothing that an alias names is copied.
    try:
        fields = yaml.load(text.decode(), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError):
        fields = None
    if not isinstance(fields, dict):
        raise invalid_skill("The front matter of SKILL.md is not a mapping in YAML.", path)
    return fields


def _field_of(fields: Mapping[Any, Any], name: str, path: str) -> object:
    if name not in fields:
        raise invalid_skill(f"The front matter of SKILL.md has no {name!r}.", path)
    return fields[name]
