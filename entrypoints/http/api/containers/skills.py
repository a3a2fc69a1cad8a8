"""`/v1/skills`: create, list, retrieve, update, delete; their versions, and their archives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from litestar import Controller, handlers
from litestar.di import NamedDependency
from litestar.types import ASGIApp
from msgspec.structs import replace

from antiphon.application.ports import Clock, NewId
from antiphon.application.resources.skills import archive
from antiphon.application.resources.skills import operations as o
from antiphon.application.resources.skills.contents import SkillContents
from antiphon.application.resources.skills.index import SkillIndex
from antiphon.application.support.threads import run_in_thread
from antiphon.domain.errors import RequestError, missing_parameter
from antiphon.domain.requests.skills import NewDefaultVersion
from antiphon.entrypoints.http.api.files import attachment_headers
from antiphon.entrypoints.http.api.forms import FORM_BYTES, FormPart, boundary_of, parse_form
from antiphon.entrypoints.http.api.json_bodies import read_json
from antiphon.entrypoints.http.api.pagination import After, Limit, Order, as_objects
from antiphon.entrypoints.http.api.parameters import PathId
from antiphon.entrypoints.http.api.requests import HttpRequest, response_headers, tenant_of
from antiphon.entrypoints.http.options import HttpOptions
from antiphon.entrypoints.http.pages.openapi import A_FLAG, SOME_FILES, ZIP, form_of, operation
from antiphon.entrypoints.http.wire.asgi_responses import JsonResponse, StreamedFile
from antiphon.entrypoints.http.wire.bodies import receive_bytes

FILE_NAMES = ("files", "files[]")
"""The names of the parts with files: SDKs send a list with brackets."""

DEFAULT = "default"
FLAGS = {"true": True, "false": False}
MAX_PARTS = archive.MAX_FILES + 10
PART_BYTES = 1024
"""Room for the headers of a part, beside its content."""


class SkillServices:
    """The services that these handlers call."""

    def __init__(
        self,
        index: SkillIndex,
        contents: SkillContents,
        options: HttpOptions,
        *,
        max_file_bytes: int,
        new_id: NewId,
        now: Clock,
    ) -> None:
        add = o.AddVersion(index, contents, new_id=new_id, now=now)
        self.create = o.CreateSkill(add)
        self.list = o.ListSkills(index)
        self.get = o.GetSkill(index)
        self.update = o.UpdateSkill(index)
        self.delete = o.DeleteSkill(index, contents)
        self.get_content = o.GetSkillContent(index, contents)
        self.create_version = o.CreateSkillVersion(add)
        self.list_versions = o.ListSkillVersions(index)
        self.get_version = o.GetSkillVersion(index)
        self.delete_version = o.DeleteSkillVersion(index, contents)
        self.options = options
        files_bytes = min(max_file_bytes, archive.MAX_ARCHIVE_BYTES)
        self.form_limits = replace(
            options.limits, max_bytes=files_bytes + FORM_BYTES + MAX_PARTS * PART_BYTES
        )


Services = NamedDependency[SkillServices]

UPLOAD = form_of(files=SOME_FILES)
VERSION_UPLOAD = form_of({DEFAULT: A_FLAG}, files=SOME_FILES)


class SkillRoutes(Controller):
    """Handlers decode, call one service, and encode."""

    path = "/v1/skills"
    tags = ("Skills",)

    @handlers.post(
        summary="Create a skill",
        operation_class=operation("The skill.", takes=UPLOAD, gives="Skill"),
        status_code=200,
    )
    async def create(self, request: HttpRequest, skills: Services) -> ASGIApp:
        """Send a form (`multipart/form-data`) with `files`: a zip archive, or the files of a
        folder, each with its path as its name. SKILL.md has the name and the description.
        """
        async with _receive_upload(request, skills, ()) as (upload, _):
            created = await skills.create(tenant_of(request), upload)
        return JsonResponse(created, response_headers(request))

    @handlers.get(
        summary="List skills", operation_class=operation("A page of skills.", gives="SkillList")
    )
    async def list(
        self,
        request: HttpRequest,
        skills: Services,
        after: After = None,
        limit: Limit = 20,
        order: Order = "desc",
    ) -> ASGIApp:
        """Those of the operator are not in this list."""
        page = await skills.list(tenant_of(request), after=after, limit=limit, order=order)
        return JsonResponse(as_objects(page), response_headers(request))

    @handlers.get(
        "/{skill_id:str}",
        summary="Retrieve a skill",
        operation_class=operation("The skill.", gives="Skill"),
    )
    async def get(self, request: HttpRequest, skills: Services, skill_id: PathId) -> ASGIApp:
        skill = await skills.get(tenant_of(request), skill_id)
        return JsonResponse(skill, response_headers(request))

    @handlers.post(
        "/{skill_id:str}",
        summary="Choose a skill's default version",
        operation_class=operation("The skill.", takes="NewDefaultVersion", gives="Skill"),
        status_code=200,
    )
    async def update(self, request: HttpRequest, skills: Services, skill_id: PathId) -> ASGIApp:
        decoded = await read_json(request, NewDefaultVersion, skills.options)
        skill = await skills.update(tenant_of(request), skill_id, decoded.request.default_version)
        return JsonResponse(skill, response_headers(request, decoded.ignored))

    @handlers.delete(
        "/{skill_id:str}",
        summary="Delete a skill",
        operation_class=operation("Confirmation of the deletion.", gives="Deleted"),
        status_code=200,
    )
    async def delete(self, request: HttpRequest, skills: Services, skill_id: PathId) -> ASGIApp:
        """This deletes all of its versions. Containers that have one keep it."""
        await skills.delete(tenant_of(request), skill_id)
        answer = {"id": skill_id, "object": "skill.deleted", "deleted": True}
        return JsonResponse(answer, response_headers(request))

    @handlers.get(
        "/{skill_id:str}/content",
        summary="Retrieve a skill's archive",
        operation_class=operation("A zip archive.", gives=ZIP),
    )
    async def content(self, request: HttpRequest, skills: Services, skill_id: PathId) -> ASGIApp:
        """The archive is that of the default version."""
        return await _send_content(request, skills, skill_id)

    @handlers.post(
        "/{skill_id:str}/versions",
        summary="Create a version of a skill",
        operation_class=operation("The version.", takes=VERSION_UPLOAD, gives="SkillVersion"),
        status_code=200,
    )
    async def create_version(
        self, request: HttpRequest, skills: Services, skill_id: PathId
    ) -> ASGIApp:
        """Send a form as for a new skill. With `default` `true`, it becomes the default version."""
        async with _receive_upload(request, skills, (DEFAULT,)) as (upload, fields):
            version = await skills.create_version(
                tenant_of(request), skill_id, upload, is_default=_flag_of(fields.get(DEFAULT))
            )
        return JsonResponse(version, response_headers(request))

    @handlers.get(
        "/{skill_id:str}/versions",
        summary="List a skill's versions",
        operation_class=operation("A page of versions.", gives="SkillVersionList"),
    )
    async def list_versions(
        self,
        request: HttpRequest,
        skills: Services,
        skill_id: PathId,
        after: After = None,
        limit: Limit = 20,
        order: Order = "desc",
    ) -> ASGIApp:
        page = await skills.list_versions(
            tenant_of(request), skill_id, after=after, limit=limit, order=order
        )
        return JsonResponse(as_objects(page), response_headers(request))

    @handlers.get(
        "/{skill_id:str}/versions/{version:str}",
        summary="Retrieve a version of a skill",
        operation_class=operation("The version.", gives="SkillVersion"),
    )
    async def get_version(
        self, request: HttpRequest, skills: Services, skill_id: PathId, version: PathId
    ) -> ASGIApp:
        """A version is a number, or `latest`."""
        found = await skills.get_version(tenant_of(request), skill_id, version)
        return JsonResponse(found, response_headers(request))

    @handlers.delete(
        "/{skill_id:str}/versions/{version:str}",
        summary="Delete a version of a skill",
        operation_class=operation("Confirmation of the deletion.", gives="DeletedSkillVersion"),
        status_code=200,
    )
    async def delete_version(
        self, request: HttpRequest, skills: Services, skill_id: PathId, version: PathId
    ) -> ASGIApp:
        """The only version is deleted with its skill; the default one cannot be, before."""
        deleted = await skills.delete_version(tenant_of(request), skill_id, version)
        answer = {
            "id": deleted.id,
            "object": "skill.version.deleted",
            "deleted": True,
            "version": str(deleted.number),
        }
        return JsonResponse(answer, response_headers(request))

    @handlers.get(
        "/{skill_id:str}/versions/{version:str}/content",
        summary="Retrieve the archive of a version",
        operation_class=operation("A zip archive.", gives=ZIP),
    )
    async def version_content(
        self, request: HttpRequest, skills: Services, skill_id: PathId, version: PathId
    ) -> ASGIApp:
        return await _send_content(request, skills, skill_id, version)


async def _send_content(
    request: HttpRequest, skills: SkillServices, skill_id: str, version: str | None = None
) -> ASGIApp:
    file, blocks = await skills.get_content(tenant_of(request), skill_id, version)
    headers = {**attachment_headers(file.filename), "content-length": str(file.bytes)}
    headers["content-type"] = "application/zip"
    return StreamedFile(blocks, {**headers, **response_headers(request)})


@asynccontextmanager
async def _receive_upload(
    request: HttpRequest, skills: SkillServices, fields: tuple[str, ...]
) -> AsyncIterator[tuple[o.SkillUpload, dict[str, str]]]:
    """Yield the files of the form and its other fields; their bytes are in work until then.

    Raises: RequestError, UnsupportedMediaType, BodyTooLarge, ConcurrencyLimitExceeded,
    ServerOverloaded.
    """
    boundary = boundary_of(request)
    async with receive_bytes(request, skills.form_limits) as body:
        parts = await run_in_thread(len(body), _parse, body, boundary)
        del body
        files, others = _sort_parts(parts, fields)
        yield files, others


def _parse(body: bytes, boundary: str) -> list[FormPart]:
    return parse_form(body, boundary, max_parts=MAX_PARTS)


def _sort_parts(
    parts: list[FormPart], fields: tuple[str, ...]
) -> tuple[o.SkillUpload, dict[str, str]]:
    """Raises: RequestError."""
    files: list[FormPart] = []
    others: dict[str, str] = {}
    for part in parts:
        if part.name in FILE_NAMES and part.filename is not None:
            files.append(part)
        elif part.name in fields and part.filename is None and part.name not in others:
            others[part.name] = part.content.decode(errors="replace")
        else:
            name = part.name[:100]
            allowed = " and ".join(map(repr, ("files", *fields)))
            raise RequestError(
                f"The form has {allowed}; files have a file name, and a field is sent once.",
                param=name,
                code="unsupported_parameter",
            )
    if not files:
        raise missing_parameter("files")
    upload = o.SkillUpload(
        files=[(part.filename or "", part.content) for part in files],
        is_archive=len(files) == 1 and _is_archive(files[0]),
    )
    return upload, others


def _is_archive(part: FormPart) -> bool:
    return (part.filename or "").lower().endswith(".zip") or part.content_type == "application/zip"


def _flag_of(text: str | None) -> bool:
    """Raises: RequestError."""
    if text is None:
        return False
    if text not in FLAGS:
        raise RequestError(
            f"Invalid value: {text[:100]!r}. Supported values are: 'true' and 'false'.",
            param=DEFAULT,
            code="invalid_value",
        )
    return FLAGS[text]
