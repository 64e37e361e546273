"""A process that is one rank of a torch group, for tests: ``torch_checks.py [--forbid] [--except] [CHECK...]``.

Runs these checks, or all, or with ``--except`` all others. With ``--forbid`` every collective of Gloo and of MPI raises.
"""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch_collective_checks  # noqa: F401 - adds to CHECKS
import torch_group_checks  # noqa: F401
import torch_training_checks  # noqa: F401
from torch_reference import CHECKS, forbid_collectives, forbidding_works

import topoccl  # noqa: F401 - registers the backend


def main(names: list[str]) -> int:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    if "--forbid" in names:
        names.remove("--forbid")
        forbid_collectives(setattr)
        forbidding_works()
    if names[:1] == ["--except"]:
        names = [name for name in CHECKS if name not in names]
    dist.init_process_group("topoccl", timeout=timedelta(seconds=120))
    for name in names or CHECKS:
        begun = time.monotonic()
        try:
            CHECKS[name]()
        except BaseException:
            print(f"rank {dist.get_rank()}: {name} failed\n{traceback.format_exc()}", flush=True)
            return 1
        print(f"{name}: {time.monotonic() - begun:.2f} s", flush=True)
    transport = dist.group.WORLD.communicator.transport.name
    dist.destroy_process_group()
    print(f"all well over {transport}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
