"""The project's own format among the others (docs/topology-format.md)."""

from __future__ import annotations

import re

from topoccl.topology.files import loads
from topoccl.topology.formats.base import CERTAIN, LIKELY, MAYBE, NO, Format

_VERSION = re.compile(r"""^\s*[{]?\s*["']?topoccl["']?\s*:""", re.MULTILINE)
_HOSTS = re.compile(r"""^\s*[{]?\s*["']?hosts["']?\s*:""", re.MULTILINE)
_YAML = re.compile(r"""(\s*(#.*)?\n)*\s*([{\[&%]|- |---|["']?[\w -]+["']?\s*:(\s|$))""")


def recognise(text: str) -> int:
    head = text[:65536]
    if _VERSION.search(head):
        return CERTAIN
    if _HOSTS.search(head):
        return LIKELY
    return MAYBE if _YAML.match(head) else NO


FORMAT = Format("topoccl", "topoccl's own YAML or JSON", recognise, loads)
