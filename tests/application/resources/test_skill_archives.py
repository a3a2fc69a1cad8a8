"""Which archives are skills: a table of odd ones, and what holds for all of them."""

from __future__ import annotations

import io
import stat
import struct
import time
import tracemalloc
import zipfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.skill_archives import manifest, skill, zipped

from antiphon.application.resources.skills.archive import (
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_UNPACKED_BYTES,
    pack,
    read_facts,
    unpack,
)
from antiphon.domain.errors import RequestError

GOOD = manifest()


def refusal_of(archive: bytes) -> str:
    """Return why an archive is no skill."""
    with pytest.raises(RequestError) as refused:
        read_facts(archive, "files")
    assert refused.value.param == "files"
    assert refused.value.code == "invalid_value"
    return refused.value.message


def with_entries(*entries: tuple[zipfile.ZipInfo | str, bytes], method: int = 8) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        for entry, body in (("SKILL.md", GOOD.encode()), *entries):
            archive.writestr(entry, body)
    return content.getvalue()


def of_kind(kind: int, name: str = "a") -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (kind | 0o777) << 16
    return entry


def files_of(archive: bytes) -> dict[str, bytes]:
    return {name: b"".join(chunks) for name, chunks in unpack(archive, "files")}


@pytest.mark.parametrize(
    "files",
    [
        {"SKILL.md": GOOD, "a/b.txt": "b"},
        {"any folder/SKILL.md": GOOD, "any folder/a/b.txt": "b"},
        {"x/skill.md": GOOD, "x/a/b.txt": "b", "__MACOSX/x/._SKILL.md": "?", "x/.DS_Store": "?"},
        {"x/": "", "x/a/": "", "x/SKILL.md": GOOD, "x/a/b.txt": "b"},
    ],
)
def test_a_skill_is_at_the_top_or_in_the_only_folder(files: dict[str, str]) -> None:
    archive = zipped(files)
    facts = read_facts(archive, "files")
    assert (facts.name, facts.description) == ("csv-tools", "Reads CSV files.")
    assert files_of(archive) == {"SKILL.md": GOOD.encode(), "a/b.txt": b"b"}
    assert facts.unpacked_bytes == len(GOOD) + 1


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "one SKILL.md"),
        ({"a/SKILL.md": GOOD, "b/x": ""}, "one SKILL.md"),
        ({"a/b/SKILL.md": GOOD}, "one SKILL.md"),
        ({"SKILL.md": GOOD, "skill.md": GOOD}, "one SKILL.md"),
        ({"README.md": GOOD}, "one SKILL.md"),
        ({"SKILL.md": GOOD, "../a": ""}, "no valid path"),
        ({"SKILL.md": GOOD, "a/../../b": ""}, "no valid path"),
        ({"SKILL.md": GOOD, "/etc/passwd": ""}, "no valid path"),
        ({"SKILL.md": GOOD, "a//b": ""}, "no valid path"),
        ({"SKILL.md": GOOD, "./a": ""}, "no valid path"),
        ({"SKILL.md": GOOD, "..\\a": ""}, "no valid path"),
        ({"SKILL.md": GOOD, "C:\\a": ""}, "no valid path"),
        ({"SKILL.md": GOOD, "a\nb": ""}, "no valid path"),
        ({"SKILL.md": GOOD, "\u202egpj.a": ""}, "no valid path"),
        ({"SKILL.md": GOOD, "x" * 300: ""}, "no valid path"),
        ({"SKILL.md": GOOD, "/".join("a" * 17): ""}, "no valid path"),
        ({"SKILL.md": GOOD, "a": "", "a/b": ""}, "both a file and a folder"),
        ({"SKILL.md": GOOD, **{str(n): "" for n in range(MAX_FILES)}}, "500 files"),
    ],
)
def test_paths_that_lead_out_or_clash_are_refused(files: dict[str, str], reason: str) -> None:
    assert reason in refusal_of(zipped(files))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "front matter"),
        ("# A skill", "front matter"),
        ("---\nname: a\n", "front matter"),
        ("---\nname: a\ndescription: " + "x" * 20_000 + "\n---\n", "front matter"),
        ("---\n- a\n---\n", "not a mapping"),
        ("---\n: : :\n  - [\n---\n", "not a mapping"),
        ("---\n" + "[" * 200 + "\n---\n", "not a mapping"),
        ("---\n" + "- " * 4000 + "\n---\n", "not a mapping"),
        ("---\n" + "[" * 5000 + "\n---\n", "200 brackets"),
        ("---\n" + "{" * 5000 + "\n---\n", "200 brackets"),
        ("---\nname: a\n---\n", "'description'"),
        ("---\ndescription: a\n---\n", "'name'"),
        (manifest(name="Csv"), "lowercase"),
        (manifest(name="csv_tools"), "lowercase"),
        (manifest(name="-csv"), "lowercase"),
        (manifest(name="csv--tools"), "lowercase"),
        (manifest(name="../csv"), "lowercase"),
        (manifest(name="c" * 65), "lowercase"),
        (manifest(name="[a]"), "lowercase"),
        (manifest(description="''"), "1024 characters"),
        (manifest(description="'  '"), "1024 characters"),
        (manifest(description="x" * 1025), "1024 characters"),
        (manifest(description="[a]"), "1024 characters"),
    ],
)
def test_a_skill_md_without_a_valid_front_matter_is_refused(text: str, reason: str) -> None:
    assert reason in refusal_of(zipped({"SKILL.md": text}))


def test_a_front_matter_is_texts_and_nothing_that_yaml_can_do() -> None:
    metadata = "metadata:\n  a: !!python/name:os.x y\n"
    text = f"---\nname: 123\ndescription: >\n  Two\n  lines.\n{metadata}---\n"
    facts = read_facts(zipped({"SKILL.md": "\ufeff" + text.replace("\n", "\r\n")}), "files")
    assert (facts.name, facts.description) == ("123", "Two lines.")


def test_aliases_in_a_front_matter_cost_nothing() -> None:
    levels = "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9 if n else 'x'}]\n" for n in range(40))
    merged = "".join(f"m{n}: &m{n}\n  <<: [*m{n - 1}, *m{n - 1}]\n" for n in range(1, 40))
    text = f"---\n{levels}m0: &m0 {{k: v}}\n{merged}name: a\ndescription: b\n---\n"
    began = time.perf_counter()
    assert read_facts(zipped({"SKILL.md": text}), "files").name == "a"
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("name", [b"\x00", b"/", b"\x00a"])
def test_a_name_without_a_letter_is_no_path(name: bytes) -> None:
    archive = with_entries(("x" * len(name), b""))
    assert "no valid path" in refusal_of(archive.replace(b"x" * len(name), name))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_links_and_devices_are_refused(kind: int) -> None:
    assert "link or a device" in refusal_of(with_entries((of_kind(kind), b"/etc/passwd")))


def test_plain_files_of_any_mode_are_taken() -> None:
    assert read_facts(with_entries((of_kind(stat.S_IFREG), b"")), "files")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_that_is_there_twice_is_refused() -> None:
    assert "two files 'a'" in refusal_of(with_entries(("a", b"1"), ("a", b"2")))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_of_compression_are_refused(method: int) -> None:
    assert "deflate" in refusal_of(with_entries(("a", b"a" * 1000), method=method))


def test_an_encrypted_file_is_refused() -> None:
    archive = bytearray(with_entries())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        archive[archive.index(signature) + offset] |= 1
    assert "encrypted" in refusal_of(bytes(archive))


def test_bombs_are_stopped_at_their_bounds() -> None:
    zeros = bytes(MAX_FILE_BYTES)
    one = zipped({"SKILL.md": GOOD, "a": zeros + b"0"})
    many = zipped({"SKILL.md": GOOD, "a": zeros, "b": zeros})
    assert len(many) < 100_000
    tracemalloc.start()
    try:
        for archive in (one, many):
            assert str(MAX_UNPACKED_BYTES) in refusal_of(archive)
            with pytest.raises(RequestError):
                files_of(archive[:-30])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 * 1024**2


def test_entries_that_share_one_file_are_refused() -> None:
    """The list has sixty entries, of which fifty-nine point at one file of a megabyte."""
    archive = with_entries(("a", bytes(1024**2)))
    start, at, end = (
        archive.index(b"PK\x01\x02"),
        archive.rindex(b"PK\x01\x02"),
        archive.index(b"PK\x05\x06"),
    )
    more = b"".join(archive[at : end - 1] + bytes([0xC0 + number]) for number in range(58))
    listed = archive[start:end] + more
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 60, 60, len(listed), start, 0)
    # Their names are not those before the content, which is the sign of such archives.
    assert "no zip archive" in refusal_of(archive[:start] + listed + tail)


def test_ten_thousand_entries_are_refused_soon() -> None:
    archive = zipped({"SKILL.md": GOOD, **{f"{n}/": "" for n in range(10_000)}})
    began = time.perf_counter()
    assert "500 files" in refusal_of(archive)
    thirty_thousand = zipped({f"{n}/": "" for n in range(30_000)})
    assert "list of entries is too long" in refusal_of(thirty_thousand)
    assert time.perf_counter() - began < 10


DAMAGE = st.tuples(
    st.integers(0, 10_000),
    st.binary(max_size=20) | st.sampled_from([b"PK\x05\x06", b"PK\x01\x02", b"\xff" * 4, b"\0\0"]),
    st.booleans(),
)


@given(st.lists(DAMAGE, min_size=1, max_size=6))
def test_a_damaged_archive_is_refused_or_read_and_nothing_else(
    damages: list[tuple[int, bytes, bool]],
) -> None:
    damaged = skill(a="a" * 100)
    for at, damage, replaces in damages:
        at %= len(damaged)
        damaged = damaged[:at] + damage + damaged[at + (len(damage) if replaces else 0) :]
    try:
        facts = read_facts(damaged, "files")
    except RequestError as refused:
        assert refused.param == "files"
    else:
        assert sum(map(len, files_of(damaged).values())) == facts.unpacked_bytes


ODD_NAMES = ["..", "a/../b", "/a", "a/b", "a", "a/b/c", "SKILL.md", "a/SKILL.md", "a\x00b"]
LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\x00")
NAMES = st.text(LETTERS, min_size=1, max_size=30) | st.sampled_from(ODD_NAMES)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@given(st.dictionaries(NAMES, st.binary(max_size=50), max_size=6), st.booleans())
def test_no_file_of_a_skill_leads_out_of_its_folder(files: dict[str, Any], valid: bool) -> None:
    if valid:
        files = {**files, "SKILL.md": GOOD.encode()}
    try:
        read_facts(zipped(files), "files")
    except RequestError as refused:
        assert refused.param == "files"
        return
    found = files_of(zipped(files))
    assert len(found) <= len(files)
    for name in found:
        parts = name.split("/")
        assert not {"", ".", ".."} & set(parts)
        assert not {"\\", "\0", "\n"} & set(name)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}(\.[a-z]{1,3})?", fullmatch=True), st.binary()))
def test_what_was_packed_is_unpacked_and_packed_the_same(files: dict[str, bytes]) -> None:
    files = {**files, "SKILL.md": GOOD.encode()}
    archive = pack(files)
    assert files_of(archive) == files
    assert pack(dict(reversed(files.items()))) == archive
