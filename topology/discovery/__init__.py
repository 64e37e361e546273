"""Live discovery: the only part of the package that looks at the machine.

``discover_host()`` says what one process sees of its host; ``assemble()`` makes one cluster of what all ranks saw, the same on
each of them. How facts travel between ranks, and whether two ranks really share memory, is the caller's business.
"""

from __future__ import annotations

from topoccl.topology.discovery.assemble import assemble
from topoccl.topology.discovery.facts import HostFacts, NicFacts, NumaFacts
from topoccl.topology.discovery.host import discover_host, usual_interface

__all__ = ["HostFacts", "NicFacts", "NumaFacts", "assemble", "discover_host", "usual_interface"]
