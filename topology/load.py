"""One way in: a generator expression or a file, wherever a topology is asked for."""

from __future__ import annotations

from pathlib import Path

from topoccl.topology.files import read_file
from topoccl.topology.generators import generate, is_expression, known_shapes
from topoccl.topology.graph import Topology, TopologyError


def load(text_or_path: str | Path) -> Topology:
    """The topology that a generator expression (``cluster:4x2``) or a file in any of the known formats describes (docs/formats.md).

    A name that is both is an expression; write ``./ring:8`` for a file of that name.

    Raises:
        TopologyError: neither, or one that is wrong; the message names the place, the value and what was expected.
    """
    text = str(text_or_path)
    if isinstance(text_or_path, str) and is_expression(text):
        return generate(text)
    if Path(text).exists():  # also a pipe, as of <(ssh host topoccl topo --format yaml); of a directory reading says what it is
        from topoccl.topology.formats import parse  # late: ranks that discover their hosts need no parser

        return parse(read_file(text), text)
    if isinstance(text_or_path, str) and ":" in text and "/" not in text and not text.endswith((".yaml", ".yml", ".json")):
        return generate(text)
    raise TopologyError(f"no topology {text!r}: no such file, and not a generator; known generators: {known_shapes()}")


def require_ranks(topology: Topology, ranks: int) -> Topology:
    """The first ``ranks`` slots of ``topology``, for a group of that size.

    Raises:
        TopologyError: fewer slots than ranks; the message has both numbers.
    """
    if ranks < 1:
        raise TopologyError(f"topology {topology.name!r}: {ranks} ranks asked for; expected at least 1")
    if ranks > topology.num_ranks:
        slots = f"{topology.num_ranks} slot{'s' if topology.num_ranks > 1 else ''}"
        raise TopologyError(f"topology {topology.name!r} has {slots}, fewer than the {ranks} ranks of the group")
    return topology if ranks == topology.num_ranks else topology.place(range(ranks))
