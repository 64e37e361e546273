"""The default constants of short calls over sockets, fitted to what ``topoccl tune --check -J`` measured on several fabrics at once.

    python bench/fit_defaults.py bench/fabrics/mesh-2x3.yaml=mesh.json bench/fabrics/cluster-4x2.yaml:round_robin=spread.json

Unlike ``topoccl tune``, which fits a profile to one fabric, it counts how crowded each fabric's machine was (``--cores``). Of each call the
four fastest candidates count, each by the logarithm of predicted over measured time, at most 0.3, since disturbed ones say nothing.
Constants are changed one after the other by 30 %, and by ever less when that helps no more, as long as the mean over calls falls.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from topoccl.algorithms.algorithm import read_label
from topoccl.algorithms.calibration import STAMPED, Profile, default_profile
from topoccl.algorithms.registry import build_verified, by_name
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.tuning.fit import Sample, predicted_seconds
from topoccl.algorithms.tuning.measured import with_constants
from topoccl.bench.virtual.launch import slot_order
from topoccl.topology.graph import Topology
from topoccl.topology.load import load

CONSTANTS = ("stamped_overhead", "stamped_call", "stamped_rate", "latency", "send_overhead", "call_overhead")
"""Those of :class:`~topoccl.algorithms.calibration.Medium` between hosts that are fitted,"""
FASTEST, MOST = 4, 0.3
"""to so many candidates of each call, and the most that one may be off by."""
FIRST_STEP, ROUNDS = 1.3, 5


@dataclass(frozen=True)
class Call:
    """The fastest candidates of one call, and how many ranks shared a core of the machine, and of a host."""

    samples: tuple[Sample, ...]
    machine: float
    crowd: float


def calls_of(topology: Topology, document: Mapping[str, Any], cores: int, most: int = STAMPED) -> list[Call]:
    """The calls of up to ``most`` bytes in a file of ``topoccl tune --check -J``."""
    machine = max(1.0, topology.num_ranks / cores)
    crowd = max(1.0, max(map(len, topology.ranks_by_host)) / cores)
    found = []
    for call in document["calls"]:
        if call["bytes"] > most:
            continue
        spec = CollectiveSpec(call["collective"], topology.num_ranks, call["root"])
        samples = []
        for row in call["candidates"]:
            name, params = read_label(row["algorithm"])
            schedule = build_verified(by_name(spec.collective, name), spec, topology, params)
            seconds = fmean(s for s in (row["first_seconds"], row["second_seconds"]) if s is not None)
            samples.append(Sample(schedule, topology, call["bytes"], row["segments"], seconds, row["pulls"]))
        fastest = sorted(samples, key=lambda sample: sample.seconds)[:FASTEST]
        found += [Call(tuple(fastest), machine, crowd)] if fastest else []
    return found


def errors(calls: Sequence[Call], profile: Profile) -> list[float]:
    """Of each call how far its candidates are off, in the mean."""
    found = []
    for call in calls:
        there = profile.on_hosts(call.crowd, attach=True, machine=call.machine)
        off = [abs(math.log(predicted_seconds(sample, there) / sample.seconds)) for sample in call.samples]
        found.append(fmean(min(one, MOST) for one in off))
    return found


def fit(calls: Sequence[Call], profile: Profile, constants: Sequence[str] = CONSTANTS, rounds: int = ROUNDS) -> Profile:
    """``profile`` with better constants."""
    least, step = fmean(errors(calls, profile)), FIRST_STEP
    for _ in range(rounds):
        before = least
        for name in constants:
            for factor in (step, 1 / step):
                value = getattr(profile.network, name) * factor
                names = ("send_overhead", "recv_overhead") if name == "send_overhead" else (name,)
                other = with_constants(profile, [(f"network.{each}", value) for each in names])
                mean = fmean(errors(calls, other))
                if mean < least:
                    least, profile = mean, other
                    break
        if least == before:
            step = math.sqrt(step)
    return profile


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="fit_defaults", description="fits the default constants of short calls over sockets")
    parser.add_argument("files", nargs="+", metavar="FABRIC[:PLACEMENT]=FILE", help="what tune --check -J measured there")
    parser.add_argument("--cores", type=int, default=2, help="cores of the machine (2)")
    parser.add_argument("--check", action="store_true", help="only say how far the present defaults are off")
    options = parser.parse_args(arguments)
    calls = []
    for word in options.files:
        where, _, file = word.rpartition("=")
        fabric, _, placement = where.partition(":")
        topology = load(fabric)
        topology = topology.place(slot_order(topology, placement)) if placement else topology
        calls += calls_of(topology, json.loads(Path(file).read_text()), options.cores)
    profile = default_profile("tcp")
    print(f"{len(calls)} calls, off by {median(errors(calls, profile)):.1%} with the defaults", flush=True)
    if not options.check:
        profile = fit(calls, profile)
        print(f"off by {median(errors(calls, profile)):.1%} with")
        for name in CONSTANTS:
            print(f"  {name}: {getattr(profile.network, name):.3g}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
