"""Connections through the operator's proxy: a tunnel to an address that was checked before."""

from __future__ import annotations

import asyncio
import ipaddress

import httpcore

from antiphon.adapters.outgoing.egress import Proxy

MAX_HEAD_BYTES = 16 * 1024
TIMEOUT_S = 15.0


class ProxyRefused(httpcore.ConnectError):
    """The proxy opens no tunnel to an address."""


async def open_tunnel(
    backend: httpcore.AsyncNetworkBackend,
    proxy: Proxy,
    address: str,
    port: int,
    timeout: float | None = None,
) -> httpcore.AsyncNetworkStream:
    """Return a connection to the address, through the proxy (RFC 9110, section 9.3.6).

    Raises: httpcore.ConnectError, httpcore.ConnectTimeout.
    """
    try:
        stream = await backend.connect_tcp(proxy.host, proxy.port, timeout)
    except httpcore.ConnectError as error:
        raise ProxyRefused("the proxy could not be reached") from error
    try:
        async with asyncio.timeout(timeout or TIMEOUT_S):
            await _connect(stream, proxy, address, port)
    except TimeoutError as error:
        await stream.aclose()
        raise httpcore.ConnectTimeout("The proxy did not answer.") from error
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        await stream.aclose()
        raise ProxyRefused(str(error) or "the proxy closed the connection") from error
    except BaseException:
        await stream.aclose()
        raise
    return stream


async def _connect(
    stream: httpcore.AsyncNetworkStream, proxy: Proxy, address: str, port: int
) -> None:
    is_v6 = ipaddress.ip_address(address).version == 6
    target = f"[{address}]:{port}" if is_v6 else f"{address}:{port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.authorization is not None:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    await stream.write("\r\n".join([*lines, "", ""]).encode())
    head = b""
    while b"\r\n\r\n" not in head:
        part = await stream.read(4096)
        head += part
        if not part or len(head) > MAX_HEAD_BYTES:
            raise httpcore.RemoteProtocolError("the proxy sent no answer")
    status_line, _, _ = head.partition(b"\r\n")
    version, _, rest = status_line.partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest.startswith(b"2"):
        status = rest[:3].decode("ascii", "replace")
        raise httpcore.RemoteProtocolError(f"the proxy answered with status {status}")
    # Nobody has spoken to the server yet, so what follows the head would be the proxy's own.
    if not head.endswith(b"\r\n\r\n") or head.count(b"\r\n\r\n") > 1:
        raise httpcore.RemoteProtocolError("the proxy sent more than its answer")
