"""Schedules over rails: which messages take which, and what is said where an interface is absent."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from topoccl.algorithms.registry import build_verified, by_name
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.collectives.config import Config
from topoccl.collectives.errors import ConfigError
from topoccl.collectives.executor.dtypes import dtype_of
from topoccl.collectives.executor.lowering import Site, lower
from topoccl.collectives.executor.reduction import fold_kernel
from topoccl.collectives.executor.wiring import Wiring
from topoccl.collectives.rails import over_rails, rail_addresses
from topoccl.collectives.transports.memory import MemoryHub
from topoccl.topology.discovery import HostFacts, NicFacts, assemble
from topoccl.topology.graph import Topology
from topoccl.topology.load import load
from topoccl.topology.rails import RailTable, rails_of

FABRIC = Path(__file__).resolve().parents[2] / "bench" / "fabrics" / "rails-2.yaml"


@pytest.fixture(scope="module")
def fabric() -> Topology:
    return load(FABRIC)


def carried(topology: Topology, collective: str, table: RailTable | None) -> tuple[Counter[Any], Counter[Any]]:
    """Bytes by (source, destination, tag, rail) as the programs of all ranks send and as they receive them."""
    spec = CollectiveSpec(collective, topology.num_ranks, 0 if collective == "broadcast" else None)
    schedule = build_verified(by_name(collective, "striped" if collective == "all_to_all" else "forest"), spec, topology)
    wiring, dtype = Wiring(schedule, (), table), dtype_of(np.empty(0, np.float32))
    kernel = fold_kernel("sum", dtype) if spec.reduces else None
    sent, received = Counter[Any](), Counter[Any]()
    for rank in range(topology.num_ranks):
        program = lower(schedule, wiring, 96_000, 2, dtype, kernel, Site(rank, None, {}), 0, False)
        for item in (item for lane in program.lanes for item in lane):
            for message in item.sends:
                sent[rank, message.peer, message.tag, message.rail] += 4 * (message.hi - message.lo)
            for message in item.receives:
                received[message.peer, rank, message.tag, message.rail] += 4 * (message.hi - message.lo)
    return sent, received


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"])
def test_messages_load_rails_by_their_rates_and_both_ends_agree(fabric: Topology, collective: str) -> None:
    sent, received = carried(fabric, collective, RailTable(fabric, [rail.switches for rail in rails_of(fabric)]))
    assert sent == received
    hosts = fabric.host_of_rank
    by_rail = Counter[int]()
    for (src, dst, _, rail), nbytes in sent.items():
        if hosts[src] == hosts[dst]:
            assert rail == 0
        else:
            by_rail[rail] += nbytes
    assert by_rail[0] / by_rail[1] == pytest.approx(2, rel=0.1)


def test_without_rails_everything_takes_the_only_one(fabric: Topology) -> None:
    sent, received = carried(fabric, "all_gather", None)
    assert sent == received
    assert {rail for *_, rail in sent} == {0}


# Interfaces


def nic(name: str, *addresses: str, up: bool = True) -> NicFacts:
    return NicFacts(name, None, up, False, None, addresses)


def seen(fabric: Topology, **changed: tuple[NicFacts, ...]) -> list[HostFacts]:
    """What each rank of the fabric sees: eth0 in 10.1/16 and eth1 in 10.2/16, unless its host is ``changed``."""
    facts = HostFacts("", "boot", 1, (0,), None, ((0,),), (), (), None, None)
    found = []
    for host in fabric.host_of_rank:
        number = int(host.removeprefix("h"))
        usual = (nic("eth0", f"10.1.0.{number + 1}/16"), nic("eth1", f"10.2.0.{number + 1}/16", f"fd00::{number + 1}/64"))
        found.append(replace(facts, hostname=host, nics=changed.get(host, usual)))
    return found


def addresses(fabric: Topology, facts: list[HostFacts], before: str = "gloo", **options: Any) -> list[list[str]]:
    return rail_addresses(before, fabric, rails_of(fabric), facts, Config(**options))


def test_every_rank_has_an_address_on_every_rail(fabric: Topology) -> None:
    assert addresses(fabric, seen(fabric)) == [[f"10.{rail}.0.{host}" for host in (1, 1, 2, 2, 3, 3, 4, 4)] for rail in (1, 2)]


USUAL = nic("eth0", "10.1.0.3/16")


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (
            (USUAL,),
            r"rank 4 on h2: NIC h2.eth1 of rail rail1 is none of its .*; known and allowed are eth0 \(TOPOCCL_SOCKET_IFNAME\)",
        ),
        ((), r"rank 4 on h2: NIC h2.eth0 of rail rail0 is none .* allowed are none"),
        ((USUAL, nic("eth1", "10.2.0.3/16", up=False)), r"rank 4 on h2: interface eth1 of rail rail1 is down or has no address"),
        ((USUAL, nic("eth1", "fd00::3/64")), "no version of IP"),
        ((USUAL, nic("eth1", "10.1.0.3/16")), r"rank 4 has one address, 10.1.0.3, on several rails"),
    ],
)
def test_what_is_absent_on_a_rank_is_named(fabric: Topology, there: tuple[NicFacts, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        addresses(fabric, seen(fabric, h2=there))


def test_mpi_is_left_only_where_rails_are_known_to_be_better(fabric: Topology) -> None:
    assert addresses(fabric, seen(fabric), "mpi")
    with pytest.raises(ConfigError, match="transport mpi has one way between ranks; TOPOCCL_TRANSPORT=auto, tcp or gloo has rails"):
        addresses(fabric, seen(fabric), "mpi", transport="mpi")
    fast = (USUAL, replace(nic("eth1", "10.2.0.3/16"), rdma="mlx5_0:1"))
    with pytest.raises(ConfigError, match="RDMA of eth1 of rank 4"):
        addresses(fabric, seen(fabric, h2=fast), "mpi")
    assert addresses(fabric, seen(fabric, h2=fast), "mpi", rails="1")


def test_rates_that_nobody_knows_split_nothing_unless_asked_to() -> None:
    facts = [replace(f, boot_id=f.hostname) for f in seen(load(FABRIC))[::2]]
    found = assemble(facts, [f.hostname for f in facts])
    assert len(rails_of(found)) == 2
    with pytest.raises(ConfigError, match=r"the rate of NIC h0.eth0 is not known"):
        addresses(found, facts)
    assert addresses(found, facts, rails="1")[1] == [f"10.2.0.{host}" for host in (1, 2, 3, 4)]


@pytest.mark.parametrize(("fabric", "words"), [("rails:2x1", "transport memory has one way"), ("cluster:2x1", "has 1 of the networks")])
def test_insisting_on_rails_is_an_error_on_every_rank_where_there_are_none(fabric: str, words: str) -> None:
    topology, hub = load(fabric), MemoryHub(2)
    facts = seen(topology)
    config = Config(rails="1")

    def insist(rank: int) -> None:
        with pytest.raises(ConfigError, match=f"TOPOCCL_RAILS=1: .*{words}"):
            over_rails(hub.transport(rank), topology, facts, config, config.logger(rank), 20.0)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(insist, range(2)))
    transport = hub.transport(0)
    assert over_rails(transport, topology, facts, Config(), config.logger(0), 20.0) == (transport, ())
