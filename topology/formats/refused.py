"""What looks like a description of a fabric and is none: recognised, to say what it is and what to give instead."""

from __future__ import annotations

import re
from collections.abc import Callable

from topoccl.topology.formats.base import CERTAIN, NO, Format
from topoccl.topology.formats.support import HEAD, plain
from topoccl.topology.graph import Topology, TopologyError

_P2P_CELL = r"(?:OK|CNS|GNS|TNS|NS|DR|U|N/?A)"
_WHAT: tuple[tuple[str, str, str], ...] = (
    (
        "nvidia-smi topo -p2p",
        rf"^[ \t]*GPU\d+[ \t]+(?:(?:X|{_P2P_CELL})[ \t]+)*?(?:OK|CNS|GNS|TNS|NS)(?:[ \t]+(?:X|{_P2P_CELL}))*[ \t]*$",
        "which GPUs may access each other (nvidia-smi topo -p2p), not how they are linked; give the output of nvidia-smi topo -m",
    ),
    (
        "ns-3 logical dimensions",
        r'^\s*\{\s*"logical-dims"\s*:',
        "how ASTRA-sim arranges ranks on ns-3 (logical-dims), not what links them; give the physical topology file of ns-3",
    ),
    (
        "ASTRA-sim system",
        r'"(scheduling-policy|(all-reduce|all-gather|reduce-scatter|all-to-all)-implementation(-custom)?)"\s*:',
        "how an ASTRA-sim system runs collectives, not what links its NPUs; give its network file",
    ),
    (
        "MSCCL algorithm",
        r"<algo\b",
        "a schedule in MSCCL's XML, not a topology; topoccl.algorithms.msccl.read_msccl reads it",
    ),
)


def _format(name: str, pattern: str, sentence: str) -> Format:
    compiled = re.compile(pattern, re.MULTILINE)

    def recognise(text: str) -> int:
        return CERTAIN if compiled.search(plain(text[:HEAD])) else NO

    def parse(text: str, source: str) -> Topology:
        raise TopologyError(f"{source}: this is {sentence}")

    refuse: Callable[[str, str], Topology] = parse
    return Format(name, f"refused: {sentence.partition(';')[0]}", recognise, refuse)


FORMATS = tuple(_format(*row) for row in _WHAT)
