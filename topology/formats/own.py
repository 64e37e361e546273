"""The project's own format among the others (docs/topology-format.md)."""

from __future__ import annotations

import re

from topoccl.topology.files import loads
from topoccl.topology.formats.base import CERTAIN, LIKELY, MAYBE, NO, Format

# Possessive, so that no text makes them slow.
_VERSION = re.compile(r"""^[ \t]*+(?:\{[ \t]*+)?["']?topoccl["']?[ \t]*+:""", re.MULTILINE)
_HOSTS = re.compile(r"""^[ \t]*+(?:\{[ \t]*+)?["']?hosts["']?[ \t]*+:""", re.MULTILINE)
_YAML = re.compile(r"""(?:[ \t]*+(?:\#[^\n]*+)?\n)*+[ \t]*+(?:[{\[&%]|- |---|["']?[\w-][\w -]{0,60}["']?[ \t]*+:(?:\s|$))""")


def recognise(text: str) -> int:
    head = text[:65536].replace("\r\n", "\n")
    if _VERSION.search(head):
        return CERTAIN
    if _HOSTS.search(head):
        return LIKELY
    return MAYBE if _YAML.match(head) else NO


FORMAT = Format("topoccl", "topoccl's own YAML or JSON", recognise, loads)
