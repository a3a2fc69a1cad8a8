"""Build the services of conversations, files, vector stores and containers."""

from __future__ import annotations

from antiphon.application.input.items import ReadItems
from antiphon.application.ports import (
    Clock,
    Embeddings,
    FileStore,
    NewId,
    OtherServers,
    Sandboxes,
    Seal,
    Store,
    VectorStores,
)
from antiphon.application.resources import containers as k
from antiphon.application.resources import conversations as c
from antiphon.application.resources import files as f
from antiphon.application.resources import vector_stores as v
from antiphon.application.resources.indexing import IndexFiles
from antiphon.application.resources.quotas import CheckQuota
from antiphon.entrypoints.http.api.containers import ContainerServices
from antiphon.entrypoints.http.api.conversations import ConversationServices
from antiphon.entrypoints.http.api.files import FileServices
from antiphon.entrypoints.http.api.vector_stores import VectorStoreServices
from antiphon.entrypoints.http.options import HttpOptions
from antiphon.entrypoints.settings import Settings


def conversation_services(
    store: Store,
    check_quota: CheckQuota,
    options: HttpOptions,
    *,
    seal: Seal,
    new_id: NewId,
    now: Clock,
) -> ConversationServices:
    read_items = ReadItems(store)
    return ConversationServices(
        create=c.CreateConversation(store, read_items, check_quota, new_id=new_id, now=now),
        get=c.GetConversation(store),
        list=c.ListConversations(store),
        update=c.UpdateConversation(store),
        delete=c.DeleteConversation(store),
        create_items=c.CreateConversationItems(store, read_items, check_quota, new_id=new_id),
        list_items=c.ListConversationItems(store),
        get_item=c.GetConversationItem(store),
        delete_item=c.DeleteConversationItem(store),
        seal=seal,
        options=options,
    )


def file_services(
    settings: Settings, files: FileStore, vector_stores: VectorStores, *, new_id: NewId, now: Clock
) -> FileServices:
    limits = f.FileLimits(max_bytes=settings.max_file_bytes, quota_bytes=settings.keep_file_bytes)
    return FileServices(
        create=f.CreateFile(files, limits=limits, new_id=new_id, now=now),
        list=f.ListFiles(files),
        get=f.GetFile(files),
        get_content=f.GetFileContent(files),
        delete=f.DeleteFile(files, vector_stores),
    )


def vector_store_services(
    stores: VectorStores,
    files: FileStore,
    index_files: IndexFiles,
    embeddings: Embeddings | None,
    options: HttpOptions,
    *,
    new_id: NewId,
    now: Clock,
) -> VectorStoreServices:
    limits, find = v.VectorStoreLimits(), v.FindVectorStore(stores, now=now)
    add = v.AddFiles(stores, files, index_files, limits=limits, now=now)
    return VectorStoreServices(
        stores=stores,
        create=v.CreateVectorStore(stores, add, limits=limits, new_id=new_id, now=now),
        find=find,
        list=v.ListVectorStores(find),
        update=v.UpdateVectorStore(stores, find),
        delete=v.DeleteVectorStore(stores),
        search=v.SearchVectorStores(stores, embeddings),
        create_file=v.CreateStoreFile(stores, find, add),
        create_batch=v.CreateFileBatch(stores, find, add, new_id=new_id, now=now),
        list_files=v.ListStoreFiles(stores),
        options=options,
    )


def container_services(
    sandboxes: Sandboxes | None,
    check: k.CheckContainer,
    files: FileStore,
    others: OtherServers | None,
    options: HttpOptions,
) -> ContainerServices:
    """Return the services of `/v1/containers`; lists are of all servers that it relays to."""
    find = k.FindContainer(sandboxes)
    return ContainerServices(
        create=k.CreateContainer(sandboxes, check),
        find=find,
        list=k.ListContainers(find, others),
        create_file=k.CreateContainerFile(find, files),
        list_files=k.ListContainerFiles(find),
        get_file=k.GetContainerFile(find),
        get_file_content=k.GetContainerFileContent(find),
        delete_file=k.DeleteContainerFile(find),
        options=options,
    )
