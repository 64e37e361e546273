"""From and to the tables of NCCL's tuner plugin (``ext-tuner/example`` of NCCL), as far as its algorithms and ours are the same.

A line is ``collType,minBytes,maxBytes,algorithm,protocol,channels,nNodes,nRanks[,numPipeOps,regBuff]``; -1 stands for any. What has no
counterpart: NCCL has no all_to_all, gather or scatter; we have no protocols, and neither CollNet nor NVLS; most of our algorithms for
several hosts are not among NCCL's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topoccl.algorithms.algorithm import label_of, read_label
from topoccl.algorithms.registry import algorithms_for
from topoccl.algorithms.tuning.measured import Measurement, Tuning
from topoccl.topology.units import format_size

COLUMNS = ("collType", "minBytes", "maxBytes", "algorithm", "protocol", "channels", "nNodes", "nRanks", "numPipeOps", "regBuff")
COLLECTIVES = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
}
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
MOST = (1 << 32) - 1
ANY = -1

_OURS = {  # by collective, NCCL's algorithm and ours; NCCL's ring of a rooted collective is a pipelined chain
    ("broadcast", "ring"): "chain", ("broadcast", "tree"): "binomial", ("reduce", "ring"): "chain", ("reduce", "tree"): "binomial",
    ("all_reduce", "ring"): "ring", ("all_reduce", "tree"): "tree", ("all_gather", "ring"): "ring", ("all_gather", "pat"): "pat",
    ("reduce_scatter", "ring"): "ring", ("reduce_scatter", "pat"): "pat",
}  # fmt: skip


class CsvError(ValueError):
    """A table that cannot be read; the message names the file, the line, the column and what was expected."""


@dataclass(frozen=True)
class Preference:
    """A line of NCCL's table in our words: ``labels`` are to be used for calls from ``least`` to ``most`` bytes among ``ranks`` on
    ``hosts`` (-1: any)."""

    collective: str
    least: int
    most: int
    labels: tuple[str, ...]
    hosts: int = ANY
    ranks: int = ANY

    def holds(self, collective: str, nbytes: int, hosts: int, ranks: int) -> bool:
        """Whether it speaks of such a call."""
        here = self.hosts in (ANY, hosts) and self.ranks in (ANY, ranks)
        return here and collective == self.collective and self.least <= nbytes <= self.most


def read_csv(text: str, source: str = "table") -> tuple[list[Preference], list[str]]:
    """The preferences that ``text`` holds, and what of it has no counterpart, in words.

    Raises:
        CsvError: a line with too few or too many columns, a number that is none, a name that NCCL does not know.
    """
    found: list[Preference] = []
    left: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#") or line.replace(" ", "").lower().startswith("colltype,"):
            continue
        where = f"{source}:{number}"
        cells = [cell.strip().lower() for cell in line.split(",")]
        if not 8 <= len(cells) <= len(COLUMNS):
            raise CsvError(f"{where}: {len(cells)} columns; expected {','.join(COLUMNS[:8])}[,{','.join(COLUMNS[8:])}]")
        kind, algorithm, protocol = cells[0], cells[3], cells[4]
        for name, value, known in (
            ("collType", kind, COLLECTIVES),
            ("algorithm", algorithm, ALGORITHMS),
            ("protocol", protocol, PROTOCOLS),
        ):
            if value not in known:
                raise CsvError(f"{where}: {name} is {value!r}; expected one of {', '.join(known)}")
        least, most, channels, hosts, ranks = (_number(cells[at], where, COLUMNS[at]) for at in (1, 2, 5, 6, 7))
        labels = _labels(COLLECTIVES[kind], algorithm, channels)
        if not labels:
            left.append(f"{where}: {kind} by {algorithm}{f' on {channels} channels' if channels > 0 else ''}")
            continue
        found.append(Preference(COLLECTIVES[kind], least, most, labels, hosts, ranks))
    return found, left


def _number(text: str, where: str, column: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise CsvError(f"{where}: {column} is {text!r}; expected a whole number") from None
    if value < ANY:
        raise CsvError(f"{where}: {column} is {value}; expected a number from 0 on, or -1 for any")
    return value


def _labels(collective: str, algorithm: str, channels: int) -> tuple[str, ...]:
    """Our candidates: all variants, or that one with so many channels."""
    name = _OURS.get((collective, algorithm))
    variants = [dict(v) for a in algorithms_for(collective) if a.name == name for v in a.variants]
    if channels > 0 and any("channels" in variant for variant in variants):
        variants = [variant for variant in variants if variant.get("channels", 1) == channels]
    return tuple(label_of(name, variant) for variant in variants if name is not None)


def write_csv(tuning: Tuning) -> tuple[str, list[str]]:
    """The table of the candidates that were measured fastest, and what of it has no counterpart, in words.

    Each size stands for the sizes from it to the next one; the first also for smaller ones, the last for larger ones.
    """
    lines = ["# " + ",".join(COLUMNS)]
    left: list[str] = []
    groups: dict[tuple[str, int, int | None, int | None], dict[int, Measurement]] = {}
    for entry in tuning.entries:
        sizes = groups.setdefault((entry.collective, entry.ranks, entry.hosts, entry.root), {})
        if entry.nbytes not in sizes or entry.seconds < sizes[entry.nbytes].seconds:
            sizes[entry.nbytes] = entry
    for (collective, ranks, hosts, _), sizes in groups.items():
        ordered = sorted(sizes)
        for at, nbytes in enumerate(ordered):
            row = _nccl(collective, sizes[nbytes].algorithm)
            if row is None:
                left.append(f"{collective} of {format_size(nbytes)} bytes by {sizes[nbytes].algorithm}")
                continue
            kind, algorithm, channels = row
            least = 0 if at == 0 else nbytes
            most = MOST if at == len(ordered) - 1 else ordered[at + 1] - 1
            lines.append(f"{kind},{least},{most},{algorithm},simple,{channels},{hosts or ANY},{ranks},{ANY},{ANY}")
    return "\n".join(lines) + "\n", left


def _nccl(collective: str, label: str) -> tuple[str, str, int] | None:
    name, params = read_label(label)
    kind = next((theirs for theirs, ours in COLLECTIVES.items() if ours == collective), None)
    algorithm = next((a for (c, a), ours in _OURS.items() if (c, ours) == (collective, name)), None)
    return None if kind is None or algorithm is None else (kind, algorithm, int(params.get("channels", ANY)))


def asked_by(preferences: Sequence[Preference], hosts: int, ranks: int, collective: str, nbytes: int) -> tuple[str, ...]:
    """The labels of the first line that speaks of a call, as in NCCL, where the first line that fits counts."""
    return next((p.labels for p in preferences if p.holds(collective, nbytes, hosts, ranks)), ())
