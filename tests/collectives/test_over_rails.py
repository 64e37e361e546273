"""Schedules over rails: which messages take which, and what is said where an interface is absent."""

from __future__ import annotations

import io
import re
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from topoccl.algorithms.registry import build_verified, by_name
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.collectives import rails
from topoccl.collectives.config import Config
from topoccl.collectives.errors import ConfigError
from topoccl.collectives.executor.dtypes import dtype_of
from topoccl.collectives.executor.lowering import Site, lower
from topoccl.collectives.executor.reduction import fold_kernel
from topoccl.collectives.executor.wiring import Wiring
from topoccl.collectives.logging import Logger
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


def addresses(fabric: Topology, facts: list[HostFacts]) -> list[list[str]]:
    return rail_addresses(fabric, rails_of(fabric), facts)


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


def refusal(fabric: Topology, facts: list[HostFacts], before: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> str | None:
    """Why rails are not looked for in place of transport ``before``; None where they are."""
    transport = MemoryHub(fabric.num_ranks).transport(0)
    transport.name = before
    said: list[str] = []
    monkeypatch.setattr(Logger, "info", lambda self, subsystem, message, *args: said.append(message % args))
    monkeypatch.setattr(rails, "_sound", lambda *args: (list(rails_of(fabric)), []))
    monkeypatch.setattr(rails, "_opened", lambda *args: MemoryHub(fabric.num_ranks).transport(0))
    monkeypatch.setattr(rails, "_carrying", lambda *args: list(rails_of(fabric)))
    config = Config(**options)
    wide, switches, rest = over_rails(transport, fabric, facts, config, config.logger(0), 20.0)
    assert rest is fabric
    assert (wide is transport) == (switches == ())
    return said[0] if wide is transport else None


def test_mpi_is_left_only_where_rails_are_known_to_be_better(fabric: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(fabric, seen(fabric), "mpi", monkeypatch) is None
    bound = refusal(fabric, seen(fabric), "mpi", monkeypatch, transport="mpi")
    assert bound == "rails are not used: transport mpi has one way between ranks; TOPOCCL_TRANSPORT=auto, tcp or gloo has rails"
    fast = (USUAL, replace(nic("eth1", "10.2.0.3/16"), rdma="mlx5_0:1"))
    assert "RDMA of eth1 of rank 4" in str(refusal(fabric, seen(fabric, h2=fast), "mpi", monkeypatch))
    assert refusal(fabric, seen(fabric, h2=fast), "mpi", monkeypatch, rails="1") is None


def test_rates_that_nobody_knows_split_nothing_unless_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = [replace(f, boot_id=f.hostname) for f in seen(load(FABRIC))[::2]]
    found = assemble(facts, [f.hostname for f in facts])
    assert len(rails_of(found)) == 2
    assert "the rate of NIC h0.eth0 is not known" in str(refusal(found, facts, "gloo", monkeypatch))
    assert refusal(found, facts, "gloo", monkeypatch, rails="1") is None
    assert addresses(found, facts)[1] == [f"10.2.0.{host}" for host in (1, 2, 3, 4)]


# Rails that cannot be opened


def opened(
    fabric: Topology, facts: list[HostFacts], monkeypatch: pytest.MonkeyPatch, own: Callable[[int], str], **options: Any
) -> tuple[list[tuple[list[str], list[str]]], str]:
    """For each rank the rails it has and those it plans with, and all that ranks were warned of. ``own`` is the address of a rank that
    has one way; hosts route as their addresses say."""
    hub, ranks = MemoryHub(fabric.num_ranks), fabric.num_ranks
    here, warnings = threading.local(), io.StringIO()

    def source(peer: str) -> str | None:
        found = [face.split("/")[0] for nic in facts[here.rank].nics for face in nic.addresses if face[:5] == peer[:5]]
        return found[0] if found else None

    monkeypatch.setattr(rails, "source_address", source)
    monkeypatch.setattr(rails, "address_among", lambda transport, *args: own(transport.rank))
    monkeypatch.setattr(rails, "_opened", lambda transport, *args: transport)
    config = Config(**options)

    def open_them(rank: int) -> tuple[list[str], list[str]]:
        here.rank = rank
        transport = hub.transport(rank)
        transport.name = "gloo"
        logger = Logger(rank=rank, stream=warnings)
        _, switches, rest = over_rails(transport, fabric, facts, config, logger, 20.0)
        return ["+".join(s) for s in switches], [str(rail) for rail in rails_of(rest)]

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(open_them, range(ranks))), warnings.getvalue()


def test_what_cannot_be_opened_is_not_planned_with(fabric: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    found, said = opened(fabric, seen(fabric), monkeypatch, "10.1.0.{}".format)
    assert found == [(["rail0", "rail1"], ["rail0", "rail1"])] * 8
    assert said == ""

    def address(rank: int) -> str:
        return f"10.1.0.{rank // 2 + 1}"

    found, said = opened(fabric, seen(fabric, h2=(USUAL,)), monkeypatch, address)
    assert found == [([], ["rail0"])] * 8
    assert said.count("\n") == 1
    assert "nothing goes over rail1 of the rails, nor is planned for it: rank 4 on h2: NIC h2.eth1 of rail rail1 is none of its" in said
    # Ranks may have met on the slow one.
    down = (replace(USUAL, up=False), nic("eth1", "10.2.0.3/16"))
    found, said = opened(fabric, seen(fabric, h2=down), monkeypatch, lambda rank: f"10.2.0.{rank // 2 + 1}")
    assert found == [([], ["rail1"])] * 8
    assert "nothing goes over rail0 of" in said


def test_where_ranks_send_nobody_knows_all_is_planned_with(fabric: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    found, said = opened(fabric, seen(fabric, h2=(USUAL,)), monkeypatch, lambda rank: f"10.{2 - rank % 2}.0.{rank // 2 + 1}")
    assert found == [([], ["rail0", "rail1"])] * 8
    assert said == ""


def test_one_rail_that_was_asked_for_is_planned_with_and_nobody_is_warned(fabric: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    found, said = opened(fabric, seen(fabric), monkeypatch, lambda rank: f"10.1.0.{rank // 2 + 1}", rails="0")
    assert found == [([], ["rail0"])] * 8
    assert said == ""


@pytest.mark.parametrize(("wrong", "words"), [("10.9.0.3/16", "messages from .* would have no way"), ("", "is down or has no address")])
def test_others_are_used_without_it(wrong: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = load("rails:4x2,nics=3,net=300Mbit/s+200Mbit/s+100Mbit/s")
    more = [replace(f, nics=(*f.nics, nic("eth2", f"10.3.0.{f.hostname[1:]}/16"))) for f in seen(fabric)]
    broken = [replace(f, nics=(f.nics[0], nic("eth1", *([wrong] if wrong else [])), f.nics[2])) if f.hostname == "h2" else f for f in more]
    found, said = opened(fabric, broken, monkeypatch, lambda rank: f"10.1.0.{rank // 2 + 1}")
    assert found == [(["rail0", "rail2"], ["rail0", "rail2"])] * 8
    assert said.count("\n") == 1
    assert re.search(f"nothing goes over rail1 of the rails, nor is planned for it: .*{words}", said)


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
    assert over_rails(transport, topology, facts, Config(), config.logger(0), 20.0) == (transport, (), topology)
