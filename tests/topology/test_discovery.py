"""Discovery: facts from a copied /proc and /sys, and one cluster out of all ranks' facts."""

from __future__ import annotations

import os
import pickle
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoccl.topology import TopologyError
from topoccl.topology.discovery import HostFacts, NicFacts, NumaFacts, assemble, discover_host, usual_interface
from topoccl.topology.discovery.sysfs import cpu_list
from topoccl.topology.dump import dump
from topoccl.topology.files import loads
from topoccl.topology.routes import Routes


def test_this_host() -> None:
    facts = discover_host()
    assert pickle.loads(pickle.dumps(facts)) == facts
    assert facts.hostname == socket.gethostname()
    assert facts.affinity == tuple(sorted(os.sched_getaffinity(0)))
    assert sorted(cpu for package in facts.packages for cpu in package) == list(facts.affinity)
    assert facts.network_namespace == os.stat("/proc/self/ns/net").st_ino
    assert "lo" not in [nic.name for nic in facts.nics]
    assert all(nic.speed is None or nic.speed > 0 for nic in facts.nics)
    assert discover_host(lambda name: False).nics == ()
    assert assemble([facts], [facts.host_id]).num_ranks == 1


def test_the_usual_filter() -> None:
    assert [name for name in ("lo", "docker0", "eth0", "ib0") if usual_interface(name)] == ["eth0", "ib0"]


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)), ("5", (5,)), ("", ()), ("x,1-2,3-", (1, 2)), ("3-1", ()), ("0-9999999", ())],
)
def test_cpu_lists(text: str, cpus: tuple[int, ...]) -> None:
    assert cpu_list(text) == cpus


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_numa_packages_and_boot_from_files(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    write(
        tmp_path,
        {
            "proc/sys/kernel/random/boot_id": "boot-7\n",
            "sys/devices/system/node/online": "0,8,252\n",
            "sys/devices/system/node/node0/cpulist": "0-1\n",
            "sys/devices/system/node/node8/cpulist": "2-3\n",
            "sys/devices/system/node/node252/cpulist": "\n",
            f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id": "3\n",
        },
    )
    facts = discover_host(root=tmp_path)
    assert facts.boot_id == "boot-7"
    assert facts.numa == (NumaFacts(0, (0, 1)), NumaFacts(8, (2, 3)))
    assert facts.packages[-1] == (cpu,)
    assert facts.shm_size is None
    assert facts.network_namespace == 0


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
        (
            {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "300000 100000\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"},
            1.5,
        ),
        ({"proc/self/cgroup": "0::/../..\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n1:cpu,cpuacct:/y\n",
                "sys/fs/cgroup/cpu/y/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/y/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "garbage\n"}, None),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "100 0\n"}, None),
    ],
)
def test_quota_of_both_cgroup_versions(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    write(tmp_path, files)
    assert discover_host(root=tmp_path).cpu_quota == quota


def test_nic_files_are_believed_only_for_the_same_interface(tmp_path: Path) -> None:
    """/sys may show another network namespace: an interface of the same name with another index is a stranger."""
    index, name = next(pair for pair in socket.if_nameindex() if pair[1] != "lo") if len(socket.if_nameindex()) > 1 else (0, "")
    if not name:
        pytest.skip("this machine has no interface but loopback")
    at = f"sys/class/net/{name}"
    write(tmp_path, {f"{at}/ifindex": f"{index}\n", f"{at}/speed": "100000\n", f"{at}/device/numa_node": "1\n"})
    write(tmp_path, {"proc/self/net/if_inet6": f"fd000000000000000000000000000007 02 40 00 80 {name}\nbroken\n"})
    (nic,) = discover_host(lambda other: other == name, tmp_path).nics
    assert (nic.speed, nic.numa, nic.physical) == (12.5e9, 1, True)
    assert "fd00::7/64" in nic.addresses
    write(tmp_path, {f"{at}/ifindex": f"{index + 1}\n"})
    (nic,) = discover_host(lambda other: other == name, tmp_path).nics
    assert (nic.speed, nic.numa, nic.physical) == (None, None, False)


# One cluster from all facts


def nic(name: str, address: str = "", speed: float | None = 25e6, **more: object) -> NicFacts:
    base = NicFacts(name, speed, up=True, physical=True, numa=None, addresses=(address,) if address else ())
    return replace(base, **more)  # type: ignore[arg-type]


def host(name: str, *nics: NicFacts, cpus: tuple[int, ...] = (0, 1), numa: tuple[NumaFacts, ...] = ()) -> HostFacts:
    return HostFacts(name, "boot", 1, cpus, None, (cpus,), numa, nics, 1 << 30, 1 << 30)


def test_ranks_interleaved_over_two_hosts() -> None:
    a, b = host("a", nic("eth0", "10.0.0.1/24")), host("b", nic("eth0", "10.0.0.2/24", speed=None))
    topology = assemble([a, b, a, b, a], ["A", "B", "A", "B", "A"])
    assert topology.host_of_rank == ("a", "b", "a", "b", "a")
    assert topology.hosts == ("a", "b")
    net = {link.name: (link.bandwidth, link.attrs["source"]) for link in topology.links if link.kind == "net"}
    assert net["a.eth0->switch0"] == (25e6, "sysfs")
    assert net["b.eth0->switch0"] == (1.25e9, "default")
    assert Routes(topology).bottleneck(Routes(topology).path(0, 1)) == 25e6
    assert loads(dump(topology)) == topology


def test_host_ids_decide_not_names() -> None:
    """Containers may share a host name; one host may be split on purpose."""
    same = host("box", nic("eth0", "10.0.0.1/24"))
    topology = assemble([same, same, same], ["x", "y", "x"])
    assert topology.host_of_rank == ("box", "box#2", "box")
    assert topology.ranks_by_host == ((0, 2), (1,))


def test_subnets_that_reach_everybody_are_rails() -> None:
    hosts = [host(f"h{i}", nic("eth0", f"10.0.0.{i}/24"), nic("eth1", f"10.0.1.{i}/24", speed=12.5e6)) for i in range(1, 4)]
    topology = assemble(hosts, ["1", "2", "3"])
    assert Routes(topology).rails(0, 2) == 2
    assert {link.dst for link in topology.links if link.src == "h1.eth1"} == {"h1", "switch1"}


def test_subnets_of_single_hosts_share_a_switch() -> None:
    """Routed networks give every host a subnet of its own; still all reach all."""
    hosts = [host(f"h{i}", nic("eth0", f"10.0.{i}.1/31")) for i in range(3)]
    topology = assemble(hosts, ["1", "2", "3"])
    assert [v.id for v in topology.vertices.values() if v.kind == "switch"] == ["switch0"]
    assert Routes(topology).path(0, 2)


def test_which_nics_count() -> None:
    facts = host(
        "a",
        nic("br0", "172.17.0.1/16", physical=False),
        nic("eth0", "10.0.0.1/24"),
        nic("eth1", "10.0.1.1/24", up=False),
        nic("eth2"),
    )
    assert [one.name for one in facts.usable_nics] == ["eth0"]
    only_virtual = replace(facts, nics=facts.nics[:1])
    assert [one.name for one in only_virtual.usable_nics] == ["br0"]
    nothing = assemble([host("a"), host("b")], ["a", "b"])
    assert {link.attrs.get("source") for link in nothing.links if link.kind == "net"} == {"default"}
    assert nic("x", "fd00::1/64").families == {"ipv6"}


def test_numa_nodes_take_the_ranks_bound_to_them() -> None:
    numa = (NumaFacts(0, (0, 1)), NumaFacts(2, (2, 3)))
    facts = [host("a", nic("eth0", "10.0.0.1/24", numa=2), cpus=cpus, numa=numa) for cpus in [(0, 1), (2, 3), (0, 1, 2, 3)]]
    topology = assemble(facts, ["a"] * 3)
    hub = {link.src: link.dst for link in topology.links if link.kind == "shm" and link.src in topology.slots}
    assert [hub[slot] for slot in topology.slots] == ["a.numa0", "a.numa2", "a"]
    assert "a.numa2" in {link.dst for link in topology.links if link.src == "a.eth0"}
    assert topology.vertices["a"].attrs["cores"] == 4
    assert topology.vertices["a.numa2"].attrs["cores"] == 2


def test_wrong_numbers_of_facts() -> None:
    with pytest.raises(TopologyError, match="facts of 1 ranks and 2 host ids"):
        assemble([host("a")], ["a", "b"])
    with pytest.raises(TopologyError, match="facts of 0 ranks"):
        assemble([], [])


NAMES = st.sampled_from(["a", "a.s0", "a.eth0", "a#2", "switch0", "switch0.eth0", "", "b"])
NICS = st.lists(
    st.builds(
        NicFacts,
        st.sampled_from(["eth0", "s0", "numa0", "net"]),
        st.sampled_from([None, 1e9]),
        st.booleans(),
        st.booleans(),
        st.sampled_from([None, 0, 1, 7]),
        st.sampled_from([(), ("10.0.0.1/8",), ("fd00::1/64", "10.1.0.0/16")]),
    ),
    max_size=3,
    unique_by=lambda one: one.name,
)
NUMA = st.sampled_from([(), (NumaFacts(0, (0,)), NumaFacts(1, (1,)))])


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.builds(lambda name, nics, numa: host(name, *nics, numa=numa), NAMES, NICS, NUMA), st.integers(0, 4)),
        min_size=1,
        max_size=8,
    )
)
def test_whatever_ranks_saw_makes_one_connected_cluster(seen: list[tuple[HostFacts, int]]) -> None:
    facts, ids = [one for one, _ in seen], [str(number) for _, number in seen]
    topology = assemble(facts, ids)
    assert topology.num_ranks == len(seen)
    assert [ids.index(number) for number in ids] == [topology.host_of_rank.index(name) for name in topology.host_of_rank]
    routes = Routes(topology)
    assert all(routes.path(0, rank) for rank in range(1, len(seen)))
    assert assemble(facts, ids).digest == topology.digest
