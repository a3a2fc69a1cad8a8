"""URLs that mean something inside, to one parser or another: no way out of this server may connect.

Each place that takes a URL from somebody is tested with all of them. `{port}` is the port of a
`LoopbackServer`, which counts who came: a URL that gets through is seen there.
"""

# ruff: noqa: RUF001 - letters that look like others are the point

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import httpx

HOSTS = [
    # loopback, as numbers
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "127.0.0.1.",
    "127.0.0.2",
    "127.127.127.127",
    "127.255.255.254",
    "2130706433",
    "0x7f000001",
    "0X7F000001",
    "0x7f.0.0.1",
    "0x7f.1",
    "0x7f.0x0.0x0.0x1",
    "0x000000007f000001",
    "017700000001",
    "0177.0.0.1",
    "0177.0.0.01",
    "0177.1",
    "00000177.0.0.1",
    "127.0x0.0.01",
    "0000127.0.0.1",
    "383.0.0.1",
    "6425673729",
    # loopback, as names
    "localhost",
    "localhost.",
    "LOCALHOST",
    "LocalHost.",
    "localhost.localdomain",
    "ip6-localhost",
    "ip6-loopback",
    # this host
    "0",
    "0.0",
    "0.0.0.0",
    "0x0",
    "00.00.00.00",
    "0.0.0.1",
    "[::]",
    "[0:0:0:0:0:0:0:0]",
    # loopback, in IPv6 and the ways to write IPv4 in it
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[0000:0000:0000:0000:0000:0000:0000:0001]",
    "[::0001]",
    "[::1%25lo]",
    "[::1%lo]",
    "[::1%251]",
    "[::ffff:127.0.0.1]",
    "[::FFFF:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:127.0.0.1]",
    "[::ffff:0:127.0.0.1]",
    "[::127.0.0.1]",
    "[::7f00:1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b:1::7f00:1]",
    "[2002:7f00:1::]",
    "[2002:7f00:0001::1]",
    "[2001:0:7f00:1::]",
    "[2001:0:0:0:0:0:80ff:fffe]",
    # what only a lenient parser makes an address of
    "①②⑦.⓪.⓪.①",
    "127。0。0。1",
    "127．0．0．1",
    "127｡0｡0｡1",
    "１２７.0.0.1",
    "１２７．０．０．１",
    "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ",
    "ｌｏｃａｌｈｏｓｔ",
    "localhoſt",
    "local\u00adhost",
    "127.0.0.1\u200b",
    "%31%32%37.0.0.1",
    "127%2e0%2e0%2e1",
    "%6cocalhost",
    "127.0.0.1%00",
    "127.0.0.1%00.example",
    "127.0.0.1%09",
    "127.0.0.1%0d%0a",
    "127.0.0.1%2f",
    "127.0.0.1%23.example",
    "[127.0.0.1]",
    "[::ffff:0x7f.0.0.1]",
    "[::ffff:127.1]",
    "[v1.127.0.0.1]",
    # a cloud's metadata
    "169.254.169.254",
    "169.254.169.254.",
    "169.254.170.2",
    "169.254.0.1",
    "0251.0376.0251.0376",
    "0251.254.169.254",
    "0xa9.0xfe.0xa9.0xfe",
    "0xa9fea9fe",
    "2852039166",
    "169.16689662",
    "169.254.43518",
    "425.510.425.510",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]",
    "[::169.254.169.254]",
    "[64:ff9b::169.254.169.254]",
    "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b:1::a9fe:a9fe]",
    "[2002:a9fe:a9fe::]",
    "[2001:0:a9fe:a9fe::]",
    "[fd00:ec2::254]",
    "[fd20:ce::254]",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    # networks behind the server, and what belongs to nobody
    "10.0.0.1",
    "10.255.255.255",
    "012.0.0.1",
    "167772161",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "0xc0a80101",
    "100.64.0.1",
    "100.127.255.255",
    "192.0.0.1",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "[fe80::1]",
    "[fe80::1%25lo]",
    "[fe80::1%25eth0]",
    "[fec0::1]",
    "[fc00::1]",
    "[fd12:3456:789a::1]",
    "[ff02::1]",
    "[ff05::1:3]",
    "[100::1]",
    "[2001:db8::1]",
    "[2001:10::1]",
    "[3fff::1]",
    "[5f00::1]",
    "[::ffff:10.0.0.1]",
    "[64:ff9b::10.0.0.1]",
]

MISLEADING = [
    "http://[127.0.0.1:{port}/",
    "http://127.0.0.1:+{port}/",
    "http://127.0.0.1,public.invalid:{port}/",
    "http://@127.0.0.1:{port}/",
    "http://public.invalid%40127.0.0.1:{port}/",
    "http://public.invalid:80#@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}#@public.invalid/",
    "http://127.0.0.1:{port}?@public.invalid/",
    "http://[",
    "http://public.xn--:{port}/",
    "http://127.0.0.1.xn--:{port}/",
]
"""Names that one parser reads otherwise than another."""

NO_PLAIN_URLS = [
    # other schemes, and none
    "file:///etc/passwd",
    "file://localhost/etc/passwd",
    "file://127.0.0.1:{port}/etc/passwd",
    "gopher://127.0.0.1:{port}/_GET%20/",
    "ftp://127.0.0.1:{port}/",
    "ftps://127.0.0.1:{port}/",
    "dict://127.0.0.1:{port}/stat",
    "ldap://127.0.0.1:{port}/",
    "tftp://127.0.0.1:{port}/a",
    "ws://127.0.0.1:{port}/",
    "wss://127.0.0.1:{port}/",
    "unix:///run/docker.sock",
    "http+unix://%2Frun%2Fdocker.sock/info",
    "jar:http://127.0.0.1:{port}/!/",
    "netdoc:///etc/passwd",
    "view-source:http://127.0.0.1:{port}/",
    "url:http://127.0.0.1:{port}/",
    "blob:http://127.0.0.1:{port}/",
    "javascript:alert(1)",
    "stdio:touch",
    "//127.0.0.1:{port}/",
    "/etc/passwd",
    "127.0.0.1:{port}/",
    "localhost:{port}",
    "http:127.0.0.1:{port}/",
    "http:/127.0.0.1:{port}/",
    "http:///127.0.0.1:{port}/",
    "http:////127.0.0.1:{port}/",
    "http:\\\\127.0.0.1:{port}\\",
    "http://",
    "http:///a",
    "https://",
    "http://:{port}/",
    "http://@/",
    "http://?@127.0.0.1:{port}/",
    "http://#@127.0.0.1:{port}/",
    # who is asked is not who it says
    "http://user@127.0.0.1:{port}/",
    "http://user:password@127.0.0.1:{port}/",
    "http://:@127.0.0.1:{port}/",
    "http://public.invalid@127.0.0.1:{port}/",
    "http://public.invalid:80@127.0.0.1:{port}/",
    "http://public.invalid@@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}@public.invalid/",
    "http://127.0.0.1:{port};@public.invalid/",
    "http://127.0.0.1:{port}&@public.invalid#@public.invalid/",
    "http://public.invalid\\@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\\@public.invalid/",
    "http://127.0.0.1:{port}\\.public.invalid/",
    "http://public.invalid\\.127.0.0.1:{port}/",
    "http://public.invalid%5c@127.0.0.1:{port}/",
    "http://127.0.0.1 public.invalid:{port}/",
    # what splits a request or a parser
    "http://127.0.0.1:{port}/\r\nhost: public.invalid",
    "http://127.0.0.1:{port}/\nx: y",
    "http://127.0.0.1:{port}/ x",
    "http://127.0.0.1:{port}/\x00",
    "http://127.0.0.1\r\n:{port}/",
    "http://127.0.0.1\t:{port}/",
    "http://127.0\n.0.1:{port}/",
    "http://loc\talhost:{port}/",
    "ht\ntp://127.0.0.1:{port}/",
    " http://127.0.0.1:{port}/",
    "\x01http://127.0.0.1:{port}/",
    "\ufeffhttp://127.0.0.1:{port}/",
    "http\u003a\u2215\u2215127.0.0.1:{port}/",
    "http://127.0.0.1:{port}/é",
    "http://127.0.0.1:{port}/\ud7ff",
    # ports that are none
    "http://127.0.0.1:99999/",
    "http://127.0.0.1:-{port}/",
    "http://127.0.0.1:abc/",
    "http://127.0.0.1:{port}:80/",
    "http://127.0.0.1:80:{port}/",
    "http://127.0.0.1:{port}.0/",
    "http://127.0.0.1: {port}/",
    "http://127.0.0.1:0x50/",
    # labels that claim to be Punycode, and are not
    *(
        f"http://{host}:{{port}}/"
        for host in (
            "xn--",
            "XN--",
            "xn---",
            "xn--a",
            "xn--0",
            "xn--ls8h",
            "xn--ffff",
            "xn--99999999999",
            "xn--" + "a" * 59,
            "xn--" + "a" * 300,
            "xn--%31",
            "xn--.public.invalid",
            "xn--80a.xn--",
            "xn--a-.127.0.0.1",
            "[xn--]",
        )
    ),
    # brackets
    "http://[::1/",
    "http://::1:{port}/",
    "http://::1]:{port}/",
    "http://[::1]]:{port}/",
    "http://[[::1]]:{port}/",
    "http://[::1]@127.0.0.1:{port}/",
    "http://[::1].public.invalid:{port}/",
    "http://[]:{port}/",
]


def urls(port: int) -> list[str]:
    """Return all of them, for a sink at this port."""
    plain = [f"http://{host}:{port}/" for host in HOSTS]
    odd = [url.replace("{port}", str(port)) for url in (*MISLEADING, *NO_PLAIN_URLS)]
    return [*plain, *odd]


def allowed_hosts(of: Sequence[str]) -> list[str]:
    """Return an operator's list of hosts that has every host of these URLs, at any port.

    With it, only the check of addresses stands between the URLs and what they mean.
    """
    found = set()
    for url in of:
        with suppress(httpx.InvalidURL, ValueError):
            found.add(httpx.URL(url).host.rstrip(".").lower())
    return [f"{host}:*" for host in sorted(found - {""})]


class LoopbackServer:
    """Listens on loopback, IPv4 and IPv6 at one port, and counts who came."""

    def __init__(self) -> None:
        self.connections = 0
        v4 = socket.create_server(("127.0.0.1", 0))
        self.port = int(v4.getsockname()[1])
        self._listening = [v4]
        with suppress(OSError):  # a machine without IPv6, or a port that is taken there
            v6 = socket.create_server(("::1", self.port), family=socket.AF_INET6)
            self._listening.append(v6)
        self._threads = [
            threading.Thread(target=self._count, args=(each,)) for each in self._listening
        ]
        for thread in self._threads:
            thread.start()

    def _count(self, listening: socket.socket) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = listening.accept()
                self.connections += 1
                connection.close()

    def close(self) -> None:
        for each in self._listening:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(5)


@contextmanager
def sink() -> Iterator[LoopbackServer]:
    listening = LoopbackServer()
    try:
        yield listening
    finally:
        listening.close()
