"""What one process sees of its host: plain data that can be pickled and gathered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NumaFacts:
    """One NUMA node: its number, its CPUs (those this process may not use included), and how far it is from each node in order of
    their numbers (the firmware's figures, 10 for itself; empty where unknown)."""

    id: int
    cpus: tuple[int, ...]
    distances: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PciHop:
    """A device or bridge on the way from a PCI device up to the processor, with the link above it.

    Attributes:
        address: such as ``0000:3b:00.0``.
        rate: bytes/s per direction that the link is trained to, by NCCL's figures; None where unknown.
        best: what both of its ends could do.
        false_gen1: a bridge that claims generation 1 or 2 although what is below it is faster, as the inner ports of switches often
            do: not believed.
    """

    address: str
    rate: float | None = None
    best: float | None = None
    false_gen1: bool = False


@dataclass(frozen=True, slots=True)
class NicFacts:
    """One network interface of the process's network namespace.

    Attributes:
        name: such as ``eth0``.
        speed: bytes/s, None where the driver does not say (virtual machines often do not) or makes it up (veth).
        up: administratively up and with a carrier.
        physical: backed by a device, or a bond of such; false for bridges, tunnels, veth.
        numa: the NUMA node it hangs on, None where unknown.
        addresses: such as ``10.0.0.1/24`` or ``fd00::1/64``, without loopback and link-local ones.
        pci: the way up to the processor, the device first; empty where it is none of PCI.
        rdma: RDMA device and port such as ``mlx5_0:1``, empty where it has none.
    """

    name: str
    speed: float | None
    up: bool
    physical: bool
    numa: int | None
    addresses: tuple[str, ...]
    pci: tuple[PciHop, ...] = ()
    rdma: str = ""

    @property
    def families(self) -> frozenset[str]:
        """``ipv4`` and ``ipv6``, as far as there are addresses."""
        return frozenset("ipv6" if ":" in address else "ipv4" for address in self.addresses)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What one process sees of its host.

    Attributes:
        hostname: of its UTS namespace.
        boot_id: the kernel's, new at every boot; empty where it cannot be read.
        network_namespace: its inode number, 0 where it cannot be read.
        affinity: CPUs that the process may run on (the kernel has cut them to the cgroup's cpuset).
        cpu_quota: CPUs' worth of time per second that the cgroup allows, None without a limit.
        packages: for each processor package the CPUs of ``affinity`` in it.
        numa: NUMA nodes, by number.
        nics: interfaces that passed the filter, by name.
        shm_size: bytes of /dev/shm, None where there is none.
        shm_free: bytes of it that are free.
    """

    hostname: str
    boot_id: str
    network_namespace: int
    affinity: tuple[int, ...]
    cpu_quota: float | None
    packages: tuple[tuple[int, ...], ...]
    numa: tuple[NumaFacts, ...]
    nics: tuple[NicFacts, ...]
    shm_size: int | None
    shm_free: int | None

    @property
    def host_id(self) -> str:
        """What tells hosts apart as long as nobody says otherwise. Equal for two ranks does not prove that they share memory."""
        return f"{self.hostname}/{self.boot_id}/{self.network_namespace}"

    @property
    def usable_nics(self) -> tuple[NicFacts, ...]:
        """The NICs that can carry traffic: up, with an address; physical ones only, if there are any."""
        able = tuple(nic for nic in self.nics if nic.up and nic.addresses)
        return tuple(nic for nic in able if nic.physical) or able
