"""What looks like a description of a fabric and is none: recognised, to say what it is and what to give instead."""

from __future__ import annotations

import re
from collections.abc import Callable

from topoccl.topology.formats.base import CERTAIN, NO, Format
from topoccl.topology.formats.support import HEAD, plain
from topoccl.topology.graph import Topology, TopologyError

_ACCESS = {"OK", "CNS", "GNS", "TNS", "NS"}
_ACCESS_CELLS = _ACCESS | {"X", "DR", "U", "NA", "N/A"}


def _peer_access(text: str) -> bool:
    """Rows such as ``GPU0 X OK NS``."""
    for line in text.split("\n"):
        words = line.split()
        if len(words) > 1 and re.fullmatch(r"GPU\d+", words[0]) and _ACCESS_CELLS.issuperset(words[1:]) and not _ACCESS.isdisjoint(words):
            return True
    return False


def _has(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern, re.MULTILINE)
    return lambda text: compiled.search(text) is not None


_WHAT: tuple[tuple[str, Callable[[str], bool], str], ...] = (
    (
        "nvidia-smi topo -p2p",
        _peer_access,
        "which GPUs may access each other (nvidia-smi topo -p2p), not how they are linked; give the output of nvidia-smi topo -m",
    ),
    (
        "ns-3 logical dimensions",
        _has(r'\{\s*"logical-dims"\s*:'),
        "how ASTRA-sim arranges ranks on ns-3 (logical-dims), not what links them; give the physical topology file of ns-3",
    ),
    (
        "ASTRA-sim system",
        _has(r'"(scheduling-policy|(all-reduce|all-gather|reduce-scatter|all-to-all)-implementation(-custom)?)"\s*:'),
        "how an ASTRA-sim system runs collectives, not what links its NPUs; give its network file",
    ),
    (
        "HCCL rank table of old",
        _has(r'"instance_list"\s*:'),
        "an HCCL rank table of the form before 1.0 (group_list, instance_list), which HCCL no longer reads; give one with server_list",
    ),
    (
        "MSCCL algorithm",
        _has(r"<algo\b"),
        "a schedule in MSCCL's XML, not a topology; topoccl.algorithms.msccl.read_msccl reads it",
    ),
)


def _format(name: str, is_it: Callable[[str], bool], sentence: str) -> Format:
    def recognise(text: str) -> int:
        return CERTAIN if is_it(plain(text[:HEAD])) else NO

    def parse(text: str, source: str) -> Topology:
        raise TopologyError(f"{source}: this is {sentence}")

    return Format(name, f"refused: {sentence.partition(';')[0]}", recognise, parse)


FORMATS = tuple(_format(*row) for row in _WHAT)
