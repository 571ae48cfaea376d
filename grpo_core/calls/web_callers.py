"""Tell requests of the user's programs from those of web pages, which may ask local servers, too.

A page of a stranger reaches a server of this machine in two ways: it sends a request to its address
(the header Origin then names the page), or it gives its own name the server's address (the header
Host then has that name, which is called DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence

_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_ORIGIN = re.compile(r"https?://([^/?#@\\\s]+)", re.IGNORECASE)
_OWN_SITES = ("none", "same-origin")
_SHOWN_CHARACTERS = 80


class WebCallers:
    """Decide by its headers whether a request is for this server and from no strange page.

    Args:
        address: the address or name at which the server listens.
        names: further names by which clients reach it, as those of a proxy before it.
    """

    def __init__(self, address: str, names: Iterable[str] = ()) -> None:
        self._names = {"localhost", _normal(address), *map(_normal, names)}
        ip = _ip_of(address)
        self._takes_any_ip = False
        if not (ip.is_loopback if ip is not None else _normal(address) == "localhost"):
            # Others reach it on purpose. A page cannot rebind an address, only a name.
            self._takes_any_ip = True
            self._names.add(_normal(socket.gethostname()))

    def refusal(
        self, *, hosts: Sequence[str] | None, origins: Sequence[str], sites: Sequence[str]
    ) -> str | None:
        """Return why a request is refused; None if it is not.

        Args:
            hosts: the values of its header Host; None where no browser can connect, as at a Unix
                socket.
            origins: those of Origin, which browsers send with what a page asks for.
            sites: those of Sec-Fetch-Site.
        """
        if hosts is not None and not (len(hosts) == 1 and self._knows(hosts[0])):
            return (
                f"the host {_shown(hosts)} was named, which is not a name of this server; use "
                "127.0.0.1 or localhost, or the name that the server was told to have"
            )
        own = [host.lower() for host in hosts or ()]
        if not all(_authority(origin) in own for origin in origins) or len(origins) > 1:
            return f"a web page sent the request ({_shown(origins)}); pages may not use this server"
        if not all(site.lower() in _OWN_SITES for site in sites):
            return "a page of another site sent the request; pages may not use this server"
        return None

    def _knows(self, host: str) -> bool:
        match = _AUTHORITY.fullmatch(host)
        if match is None:
            return False
        name = _normal(match.group(1))
        ip = _ip_of(name)
        if ip is None:
            return name in self._names
        return self._takes_any_ip or ip.is_loopback or name in self._names


def _authority(origin: str) -> str | None:
    """Return the host and port of an origin in lower case; None for "null" and the like."""
    match = _ORIGIN.fullmatch(origin)
    return None if match is None else match.group(1).lower()


def _normal(name: str) -> str:
    """Return a name or address in the one form in which it is compared."""
    ip = _ip_of(name)
    return name.lower().removesuffix(".") if ip is None else str(ip)


def _ip_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        ip = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return (ip.ipv4_mapped or ip) if isinstance(ip, ipaddress.IPv6Address) else ip


def _shown(values: Sequence[str]) -> str:
    return repr(", ".join(values)[:_SHOWN_CHARACTERS])
