"""Which requests a local server takes for those of its user's programs, and which for those of web pages."""

import socket

import pytest

from grpo_core.calls.web_callers import WebCallers


def refused(
    host: str, *origins: str, address: str = "127.0.0.1", names: tuple[str, ...] = ()
) -> str | None:
    return WebCallers(address, names).refusal(hosts=[host], origins=origins, sites=[])


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8000", "localhost", "LocalHost:80", "localhost.", "[::1]:8000", "[0:0:0:0:0:0:0:1]", "127.3.2.1", "[::ffff:127.0.0.1]:1"],
)  # fmt: skip
def test_a_request_that_names_this_machine_is_taken(host: str) -> None:
    assert refused(host) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "evil-localhost", "", " localhost", "localhost:", "localhost:8000:8000", "a@localhost", "localhost/x", "[::1", "[::1].evil.example", "::1", "0x7f.1", "127.1", "2130706433", "10.0.0.1", "0.0.0.0", "[::2]", "localhost,evil.example", "localhost\x00", "l\u00f6calhost", "localhost.."],
)  # fmt: skip
def test_a_name_that_leads_here_by_a_trick_of_dns_is_refused(host: str) -> None:
    problem = refused(host)
    assert problem is not None
    assert problem.endswith("that the server was told to have")


@pytest.mark.parametrize("hosts", [[], ["localhost", "evil.example"], ["localhost", "localhost"]])
def test_exactly_one_host_is_named(hosts: list[str]) -> None:
    assert WebCallers("127.0.0.1").refusal(hosts=hosts, origins=[], sites=[]) is not None


@pytest.mark.parametrize(
    "origin",
    ["null", "", "http://evil.example", "http://localhost:3000", "https://localhost", "http://localhost:8000.evil.example", "http://localhost:8000@evil.example", "http://localhost:8000/", "file://localhost:8000", "localhost:8000"],
)  # fmt: skip
def test_a_page_of_somebody_else_is_refused(origin: str) -> None:
    problem = refused("localhost:8000", origin)
    assert problem is not None
    assert "pages may not use this server" in problem


def test_a_page_of_the_server_itself_is_taken_and_only_one_is_named() -> None:
    assert refused("localhost:8000", "http://LOCALHOST:8000") is None
    assert refused("localhost:8000", *["http://localhost:8000"] * 2) is not None
    assert refused("evil.example", "http://evil.example") is not None


@pytest.mark.parametrize(
    ("site", "taken"),
    [("none", True), ("same-origin", True), ("same-site", False), ("cross-site", False), ("", False)],
)  # fmt: skip
def test_browsers_say_from_which_site_a_page_is(site: str, taken: bool) -> None:
    problem = WebCallers("::1").refusal(hosts=["[::1]"], origins=[], sites=[site])
    assert (problem is None) == taken


def test_a_server_that_others_reach_is_named_by_its_address_or_a_name_that_was_given() -> None:
    for address in ("0.0.0.0", "::", "", "192.168.1.5", "lab.example"):
        assert refused("192.168.1.5:8000", address=address) is None
        assert refused(socket.gethostname(), address=address) is None
        assert refused("evil.example", address=address) is not None
        assert refused("models.lab.example", address=address, names=("Models.Lab.example.",)) is None  # fmt: skip
    assert refused("lab.example:80", address="lab.example") is None


def test_no_host_is_asked_for_where_no_browser_connects_but_a_page_is_refused() -> None:
    callers = WebCallers("127.0.0.1")
    assert callers.refusal(hosts=None, origins=[], sites=[]) is None
    assert callers.refusal(hosts=None, origins=["http://localhost"], sites=[]) is not None
