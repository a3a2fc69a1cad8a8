"""`/v1/files`: upload, list, retrieve, delete."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from litestar import Controller, handlers
from litestar.datastructures import UploadFile
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter
from litestar.types import ASGIApp

from antiphon.application.ports import Clock, FileStore, NewId, StoredFile, VectorStores
from antiphon.application.resources import files as f
from antiphon.application.support.threads import run_in_thread
from antiphon.domain.errors import missing_parameter
from antiphon.entrypoints.http.api.forms import check_parts, read_file, read_form
from antiphon.entrypoints.http.api.parameters import PathId, QueryText
from antiphon.entrypoints.http.api.requests import HttpRequest, response_headers, tenant_of
from antiphon.entrypoints.http.pages.openapi import A_FILE, A_STRING, BYTES, form_of, operation
from antiphon.entrypoints.http.wire.asgi_responses import JsonResponse, StreamedFile

FORM_FIELDS = frozenset({"file", "purpose"})
FILE_JSON_BYTES = 512
"""About the size of a file in a list, counted generously: its object is made in Python too."""


class FileServices:
    """The services that these handlers call."""

    def __init__(
        self,
        files: FileStore,
        vector_stores: VectorStores,
        limits: f.FileLimits,
        *,
        new_id: NewId,
        now: Clock,
    ) -> None:
        self.create = f.CreateFile(files, limits=limits, new_id=new_id, now=now)
        self.list = f.ListFiles(files)
        self.get = f.GetFile(files)
        self.get_content = f.GetFileContent(files)
        self.delete = f.DeleteFile(files, vector_stores)


class Files(Controller):
    """Handlers read the form or the query, call one service, and encode."""

    path = "/v1/files"
    tags = ("Files",)

    @handlers.post(
        summary="Upload a file",
        operation_class=operation(
            "The file.", takes=form_of(file=A_FILE, purpose=A_STRING), gives="File"
        ),
        status_code=200,
    )
    async def create(
        self, request: HttpRequest, file_services: NamedDependency[FileServices]
    ) -> ASGIApp:
        """Send a form (`multipart/form-data`) with `file` and `purpose`."""
        form = await read_form(request)
        try:
            file, purpose = _read_fields(form)
            async with read_file(request, file) as content:
                added = await file_services.create(
                    tenant_of(request),
                    filename=sanitize_filename(file.filename),
                    purpose=purpose,
                    content=content,
                )
        finally:
            await form.close()
        return JsonResponse(_to_json(added), response_headers(request))

    @handlers.get(
        summary="List files", operation_class=operation("A page of files.", gives="FileList")
    )
    async def list(
        self,
        request: HttpRequest,
        file_services: NamedDependency[FileServices],
        after: QueryText = None,
        limit: Annotated[int, QueryParameter(ge=1, le=10_000)] = 10_000,
        order: FromQuery[Literal["asc", "desc"]] = "desc",
        purpose: QueryText = None,
    ) -> ASGIApp:
        page = await file_services.list(
            tenant_of(request), after=after, limit=limit, order=order, purpose=purpose
        )
        body = await run_in_thread(len(page.files) * FILE_JSON_BYTES, _encode_page, page)
        return JsonResponse(body, response_headers(request))

    @handlers.get(
        "/{file_id:str}",
        summary="Retrieve a file",
        operation_class=operation("The file.", gives="File"),
    )
    async def get(
        self,
        request: HttpRequest,
        file_services: NamedDependency[FileServices],
        file_id: PathId,
    ) -> ASGIApp:
        return JsonResponse(
            _to_json(await file_services.get(tenant_of(request), file_id)),
            response_headers(request),
        )

    @handlers.get(
        "/{file_id:str}/content",
        summary="Retrieve a file's content",
        operation_class=operation("The content.", gives=BYTES),
    )
    async def content(
        self,
        request: HttpRequest,
        file_services: NamedDependency[FileServices],
        file_id: PathId,
    ) -> ASGIApp:
        file, blocks = await file_services.get_content(tenant_of(request), file_id)
        headers = {**attachment_headers(file.filename), "content-length": str(file.bytes)}
        return StreamedFile(blocks, {**headers, **response_headers(request)})

    @handlers.delete(
        "/{file_id:str}",
        summary="Delete a file",
        operation_class=operation("Confirmation of the deletion.", gives="Deleted"),
        status_code=200,
    )
    async def delete(
        self,
        request: HttpRequest,
        file_services: NamedDependency[FileServices],
        file_id: PathId,
    ) -> ASGIApp:
        await file_services.delete(tenant_of(request), file_id)
        answer = {"id": file_id, "object": "file", "deleted": True}
        return JsonResponse(answer, response_headers(request))


def _read_fields(form: Any) -> tuple[UploadFile, str]:
    check_parts(form, FORM_FIELDS)
    file, purpose = form.get("file"), form.get("purpose")
    if not isinstance(file, UploadFile):
        raise missing_parameter("file")
    if not isinstance(purpose, str):
        raise missing_parameter("purpose")
    return file, purpose


def attachment_headers(filename: str) -> dict[str, str]:
    """Return the headers of a file's content.

    They keep browsers from showing an uploaded file as a page of this server.
    """
    return {
        "content-type": "application/octet-stream",
        "content-disposition": f"attachment; filename*=UTF-8''{quote(filename, safe='')}",
        "x-content-type-options": "nosniff",
    }


def sanitize_filename(filename: str) -> str:
    """Return the name without folders and control characters. It is only for display."""
    base_name = filename.replace("\\", "/").rpartition("/")[2]
    return "".join(char for char in base_name if char.isprintable())[:255] or "file"


def _encode_page(page: f.FilePage) -> bytes:
    return msgspec.json.encode(
        {
            "object": "list",
            "data": [_to_json(file) for file in page.files],
            "first_id": page.files[0].id if page.files else None,
            "last_id": page.files[-1].id if page.files else None,
            "has_more": page.has_more,
        }
    )


def _to_json(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_at,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }
