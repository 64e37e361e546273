"""The virtual cluster: hosts, links and switches of a topology file as Linux namespaces on one machine.

``plan`` and ``routes`` are pure: a Topology becomes devices, addresses, routes and commands. ``holder`` keeps the namespaces
alive, ``cluster`` puts the commands to work and enters hosts, ``launch`` starts ranks across them, ``state`` remembers which
clusters exist.
"""

from __future__ import annotations


class LabError(RuntimeError):
    """The cluster cannot be built or used as asked; the message names the subject, the reason and the values."""


class LabUnavailable(LabError):
    """This machine, or this user, cannot have virtual clusters at all."""
