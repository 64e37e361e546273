"""Prints one closing line, in pytest's form, for all the pytest runs of ``make test``, read from their JUnit files."""

from __future__ import annotations

import sys
from xml.etree import ElementTree


def closing_line(paths: list[str]) -> tuple[str, bool]:
    """The line, and whether nothing failed."""
    total = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    seconds = 0.0
    for path in paths:
        for suite in ElementTree.parse(path).getroot().iter("testsuite"):
            for key in total:
                total[key] += int(suite.get(key, "0"))
            seconds += float(suite.get("time", "0"))
    counts = {
        "failed": total["failures"],
        "passed": total["tests"] - total["failures"] - total["errors"] - total["skipped"],
        "skipped": total["skipped"],
        "errors": total["errors"],
    }
    text = ", ".join(f"{count} {name}" for name, count in counts.items() if count or name == "passed")
    return f"===== {text} in {seconds:.2f}s =====", not (counts["failed"] or counts["errors"])


if __name__ == "__main__":
    line, good = closing_line(sys.argv[1:])
    print(line)
    sys.exit(0 if good else 1)
