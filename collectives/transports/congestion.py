"""How fast the kernel lets a connection send: its congestion control, and its pace."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from contextlib import suppress
from functools import cache

IDLE = 0.2  # seconds without data after which Linux begins anew with a small window (its shortest retransmission timeout)
_NEAR = 50_000  # microseconds: hosts that are further apart keep what their administrator has chosen for long ways
_RTT = struct.Struct("=68xI")  # of struct tcp_info: the round trip's time in microseconds
_INT = struct.Struct("=i")
_SO_MAX_PACING_RATE = 47
_PACE = struct.Struct("=I")  # what every kernel takes; Python's own numbers here end at 2 GB/s
_FASTEST_PACE = (1 << 32) - 2  # one more means no limit


def settle(connection: socket.socket) -> None:
    """Takes Reno instead of BBR, for a connection that has just been made between hosts near each other.

    BBR sends at the rate at which data came through before. Where calls follow each other, several ranks send to one host for a moment,
    each at a part of its link's rate; BBR keeps to such a part for many round trips after, while links lie idle.
    """
    with suppress(OSError, struct.error):  # not every kernel has a choice, nor tells
        if _control(connection) == b"bbr" and _RTT.unpack(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT.size))[0] < _NEAR:
            take(connection, b"reno")


def rouse(connection: socket.socket) -> bytes | None:
    """Before the first data after :data:`IDLE`: lets the window be what it was. The congestion control that this returns, if any, has to be
    taken back after them.

    Linux sets the window back to ten packets then (``net.ipv4.tcp_slow_start_after_idle``) and opens it in round trips as long as they were
    with full queues: a call of 4 MB took a quarter longer. It does not where BBR is in charge at that moment.
    """
    if not _may_rouse():
        return None
    with suppress(OSError):
        if _INT.unpack(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(_INT.size)))[0]:
            return None  # something is still on its way
        usual = _control(connection)
        if usual != b"bbr":
            take(connection, b"bbr")
            return usual
    return None


def take(connection: socket.socket, control: bytes) -> None:
    """Lets the congestion control of this name be in charge from now on, if it may."""
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control)


def hold_back(connection: socket.socket, pace: float) -> None:
    """Lets data leave at ``pace`` bytes/s at most."""
    connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, _PACE.pack(min(round(pace), _FASTEST_PACE)))


@cache
def _may_rouse() -> bool:
    """Whether BBR is there, and allowed. Asked for by root, a module that is not there would be loaded."""
    with suppress(OSError), open("/proc/sys/net/ipv4/tcp_available_congestion_control") as names, socket.socket() as probe:
        if "bbr" in names.read().split():
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
            return True
    return False


def _control(connection: socket.socket) -> bytes:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
