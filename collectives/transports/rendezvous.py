"""Where Gloo's ranks meet (a TCPStore) and by which address each rank is reached: never a loopback address between hosts."""

from __future__ import annotations

import fcntl
import ipaddress
import itertools
import json
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topoccl.collectives.bootstrap import exchange_or_raise
from topoccl.collectives.errors import ConfigError, TopocclError, TransportError

if TYPE_CHECKING:
    from torch.distributed import Store

    from topoccl.collectives.config import InterfaceFilter
    from topoccl.collectives.transports.base import Transport

_SIOCGIFADDR = 0x8915
_PROBE_SECONDS = 3.0
_FAREWELL_SECONDS = 3.0
_generations = itertools.count()
_served: dict[tuple[str, int], Store] = {}


@dataclass(frozen=True)
class Address:
    """An IP address of a network interface that is up."""

    interface: str
    ip: str

    @property
    def version(self) -> int:
        return ipaddress.ip_address(self.ip).version

    @property
    def loopback(self) -> bool:
        return ipaddress.ip_address(self.ip).is_loopback


def local_addresses() -> list[Address]:
    """The addresses of this host's interfaces that are up: of each, IPv4's first and IPv6's (link-local ones left out)."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            if not _flags(name) & 1:  # IFF_UP
                continue
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # no IPv4 address
            found.append(Address(name, socket.inet_ntoa(answer[20:24])))
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        digits, _, _, _, _, name = line.split()
        ip = ipaddress.IPv6Address(int(digits, 16))
        if not ip.is_link_local and _flags(name) & 1:
            found.append(Address(name, str(ip)))
    return found


def _flags(interface: str) -> int:
    try:
        return int(Path(f"/sys/class/net/{interface}/flags").read_text(), 16)
    except (OSError, ValueError):
        return 1  # no sysfs here: taken to be up


def network_identity() -> str:
    """Equal for processes that reach each other over loopback: the boot and the network namespace. (Not TOPOCCL_HOSTID, which says
    what shall count as a host.)"""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return socket.gethostname()


def source_address(target: str) -> str | None:
    """The local address from which ``target`` (a name or an address) is reached; None when there is no route."""
    try:
        answers = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, where in answers:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(where)  # sends nothing
                return str(probe.getsockname()[0]).split("%")[0]
        except OSError:
            continue
    return None


def open_store(dist: Any, master: tuple[str, int], size: int, timeout: float, serve: bool, attempt: int) -> Store:
    """The store at ``master`` (host, port), opened there if ``serve``; its keys are for the caller alone.

    A store that is opened stays until the process ends: others may come to it for their next transport while this rank still leaves
    the one before.
    """
    host, port = master
    try:
        store = dist.TCPStore(
            host, port, size, is_master=serve, timeout=timedelta(seconds=timeout), wait_for_workers=False, multi_tenant=True
        )
        if serve:
            _served.setdefault(master, store)
    except RuntimeError as exc:
        doing = "open" if serve else "reach"
        raise TransportError(f"gloo: cannot {doing} the store at {host}:{port} (MASTER_ADDR, MASTER_PORT): {exc}") from exc
    # Generations keep apart what one job opens one after the other, attempts what torchrun has restarted.
    return dist.PrefixStore(f"topoccl/attempt_{attempt}/{next(_generations)}", store)


@dataclass(frozen=True)
class Offer:
    """Where rank 0 has opened a store."""

    identity: str
    addresses: tuple[str, ...]
    port: int


def serve_store(dist: Any, size: int, timeout: float, interfaces: InterfaceFilter | None) -> tuple[Store, Offer]:
    """Opens a store on a free port."""
    try:
        store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, timeout=timedelta(seconds=timeout), wait_for_workers=False)
    except RuntimeError as exc:
        raise TransportError(f"gloo: rank 0 cannot open a store: {exc}") from exc
    addresses = [address.ip for address in _allowed(interfaces) if not address.loopback]
    return store, Offer(network_identity(), tuple(addresses), store.port)


def join_store(dist: Any, offer: Offer, size: int, timeout: float) -> tuple[Store, tuple[str, int]]:
    """The store that another rank has opened, and by which address it was reached."""
    hosts = ("127.0.0.1",) if offer.identity == network_identity() else offer.addresses
    for host in hosts:
        try:
            socket.create_connection((host, offer.port), min(timeout, _PROBE_SECONDS)).close()
            store = dist.TCPStore(host, offer.port, size, is_master=False, timeout=timedelta(seconds=timeout), wait_for_workers=False)
        except (OSError, RuntimeError):
            continue
        return store, (host, offer.port)
    raise TransportError(
        f"gloo: {socket.gethostname()} reaches rank 0's store (port {offer.port}) at none of its addresses "
        f"{', '.join(offer.addresses) or '(it has none but loopback)'}; TOPOCCL_SOCKET_IFNAME chooses interfaces"
    )


def _allowed(interfaces: InterfaceFilter | None) -> list[Address]:
    found = local_addresses()
    if interfaces is None or not interfaces.explicit:
        return found
    allowed = [address for address in found if interfaces.matches(address.interface)]
    if not allowed:
        known = ", ".join(f"{address.interface} ({address.ip})" for address in found)
        raise ConfigError(
            f"TOPOCCL_SOCKET_IFNAME={interfaces} matches no interface of {socket.gethostname()} that is up and has an address; "
            f"known are {known}"
        )
    return allowed


def choose_address(
    store: Store,
    rank: int,
    size: int,
    interfaces: InterfaceFilter | None,
    master: tuple[str, int] | None,
    timeout: float,
    problem: TopocclError | None = None,
) -> str:
    """The address by which this rank's peers shall reach it; every rank must call it. A ``problem`` of one rank is raised on all.

    All ranks in one network namespace and no interface asked for: loopback. Else rank 0 settles on IPv4 or IPv6, and each rank takes
    the first address of the interfaces asked for or, by default, the one from which it reaches ``master``; ranks beside the master
    take the one from which they reach a rank elsewhere.

    Raises:
        ConfigError: on every rank, when one has no fitting address.
        TransportError: a rank has not come within ``timeout`` seconds.
    """
    try:
        return _choose_address(store, rank, size, interfaces, master, timeout, problem)
    except TopocclError:
        wait_until_all_have_heard(store, rank, size)
        raise


def address_among(transport: Transport, interfaces: InterfaceFilter | None, timeout: float) -> str:
    """As :func:`choose_address`, for ranks that have met over ``transport``.

    Raises:
        ConfigError: on every rank, when one has no fitting address.
        TransportError, CollectiveTimeout: as :func:`~topoccl.collectives.bootstrap.exchange`.
    """
    place: Any
    try:
        place = _place(interfaces, None)
    except TopocclError as problem:
        place = problem
    return _pick(_settle(exchange_or_raise(transport, place, timeout)), interfaces, None)


def wait_until_all_have_heard(store: Store, rank: int, size: int) -> None:
    """For ranks that end with the same error: the program may end now and, with rank 0, the store in which the others hear of it."""
    end = time.monotonic() + _FAREWELL_SECONDS
    try:
        heard = store.add("heard", 1)
        while rank == 0 and heard < size and time.monotonic() < end:
            time.sleep(0.01)
            heard = store.add("heard", 0)
    except RuntimeError:
        pass  # the store has gone; what is raised matters more


def _choose_address(
    store: Store,
    rank: int,
    size: int,
    interfaces: InterfaceFilter | None,
    master: tuple[str, int] | None,
    timeout: float,
    problem: TopocclError | None,
) -> str:
    deadline = time.monotonic() + timeout

    def place() -> dict[str, Any]:
        if problem is not None:
            raise problem
        return _place(interfaces, master)

    _tell(store, f"where/{rank}", place)
    if rank == 0:
        _tell(store, "meet", lambda: _settle([_hear(store, f"where/{peer}", f"rank {peer}", deadline) for peer in range(size)]))
    verdict = _hear(store, "meet", "rank 0", deadline)
    _tell(store, f"address/{rank}", lambda: {"ip": _pick(verdict, interfaces, master)})
    if rank == 0:
        _tell(store, "settled", lambda: {"of": [_hear(store, f"address/{peer}", f"rank {peer}", deadline)["ip"] for peer in range(size)]})
    return str(_hear(store, "settled", "rank 0", deadline)["of"][rank])


def _tell(store: Store, key: str, make: Callable[[], dict[str, Any]]) -> None:
    """Sets a key to what ``make`` returns, or to the error it raises, for whoever hears it."""
    try:
        value = make()
    except TopocclError as exc:
        value = {"error": str(exc), "config": isinstance(exc, ConfigError)}
    store.set(key, json.dumps(value))


def _hear(store: Store, key: str, who: str, deadline: float) -> dict[str, Any]:
    try:
        store.wait([key], timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
        value: dict[str, Any] = json.loads(store.get(key))
    except RuntimeError as exc:
        raise TransportError(f"gloo: {who} did not come to the store in time: {exc}") from exc
    if "error" in value:
        text = value["error"] if value["error"].startswith("rank ") else f"{who}: {value['error']}"
        raise (ConfigError if value["config"] else TransportError)(text)
    return value


def _place(interfaces: InterfaceFilter | None, master: tuple[str, int] | None) -> dict[str, Any]:
    allowed = _allowed(interfaces)
    explicit = interfaces is not None and interfaces.explicit
    usable = [address for address in allowed if explicit or not address.loopback]
    toward = source_address(master[0]) if master is not None else None
    usable.sort(key=lambda address: address.ip != toward)
    return {"network": network_identity(), "explicit": explicit, "usable": [[address.version, address.ip] for address in usable]}


def _settle(places: list[dict[str, Any]]) -> dict[str, Any]:
    """Rank 0's verdict: ``version`` of IP, and for two networks an address in each (``beacons``); version 0 is loopback."""
    networks = {place["network"]: place for place in reversed(places)}
    if len(networks) == 1 and not any(place["explicit"] for place in places):
        return {"version": 0, "beacons": []}
    for version in (4, 6):
        if all(any(v == version for v, _ in place["usable"]) for place in places):
            firsts = [[network, next(ip for v, ip in place["usable"] if v == version)] for network, place in networks.items()]
            return {"version": version, "beacons": firsts[:2]}
    lacking = [f"rank {rank} {[ip for _, ip in place['usable']] or 'has none'}" for rank, place in enumerate(places)]
    raise ConfigError(
        "no version of IP that all ranks have an address of (loopback does not count between hosts): " + ", ".join(lacking[:8])
    )


def _pick(verdict: dict[str, Any], interfaces: InterfaceFilter | None, master: tuple[str, int] | None) -> str:
    version = verdict["version"]
    if version == 0:
        return "127.0.0.1"
    usable = [ip for v, ip in _place(interfaces, master)["usable"] if v == version]
    if interfaces is not None and interfaces.explicit:
        return str(usable[0])
    mine = network_identity()
    for target in ([master[0]] if master is not None else []) + [ip for network, ip in verdict["beacons"] if network != mine]:
        source = source_address(target)
        if source in usable:
            return str(source)
    return str(usable[0])
