"""What topoccl doctor finds: each check on a case that has the fault and on one that has not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from topoccl.topology import Topology
from topoccl.topology.checks import CHECKS, Case, Problem, Severity, examine
from topoccl.topology.discovery import HostFacts, NicFacts, NumaFacts, assemble
from topoccl.topology.discovery.facts import PciHop
from topoccl.topology.files import loads
from topoccl.topology.load import load
from topoccl.topology.merge import Origin, Part, merge

NUMA = (NumaFacts(0, (0, 1)), NumaFacts(1, (2, 3)))


def nic(name: str = "eth0", **more: Any) -> NicFacts:
    return replace(NicFacts(name, 25e9, True, True, None, ("10.0.0.1/24",)), **more)


def facts(name: str = "a", cpus: tuple[int, ...] = (0, 1, 2, 3), **more: Any) -> HostFacts:
    base = HostFacts(name, f"boot-{name}", 1, cpus, None, (cpus,), (), (nic(),), 8 << 30, 8 << 30)
    return replace(base, **more)


def job(*seen: HostFacts, hosts: list[str] | None = None, **more: Any) -> Case:
    claims = [one.host_id for one in seen]
    hosts = claims if hosts is None else hosts
    return Case(**{"topology": assemble(seen, hosts), "facts": seen, "hosts": hosts, "claims": claims} | more)


def found(case: Case, check: str) -> list[Problem]:
    problems = examine(case)
    assert all(problem.check in dict(CHECKS) for problem in problems)
    return [problem for problem in problems if problem.check == check]


def test_a_sound_job_has_no_problems() -> None:
    assert examine(job(facts("a"), facts("a"), facts("b"), facts("b"))) == []
    assert examine(Case(load("cluster:4x2"))) == []
    assert examine(Case(load("dgx-a100:2"))) == []
    assert examine(Case(load("line:4,ranks=1"))) == [], "the ends of a line have fewer NICs, which is no fault"


def test_every_problem_says_all_of_it() -> None:
    bad = facts("a", (3,), shm_size=1 << 20, shm_free=1 << 19, cpu_quota=0.5, nics=(nic(speed=None),))
    case = job(bad, bad, facts("b", boot_id="boot-x"), facts("b"), no_sharing="TOPOCCL_SHM=0")
    problems = examine(case)
    assert len({problem.check for problem in problems}) >= 5
    for problem in problems:
        assert problem.subject
        assert problem.reason
        assert problem.advice
        assert problem.values
    severities = [list(Severity).index(problem.severity) for problem in problems]
    assert severities == sorted(severities)


def test_a_declared_nic_that_measures_a_twentieth() -> None:
    merged = merge(
        [
            Part(Origin.USER, load("cluster:2x1,net=400Gbit/s"), "declared.yaml"),
            Part(Origin.MEASURED, load("cluster:2x1,net=20Gbit/s+390Gbit/s"), "probe.yaml"),
        ]
    )
    (problem,) = found(Case(merged.topology, contradictions=merged.contradictions), "contradictions")
    assert (problem.severity, problem.subject) == (Severity.ERROR, "h0.eth0->sw0")
    assert problem.values == {"user (declared.yaml)": "50GB/s (400 Gbit/s)", "measured (probe.yaml)": "2.5GB/s (20 Gbit/s)"}
    mild = merge([Part(Origin.USER, load("cluster:2x1,net=10Gbit/s")), Part(Origin.SYSFS, load("cluster:2x1,net=7Gbit/s"))])
    assert {p.severity for p in found(Case(mild.topology, contradictions=mild.contradictions), "contradictions")} == {Severity.WARNING}


def test_all_ranks_on_one_core() -> None:
    (problem,) = found(job(*[facts(cpus=(5,))] * 3), "cores")
    assert (problem.severity, problem.subject) == (Severity.ERROR, "host 'a' (ranks 0-2)")
    assert problem.reason == "all 3 ranks may run on one core only"
    assert problem.values == {"cpu": 5}
    assert found(job(facts(cpus=(5,))), "cores") == [], "one rank on one core is fine"
    assert found(job(facts(cpus=(4,)), facts(cpus=(5,))), "cores") == []
    (twice,) = found(job(facts(cpus=(4,)), facts(cpus=(4,)), facts(cpus=(5,))), "cores")
    assert (twice.severity, twice.values) == (Severity.ERROR, {"cpus": [4]})
    (many,) = found(job(*[facts(cpus=(0, 1))] * 3), "cores")
    assert (many.severity, many.values) == (Severity.WARNING, {"ranks": 3, "cores": 2})
    (quota,) = found(job(facts(cpu_quota=1.5), facts(cpu_quota=1.5)), "cores")
    assert "quota" in quota.reason


@pytest.mark.parametrize(
    ("size", "free", "ranks", "severity"),
    [
        (64 << 20, 60 << 20, 2, Severity.WARNING),
        (64 << 20, 60 << 20, 4, Severity.ERROR),
        (8 << 30, 1 << 20, 1, Severity.ERROR),
        (None, None, 1, Severity.WARNING),
        (1 << 30, 1 << 30, 8, None),
    ],
)
def test_dev_shm(size: int | None, free: int | None, ranks: int, severity: Severity | None) -> None:
    problems = found(job(*[facts(shm_size=size, shm_free=free)] * ranks), "shm")
    assert [problem.severity for problem in problems] == ([] if severity is None else [severity])


def test_ranks_that_do_not_share_memory() -> None:
    same = [facts(), facts()]
    (problem,) = found(job(*same, hosts=["a", "a#1"]), "sharing")
    assert (problem.severity, problem.values) == (Severity.ERROR, {"parts": ["rank 0", "rank 1"]})
    (off,) = found(job(*same, no_sharing="TOPOCCL_SHM=0"), "sharing")
    assert (off.severity, off.values) == (Severity.WARNING, {"because": "TOPOCCL_SHM=0"})
    assert found(job(facts("a"), facts("b"), no_sharing="TOPOCCL_SHM=0"), "sharing") == []


def test_hosts_of_one_name() -> None:
    (problem,) = found(job(facts("box", boot_id="1"), facts("box", boot_id="2"), facts("c")), "host names")
    assert (problem.severity, problem.subject) == (Severity.WARNING, "host name 'box'")
    assert "different machines" in problem.reason
    (inside,) = found(job(facts("box"), facts("box", network_namespace=2)), "host names")
    assert "containers or network namespaces of one machine" in inside.reason


def test_a_nic_on_the_far_numa_node() -> None:
    far = facts(cpus=(0,), numa=NUMA, nics=(nic(numa=1),))
    near = facts(cpus=(2,), numa=NUMA, nics=(nic(numa=1),))
    other = facts("b")
    (problem,) = found(job(far, replace(far, affinity=(1,)), other), "far NICs")
    assert problem.severity is Severity.WARNING
    assert (problem.subject, problem.values) == ("a.eth0", {"nic on": ["a.numa1"], "ranks on": ["a.numa0"]})
    assert found(job(far, near, other), "far NICs") == [], "a rank is near"
    free = facts(numa=NUMA, nics=(nic(numa=1),))
    assert found(job(free, other), "far NICs") == [], "a rank that is bound to no node"
    described = loads(
        "hosts: [{name: h, numa: [{slots: 2}, {cores: 1}], nics: [{numa: numa1, to: sw}]}, {name: i, slots: 1, nics: [{to: sw}]}]\n"
        "switches: [sw]"
    )
    (told,) = found(Case(described), "far NICs")
    assert told.subject == "h.eth0"


def test_mixed_nics() -> None:
    (problem,) = found(Case(load("cluster:4x1,net=10Gbit/s+10Gbit/s+1Gbit/s+10Gbit/s")), "mixed NICs")
    assert (problem.severity, problem.subject) == (Severity.WARNING, "h2")
    assert problem.values == {"slowest": "125MB/s", "fastest": "1.25GB/s"}
    (rails,) = found(Case(load("rails:2x2,net=200Mbit/s+50Mbit/s")), "mixed NICs")
    assert (rails.severity, rails.values) == (Severity.NOTE, {"rates": ["25MB/s", "6.25MB/s"]})


def test_rates_that_nobody_knows() -> None:
    unknown = [facts(name, nics=(nic(speed=None),)) for name in ("h0", "h1")]
    (problem,) = found(job(*unknown), "unknown rates")
    assert (problem.severity, problem.subject) == (Severity.WARNING, "h0.eth0, h1.eth0")
    assert problem.values == {"assumed": "1.25GB/s", "nics": 2}
    assert found(job(*unknown), "mixed NICs") == []
    declared = merge([Part(Origin.USER, load("cluster:2x1,net=1Gbit/s")), Part(Origin.SYSFS, job(*unknown).topology)]).topology
    assert found(Case(declared), "unknown rates") == [], "somebody has said it"
    (alone,) = found(job(unknown[0]), "unknown rates")
    assert alone.severity is Severity.NOTE


def test_pcie_below_its_means() -> None:
    slow = nic(speed=25e9, pci=(PciHop("0000:03:00.0", 6e9, 48e9), PciHop("0000:02:00.0", 48e9, 48e9)))
    trained, narrow = found(job(facts(nics=(slow,))), "pcie")
    assert (trained.subject, trained.values) == (
        "eth0 of host 'a'",
        {"device": "0000:03:00.0", "now": "6GB/s", "could do": "48GB/s"},
    )
    assert narrow.values == {"PCIe": "6GB/s", "NIC": "25GB/s"}
    assert found(job(facts(nics=(nic(pci=(PciHop("0000:03:00.0", 48e9, 48e9), PciHop("0000:02:00.0"))),))), "pcie") == []


def test_a_switch_that_claims_generation_1() -> None:
    liar = nic(pci=(PciHop("0000:03:00.0", 48e9, 48e9), PciHop("0000:02:00.0", None, None, True)))
    (problem,) = found(job(facts(nics=(liar,)), facts(nics=(liar,))), "false gen 1")
    assert (problem.severity, problem.subject) == (Severity.NOTE, "PCIe switch 0000:02:00.0 of host 'a'")


def test_ranks_that_cannot_reach_each_other() -> None:
    apart = loads("hosts: [{name: a, slots: 1}, {name: b, slots: 2}]")
    (problem,) = found(Case(apart), "connected")
    assert (problem.severity, problem.subject, problem.values) == (Severity.ERROR, "ranks 1-2", {"unreachable": "ranks 1-2", "ranks": 3})
    one_way = loads("hosts: [{name: a, slots: 1}, {name: b, slots: 1}]\nlinks: [{between: [a, b], bandwidth: 1, duplex: one_way}]")
    assert len(found(Case(one_way), "connected")) == 1
    assert found(Case(Topology("empty", [], [])), "connected")[0].reason.startswith("there is no slot")


def test_what_a_parser_assumed() -> None:
    noted = loads("hosts: [{name: h, slots: 1, attrs: {notes: [the NVLinks are not in the file]}}]")
    (problem,) = found(Case(noted), "assumptions")
    assert (problem.severity, problem.subject, problem.reason) == (Severity.NOTE, "h", "the NVLinks are not in the file")
