"""topoccl for torch's suite, with barriers between its tests that look for the other ranks more often than every 0.1 s."""

from __future__ import annotations

import sys
import time

import topoccl

_SUITE = "torch.testing._internal.distributed.distributed_test"
_sleep = time.sleep


def _nap(seconds: float) -> None:
    """The suite's barriers are files, and they alone nap for 0.1 s."""
    _sleep(0.005 if seconds == 0.1 and sys._getframe(1).f_globals["__name__"] == _SUITE else seconds)


time.sleep = _nap
assert topoccl.__version__  # its import has registered the backend
