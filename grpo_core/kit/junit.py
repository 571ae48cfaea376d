"""Write a report as JUnit XML, which CI systems display."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from grpo_core.calls.printable import printable
from grpo_core.kit.result import Report

_SKIPPED = "not checked: "


def write_junit(report: Report, path: Path) -> None:
    """Write `report` to `path`.

    Faults become failures, warnings become passed tests with their text as output, and checks that
    were not carried out become skipped tests.

    Raises:
        OSError: The file cannot be written.
    """
    suite = ElementTree.Element(
        "testsuite", name=f"grpo env check {report.environment}", tests=str(len(report.results))
    )
    suite.set("failures", str(len(report.problems)))
    suite.set("skipped", str(sum(result.status == "not_checked" for result in report.results)))
    for result in report.results:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=report.environment,
            name=result.check,
            time=f"{result.seconds:g}",
        )
        message = result.message
        if result.status == "not_checked":
            ElementTree.SubElement(case, "skipped", message=_SKIPPED + message)
        elif result in report.problems:
            ElementTree.SubElement(
                case, "failure", message=message
            ).text = f"{message}\nagain: {printable(result.reproduce)}"
        else:
            ElementTree.SubElement(case, "system-out").text = message
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
