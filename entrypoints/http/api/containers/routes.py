"""`/v1/containers`: create, list, retrieve, delete; and their files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from litestar import Controller, handlers
from litestar.datastructures import UploadFile
from litestar.di import NamedDependency
from litestar.types import ASGIApp
from msgspec import Struct

from antiphon.application.ports import FileStore, OtherServers, Sandboxes
from antiphon.application.resources import containers as c
from antiphon.domain.errors import missing_parameter
from antiphon.domain.requests.decoding import DecodedRequest, decode_request_body
from antiphon.domain.requests.request import NewContainer, NewContainerFile
from antiphon.entrypoints.http.api.files import attachment_headers, sanitize_filename
from antiphon.entrypoints.http.api.forms import check_parts, read_file, read_form
from antiphon.entrypoints.http.api.pagination import After, Limit, Order
from antiphon.entrypoints.http.api.parameters import PathId, QueryText
from antiphon.entrypoints.http.api.requests import (
    HttpRequest,
    header,
    is_relayed,
    response_headers,
    tenant_of,
)
from antiphon.entrypoints.http.options import HttpOptions
from antiphon.entrypoints.http.pages.openapi import A_FILE, BYTES, form_of, json_of, operation
from antiphon.entrypoints.http.wire.asgi_responses import JsonResponse, StreamedFile
from antiphon.entrypoints.http.wire.bodies import (
    decode_in_thread,
    hold_body,
    receive_body,
    reject_unknown_fields,
)

B = TypeVar("B", bound=Struct)

FORM_FIELDS = frozenset({"file", "file_id"})


class ContainerServices:
    """The services that these handlers call. Lists are of all `others` that answer, too."""

    def __init__(
        self,
        sandboxes: Sandboxes | None,
        check: c.CheckContainer,
        files: FileStore,
        others: OtherServers | None,
        options: HttpOptions,
    ) -> None:
        self.create = c.CreateContainer(sandboxes, check)
        self.find = c.FindContainer(sandboxes)
        self.list = c.ListContainers(self.find, others)
        self.create_file = c.CreateContainerFile(self.find, files)
        self.list_files = c.ListContainerFiles(self.find)
        self.get_file = c.GetContainerFile(self.find)
        self.get_file_content = c.GetContainerFileContent(self.find)
        self.delete_file = c.DeleteContainerFile(self.find)
        self.options = options


Services = NamedDependency[ContainerServices]


class Containers(Controller):
    """Handlers decode, call one service, and encode."""

    path = "/v1/containers"
    tags = ("Containers",)

    @handlers.post(
        summary="Create a container",
        operation_class=operation("The container.", takes="NewContainer", gives="Container"),
        status_code=200,
    )
    async def create(self, request: HttpRequest, containers: Services) -> ASGIApp:
        """The container starts with copies of the named files, and expires when it is idle."""
        decoded = await _read_json(request, NewContainer, containers.options)
        created = await containers.create(tenant_of(request), decoded.request)
        return JsonResponse(created, response_headers(request, decoded.ignored))

    @handlers.get(
        summary="List containers",
        operation_class=operation("A page of containers.", gives="ContainerList"),
    )
    async def list(
        self,
        request: HttpRequest,
        containers: Services,
        after: After = None,
        limit: Limit = 20,
        order: Order = "desc",
        name: QueryText = None,
    ) -> ASGIApp:
        """Lists the containers of all servers of the store that have an address and answer."""
        page = await containers.list(
            tenant_of(request),
            after=after,
            limit=limit,
            order=order,
            name=name,
            everywhere=not is_relayed(request),
        )
        return JsonResponse(_as_list(page), response_headers(request))

    @handlers.get(
        "/{container_id:str}",
        summary="Retrieve a container",
        operation_class=operation("The container.", gives="Container"),
    )
    async def get(
        self, request: HttpRequest, containers: Services, container_id: PathId
    ) -> ASGIApp:
        container = containers.find(tenant_of(request), container_id)
        return JsonResponse(c.render_container(container), response_headers(request))

    @handlers.delete(
        "/{container_id:str}",
        summary="Delete a container",
        operation_class=operation("Confirmation of the deletion.", gives="Deleted"),
        status_code=200,
    )
    async def delete(
        self, request: HttpRequest, containers: Services, container_id: PathId
    ) -> ASGIApp:
        """This deletes its files and ends its processes."""
        await containers.find(tenant_of(request), container_id).aclose()
        answer = {"id": container_id, "object": "container.deleted", "deleted": True}
        return JsonResponse(answer, response_headers(request))

    @handlers.post(
        "/{container_id:str}/files",
        summary="Add a file to a container",
        operation_class=operation(
            "The file.",
            takes={**form_of(file=A_FILE), **json_of("NewContainerFile")},
            gives="ContainerFile",
        ),
        status_code=200,
    )
    async def add_file(
        self, request: HttpRequest, containers: Services, container_id: PathId
    ) -> ASGIApp:
        """Send a form (`multipart/form-data`) with `file`, or the `file_id` of an uploaded file."""
        async with _receive_file(request, containers.options) as (file_id, name, content):
            added = await containers.create_file(
                tenant_of(request), container_id, file_id=file_id, name=name, content=content
            )
        return JsonResponse(added, response_headers(request))

    @handlers.get(
        "/{container_id:str}/files",
        summary="List a container's files",
        operation_class=operation("A page of files.", gives="ContainerFileList"),
    )
    async def list_files(
        self,
        request: HttpRequest,
        containers: Services,
        container_id: PathId,
        after: After = None,
        limit: Limit = 20,
        order: Order = "desc",
    ) -> ASGIApp:
        """Lists up to 1000 files: those of the user, and those that code and commands wrote."""
        page = await containers.list_files(
            tenant_of(request), container_id, after=after, limit=limit, order=order
        )
        return JsonResponse(_as_list(page), response_headers(request))

    @handlers.get(
        "/{container_id:str}/files/{file_id:str}",
        summary="Retrieve a container file",
        operation_class=operation("The file.", gives="ContainerFile"),
    )
    async def get_file(
        self,
        request: HttpRequest,
        containers: Services,
        container_id: PathId,
        file_id: PathId,
    ) -> ASGIApp:
        file = await containers.get_file(tenant_of(request), container_id, file_id)
        return JsonResponse(file, response_headers(request))

    @handlers.get(
        "/{container_id:str}/files/{file_id:str}/content",
        summary="Retrieve a container file's content",
        operation_class=operation("The content.", gives=BYTES),
    )
    async def content(
        self,
        request: HttpRequest,
        containers: Services,
        container_id: PathId,
        file_id: PathId,
    ) -> ASGIApp:
        name, blocks = await containers.get_file_content(tenant_of(request), container_id, file_id)
        return StreamedFile(blocks, {**attachment_headers(name), **response_headers(request)})

    @handlers.delete(
        "/{container_id:str}/files/{file_id:str}",
        summary="Delete a container file",
        operation_class=operation("Confirmation of the deletion.", gives="Deleted"),
        status_code=200,
    )
    async def delete_file(
        self,
        request: HttpRequest,
        containers: Services,
        container_id: PathId,
        file_id: PathId,
    ) -> ASGIApp:
        await containers.delete_file(tenant_of(request), container_id, file_id)
        answer = {"id": file_id, "object": "container.file.deleted", "deleted": True}
        return JsonResponse(answer, response_headers(request))


@asynccontextmanager
async def _receive_file(
    request: HttpRequest, options: HttpOptions
) -> AsyncIterator[tuple[str | None, str, bytes]]:
    """Yield the id of an uploaded file, or the name and content of the file in the form."""
    kind = header(request, b"content-type").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        decoded = await _read_json(request, NewContainerFile, options)
        yield decoded.request.file_id, "", b""
        return
    form = await read_form(request)
    try:
        check_parts(form, FORM_FIELDS)
        file, file_id = form.get("file"), form.get("file_id")
        if isinstance(file, UploadFile):
            async with read_file(request, file) as content:
                yield None, sanitize_filename(file.filename), content
        elif isinstance(file_id, str):
            yield file_id, "", b""
        else:
            raise missing_parameter("file")
    finally:
        await form.close()


async def _read_json(
    request: HttpRequest, kind: type[B], options: HttpOptions
) -> DecodedRequest[B]:
    with hold_body(request, options.limits) as held:
        body = await receive_body(request, options.limits, held)
        decoded = await decode_in_thread(body, decode_request_body, kind)
    if options.strict_unknown_fields:
        reject_unknown_fields(decoded)
    return decoded


def _as_list(page: c.ContainerPage[dict[str, Any]]) -> dict[str, Any]:
    return {
        "object": "list",
        "data": page.data,
        "first_id": page.data[0]["id"] if page.data else None,
        "last_id": page.data[-1]["id"] if page.data else None,
        "has_more": page.has_more,
    }
