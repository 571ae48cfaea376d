"""Serve the page and its data to this machine's browser alone, while a run goes on or later."""

from __future__ import annotations

import hmac
import json
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from grpo_core import ConfigError
from grpo_core.api.runs import finite
from grpo_core.calls.web_callers import WebCallers
from grpo_report.html.compared import comparison
from grpo_report.html.forensics import forensics
from grpo_report.html.opened import OpenRun
from grpo_report.html.page import html_page, security_policy
from grpo_report.html.query import read_parameters, read_query, whole_number
from grpo_report.html.single import page_data

_LOG = logging.getLogger(__name__)
HOST = "127.0.0.1"
_CALLERS = WebCallers(HOST)

Parameters = Mapping[str, str]


class ReportData:
    """Answer the questions of the page from the runs on disk."""

    def __init__(self, runs: Sequence[OpenRun]) -> None:
        self._runs = runs
        self._lock = Lock()
        self._findings: dict[int, tuple[str, Any]] = {}
        """The forensics of a run, with the revision that they are of."""
        self.answers: Mapping[str, Callable[[Parameters], Any]] = {
            "page": self._page,
            "metrics": lambda asked: self._run(asked).metrics(),
            "groups": lambda asked: self._run(asked).groups(read_query(asked)),
            "count": lambda asked: self._run(asked).count(read_query(asked)),
            "group": self._group,
            "vocabulary": lambda asked: self._run(asked).vocabulary,
            "forensics": self._forensics,
            "comparison": self._comparison,
        }

    def _page(self, asked: Parameters) -> dict[str, Any]:
        """Return the facts of the runs, after reading what is new in them."""
        with self._lock:
            for run in self._runs:
                run.index.extend()
            return page_data(self._runs, served=True)

    def _run(self, asked: Parameters) -> OpenRun:
        return self._runs[self._run_number(asked, "run")]

    def _run_number(self, asked: Parameters, name: str) -> int:
        number = whole_number(asked, name) or 0
        if not 0 <= number < len(self._runs):
            raise ConfigError(f"{name} is {number}, and there are {len(self._runs)} runs from 0 on")
        return number

    def _group(self, asked: Parameters) -> Any:
        step, number = (whole_number(asked, name) for name in ("step", "number"))
        if step is None or number is None:
            raise ConfigError("step and number are missing; name a group by both and its split")
        return self._run(asked).group_at(step, asked.get("split", ""), number)

    def _forensics(self, asked: Parameters) -> Any:
        number = self._run_number(asked, "run")
        with self._lock:  # one at a time: it reads a part of the log
            revision = self._runs[number].revision
            if self._findings.get(number, ("", None))[0] != revision:
                self._findings[number] = (revision, forensics(self._runs[number]))
            return self._findings[number][1]

    def _comparison(self, asked: Parameters) -> Any:
        first, second = (self._run_number(asked, name) for name in ("first", "second"))
        return comparison(self._runs, first, second)


class ReportServer(ThreadingHTTPServer):
    """Listen on this machine; only who knows the address with its token gets an answer."""

    daemon_threads = True

    def __init__(self, data: ReportData, *, port: int = 0, token: str | None = None) -> None:
        """Bind the port.

        Args:
            data: answers the questions.
            port: the port; 0: a free one.
            token: the secret part of the address; by default a random one.

        Raises:
            ConfigError: the port is taken or may not be used.
        """
        self.data = data
        self.token = token or secrets.token_urlsafe(16)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"port {port} of {HOST} cannot be used: {error.strerror or error}; "
                "choose another --port, or 0 for a free one"
            ) from None

    @property
    def url(self) -> str:
        """Return the address of the page."""
        return f"http://{HOST}:{self.server_address[1]}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log why a connection failed, such as a browser that closed it."""
        _LOG.debug("the connection of %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """Answer one request: the page, or data as JSON."""

    server: ReportServer
    protocol_version = "HTTP/1.1"
    timeout = 60
    server_version = "grpo-core"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a GET; there are no other methods, because nothing can be changed."""
        try:
            address = urlsplit(self.path)
        except ValueError as error:  # such as "//[", which is no address
            self._answer(HTTPStatus.BAD_REQUEST, {"error": f"the address is wrong: {error}"})
            return
        token, slash, path = address.path.removeprefix("/").partition("/")
        if not self._is_for_us() or not hmac.compare_digest(
            token.encode(), self.server.token.encode()
        ):
            self._answer(
                HTTPStatus.FORBIDDEN, {"error": "open the address that grpo watch printed"}
            )
        elif not slash:  # the page asks for addresses below its own
            self._send(HTTPStatus.FOUND, "", "text/plain", {"Location": f"/{token}/"})
        elif path == "":
            self._send(HTTPStatus.OK, html_page({"served": True}), "text/html; charset=utf-8")
        elif (name := path.removeprefix("api/")) in self.server.data.answers:
            self._answer(*self._data(name, address.query))
        else:
            self._answer(HTTPStatus.NOT_FOUND, {"error": "there is nothing at this address"})

    def _is_for_us(self) -> bool:
        """Tell whether the request names this machine, and comes from this page or a person."""
        headers = self.headers
        hosts, origins, sites = (
            headers.get_all(name, []) for name in ("Host", "Origin", "Sec-Fetch-Site")
        )
        return _CALLERS.refusal(hosts=hosts, origins=origins, sites=sites) is None

    def _data(self, name: str, query: str) -> tuple[HTTPStatus, Any]:
        try:
            return HTTPStatus.OK, self.server.data.answers[name](read_parameters(query))
        except ConfigError as error:
            return HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except Exception as error:  # noqa: BLE001  # the page says it; the server goes on
            _LOG.exception("the question %s failed", name)
            return HTTPStatus.INTERNAL_SERVER_ERROR, {
                "error": f"{type(error).__name__} in the server: {error}; its terminal says more"
            }

    def _answer(self, status: HTTPStatus, data: Any) -> None:
        text = json.dumps(finite(data), allow_nan=False)
        self._send(status, text, "application/json")

    def _send(
        self, status: HTTPStatus, text: str, kind: str, more: Mapping[str, str] | None = None
    ) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", f"{security_policy(served=True)}; frame-ancestors 'none'"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            *(more or {}).items(),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log requests for those who look for a fault; the terminal stays quiet."""
        _LOG.debug(format, *args)
