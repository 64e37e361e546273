"""``topoccl explain``: every candidate for a collective on a fabric, what it is predicted to take, and why one is chosen."""

from __future__ import annotations

import argparse
import json
import os
import sys
from itertools import zip_longest

from topoccl.algorithms.calibration import TRANSPORTS, Profile, default_profile
from topoccl.algorithms.choice import Choice, format_choice, format_kinds, format_seconds, heading, ranked, summary
from topoccl.algorithms.effort import TOO_LARGE
from topoccl.algorithms.outlines import OUTLINES
from topoccl.algorithms.registry import known_names
from topoccl.algorithms.select import FALLBACKS, select
from topoccl.algorithms.spec import COLLECTIVES, ROOTED, CollectiveSpec, canonical_collective
from topoccl.algorithms.tuning import Fitted, Tuning, load_tuning
from topoccl.collectives.cli import Subparsers
from topoccl.collectives.cli.concurrent import Call, concurrent_calls, show_concurrent
from topoccl.collectives.config import Config
from topoccl.collectives.errors import ConfigError
from topoccl.collectives.forests import keep_forests
from topoccl.topology.generators import known_shapes
from topoccl.topology.graph import Topology
from topoccl.topology.load import load, require_ranks
from topoccl.topology.units import parse_size

ITEMSIZES = {
    "int8": 1, "uint8": 1, "bool": 1, "float8": 1, "float16": 2, "bfloat16": 2, "int16": 2, "int32": 4, "float32": 4, "int64": 8,
    "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
PLACEMENTS = ("packed", "round_robin")
IDEAL = "ideal"


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "explain",
        help="show every candidate for a collective, its predicted time, and why one is chosen",
        epilog=f"Topologies: a file or {known_shapes()}. TOPOCCL_* variables apply as in a running program.",
    )
    parser.add_argument("collective", help=f"one of {', '.join(COLLECTIVES)}")
    parser.add_argument("size", help="bytes of the call (the larger of a rank's two buffers), such as 64M")
    parser.add_argument("-t", "--topology", metavar="SPEC|FILE", help="default: TOPOCCL_TOPO_FILE, else this host as discovered")
    parser.add_argument("--ranks", metavar="N|LIST", help="the first N slots, or these slots in this order: 0,4,1,5")
    parser.add_argument("--placement", metavar="ORDER", help=f"order of the ranks over the hosts: {', '.join(PLACEMENTS)}")
    parser.add_argument(
        "--transport",
        metavar="NAME",
        help=f"{', '.join(TRANSPORTS)}, or {IDEAL} for links alone; default: {IDEAL} for accelerators, else tcp between hosts, mpi on one",
    )
    parser.add_argument(
        "--cores",
        metavar="N",
        help="cores that all ranks share, all hosts being one machine, as in the virtual cluster (default: each rank has one of its own)",
    )
    parser.add_argument("--algo", metavar="RULES", help="in place of TOPOCCL_ALGO")
    parser.add_argument("--tune-file", metavar="FILE", help="measured times, in place of TOPOCCL_TUNE_FILE")
    parser.add_argument("--fallback", metavar="MODE", help=f"in place of TOPOCCL_FALLBACK: {', '.join(FALLBACKS)}")
    parser.add_argument("--root", type=int, metavar="RANK", help="of a rooted collective (default 0)")
    parser.add_argument("--dtype", default="float32", help="element type (default float32)")
    parser.add_argument("--uneven", action="store_true", help="all_to_all with counts of its own for each pair; the size is their mean")
    parser.add_argument("--mesh", metavar="SIZES", help="a mesh of the ranks, last dimension fastest: 4x2, or dp=4,tp=2; with --concurrent")
    parser.add_argument(
        "--concurrent",
        metavar="GROUPS",
        nargs="?",
        const="",
        help="groups that call at the same moment: dimensions of --mesh (default: all; dp=reduce_scatter@64M has another call), or "
        "lists of ranks such as '0,1;2,3'",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    collective = canonical_collective(args.collective)
    nbytes = parse_size(args.size)
    if args.dtype not in ITEMSIZES:
        raise ConfigError(f"unknown dtype {args.dtype!r}; known: {', '.join(ITEMSIZES)}")
    transport = None if args.transport == IDEAL else args.transport
    config = Config.from_environment(os.environ, algo=args.algo, transport=transport, fallback=args.fallback, tune_file=args.tune_file)
    fabric = _topology(args.topology, config)
    topology = _place(fabric, args.ranks, args.placement)
    spec = _spec(collective, topology.num_ranks, args.root, args.uneven)
    known = load_tuning(config.tune_file) if config.tune_file else None
    name = IDEAL if args.transport == IDEAL else _transport(config, topology, known)
    fitted = None if known is None else known.constants(topology, name)
    profile = _profile(config, topology, name, args.cores, fitted)
    tuning = None if known is None else _holding(known, fabric, topology, name)
    rules = config.algo_rules(known_names())
    keep_forests()
    if args.mesh is not None and args.concurrent is None:
        raise ConfigError(f"--mesh {args.mesh}: only with --concurrent")
    if args.concurrent is not None:
        calls = concurrent_calls(args.concurrent, args.mesh, topology, collective, nbytes, args.root)

        def chosen(call: Call) -> Choice:
            part = topology.place(call.ranks)
            own = None if known is None else known.at(part, name)
            return select(call.spec, part, call.nbytes, ITEMSIZES[args.dtype], rules, profile, config.fallback, tuning=own)

        status = show_concurrent(calls, chosen, topology, profile, args.json)
        if not args.json:
            _show_cores(topology, profile, args.cores)
        return status
    choice = select(spec, topology, nbytes, ITEMSIZES[args.dtype], rules, profile, config.fallback, exhaustive=True, tuning=tuning)
    if choice.warning:
        print(f"topoccl: warning: {choice.warning}", file=sys.stderr)
    if args.json:
        print(json.dumps(choice.as_dict() | {"ranks_per_core": profile.machine}, indent=2))
    elif sys.stdout.isatty():
        _show(choice)
    else:
        print(format_choice(choice))
    if not args.json:
        _show_cores(topology, profile, args.cores)
    too_large = [c.algorithm for c in choice.candidates if c.rejected is not None and c.rejected.startswith(TOO_LARGE)]
    if not args.json and any(label in OUTLINES for label in too_large):
        print(f"topoccl simulate {args.collective} estimates those that are too large")
    if not args.json and known is not None and fitted is not None:
        print(f"predicted with what {known.source} says of {name}: {fitted}")
    return 0


def _profile(config: Config, topology: Topology, transport: str, cores: str | None, fitted: Fitted | None) -> Profile:
    """What a program counts with where all ranks share so many ``cores``, else where as many share one as where ``fitted`` was measured,
    else where each has its own.

    Raises:
        ConfigError: ``cores`` is no positive number, or nothing but links counts.
    """
    profile = default_profile(transport)
    if cores is not None:
        number = int(cores) if cores.isascii() and cores.isdigit() else 0
        if number < 1:
            raise ConfigError(f"--cores {cores}: expected a positive number of cores that all ranks share")
        if transport == IDEAL:
            raise ConfigError(f"--cores {cores}: {IDEAL} counts links alone, and no processors; name another --transport")
        hosts = topology.ranks_by_host
        crowd, machine = (max(1.0, ranks / number) for ranks in (max(map(len, hosts)), topology.num_ranks))
        profile = profile.on_hosts(crowd, attach=True, machine=machine, shared=len(hosts) > 1)
    elif fitted is not None:
        profile = profile.on_hosts(fitted.crowd, attach=True, machine=fitted.machine)
    if not config.shm and transport != IDEAL:
        profile = profile.without_shared_memory()
    return profile if fitted is None else fitted.apply(profile)


def _show_cores(topology: Topology, profile: Profile, cores: str | None) -> None:
    """Says what was taken for granted of processors."""
    if profile.name == IDEAL:
        return
    if cores is not None:
        said = f"{topology.num_ranks} ranks share {cores} core{'s' if cores != '1' else ''}, all hosts being one machine"
    elif profile.machine > 1:
        said = f"{profile.machine:g} ranks share a core, as where it was measured"
    else:
        said = "each rank has a core of its own; --cores N says how many all share"
    print(f"processors: {said}")


def _holding(tuning: Tuning, fabric: Topology, group: Topology, transport: str) -> Tuning:
    """The file's measurements, as far as they hold for the group or for the fabric of which it is a part."""
    mismatch = tuning.mismatch(group, transport)
    part = group.num_ranks < fabric.num_ranks  # not the whole in another order
    if mismatch is not None and part and tuning.mismatch(fabric, transport) is None:
        return tuning.at(fabric, transport).for_group(group)
    if mismatch is not None:
        print(f"topoccl: warning: {mismatch}", file=sys.stderr)
    return tuning.at(group, transport)


def _topology(text: str | None, config: Config) -> Topology:
    described = load(text) if text else config.described()
    if described is not None:
        return described
    from topoccl.collectives.cli.topo import this_host

    return this_host()


def _place(topology: Topology, ranks: str | None, placement: str | None) -> Topology:
    """The group that ``--ranks`` and ``--placement`` describe."""
    slots = [int(part) for part in ranks.split(",") if part.strip().isdigit()] if ranks else []
    if ranks and len(slots) != ranks.count(",") + 1:
        raise ConfigError(f"--ranks {ranks}: expected a number of ranks, or slots such as 0,4,1,5")
    listed = ranks is not None and "," in ranks
    if placement is not None:
        if placement not in PLACEMENTS:
            raise ConfigError(f"--placement {placement}: unknown; known: {', '.join(PLACEMENTS)}")
        if listed:
            raise ConfigError(f"--placement {placement} with --ranks {ranks}: a list of slots is a placement already; give one of them")
        groups = topology.ranks_by_host
        order = [r for g in groups for r in g] if placement == "packed" else [r for t in zip_longest(*groups) for r in t if r is not None]
        topology = topology.place(order)
    if listed:
        return topology.place(slots)
    return require_ranks(topology, slots[0]) if ranks else topology


def _spec(collective: str, ranks: int, root: int | None, uneven: bool) -> CollectiveSpec:
    if uneven and collective != "all_to_all":
        raise ConfigError(f"--uneven: only all_to_all can have unequal counts, not {collective}")
    return CollectiveSpec(collective, ranks, 0 if collective in ROOTED and root is None else root, uneven)


def _transport(config: Config, topology: Topology, tuning: Tuning | None) -> str:
    if config.transport != "auto":
        return config.transport
    if tuning is not None and tuning.transport is not None:
        return tuning.transport
    slots = set(topology.slots)
    shared = any(link.kind == "shm" for link in topology.links if link.src in slots)
    if not shared:  # accelerators, and bare nodes of textbook networks, copy nothing
        return IDEAL
    return "tcp" if len(topology.ranks_by_host) > 1 else "mpi"


def _show(choice: Choice) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(caption=Text(summary(choice)), caption_justify="left")
    for name in ("", "algorithm", "predicted", "segments", "bytes", "why"):
        table.add_column(name, justify="right" if name in ("predicted", "segments") else "left", overflow="fold")
    for c in ranked(choice):
        row = (format_seconds(c), "-" if c.seconds is None else str(c.segments))
        style = "bold green" if c.rejected is None else "dim" if c.seconds is None else None
        cells = ("" if c.rejected else "*", c.algorithm, *row, format_kinds(c.bytes_by_kind), c.rejected or "the choice")
        table.add_row(*map(Text, cells), style=style)  # Text: the brackets of labels are no markup
    console = Console()
    console.print(Text(heading(choice)))
    console.print(table)
