"""Messages of users over Gloo, sockets and MPI, with and without ranks that read each other's memory; ranks that are killed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch_ranks import all_well, run_ranks

HERE = Path(__file__).resolve().parent
PROGRAM = str(HERE / "message_cases.py")
MpiRun = Callable[..., Any]

DYING = """
import os, signal, sys, time
import numpy as np
import topoccl
from topoccl.collectives.executor.reach import Reader
rank = int(os.environ["RANK"])
world = topoccl.init(timeout=60)
data = np.ones(3_000_000, np.uint8)
word = np.zeros(1, np.uint8)
who = sys.argv[1]
if who == "while it is read" and rank == 0:
    [world.transport.notes._readers[1]] = [real] = world.transport.notes._readers.values()
    def read(address, nbytes, target):
        os.kill(real.pid, signal.SIGKILL)
        while True:
            real(address, nbytes, target)
    read.pid = real.pid
    world.transport.notes._readers[1] = read
if rank == 1:
    if who == "receiver":
        world.recv(word, 0, 9)
    else:
        world.send(data, 0, async_op=True)
        world.send(word, 0, 9)
    if who == "while it is read":
        time.sleep(60)
    os.kill(os.getpid(), signal.SIGKILL)
if who == "receiver":
    message = world.send(data, 1, async_op=True)
    world.send(word, 1, 9)
else:
    world.recv(word, 1, 9)
if who == "sender":
    while True:
        try:
            world.send(word, 1, timeout=5)
        except topoccl.TransportError:
            break
try:
    message.wait() if who == "receiver" else world.recv(data, 1)
except topoccl.TransportError as error:
    print(error, flush=True)
    os._exit(0)
os._exit(1)
"""

DROPPED = """
import gc, os, sys, time
import numpy as np
import topoccl
world = topoccl.init(timeout=60)
data = np.ones(3_000_000, np.uint8)
place = sys.argv[1]
if world.rank == 0:
    world.send(data, 1, async_op=True)
    world.barrier()
    del world
    gc.collect()
    data[:] = 2
    open(place, "w").close()
    while os.path.exists(place):
        time.sleep(0.01)
    os._exit(0)
world.barrier()
while not os.path.exists(place):
    time.sleep(0.01)
try:
    world.recv(data, 0)
    print("received", data[0], flush=True)
except topoccl.TransportError as error:
    print(error, flush=True)
os.unlink(place)
os._exit(0)
"""

TORCH = """
import torch
import torch.distributed as dist
dist.init_process_group("topoccl")
rank, size = dist.get_rank(), dist.get_world_size()
other = (rank + 1) % size, (rank - 1) % size
def mine(r, k, n=700_000):
    return torch.arange(n, dtype=torch.float64) + 1000 * r + k
got = torch.zeros(700_000, dtype=torch.float64)
seen = [0] * size
for k in range(2):
    if rank:
        dist.send(mine(rank, k), 0)
        continue
    for _ in range(size - 1):
        source = dist.recv(got)
        assert torch.equal(got, mine(source, seen[source])), source
        seen[source] += 1
works = [dist.isend(mine(rank, k), other[0], tag=10 + k) for k in range(3)]
for k in (1, 2, 0):
    dist.irecv(got, other[1], tag=10 + k).wait()
    assert torch.equal(got, mine(other[1], k))
for work in works:
    work.wait()
pair = torch.zeros(700, 2000, dtype=torch.float64)
ops = [dist.P2POp(dist.isend, mine(rank, 0).view(700, 1000), other[0]), dist.P2POp(dist.irecv, pair[:, ::2], other[1])]
for work in dist.batch_isend_irecv(ops):
    work.wait()
assert torch.equal(pair[:, ::2], mine(other[1], 0).view(700, 1000)) and not pair[:, 1::2].any()
group = dist.new_group([size - 1, 0])
if rank in (0, size - 1):
    peer = size - 1 - rank
    work = dist.isend(mine(rank, 7), peer, group=group)
    dist.recv(got, peer, group=group)
    assert torch.equal(got, mine(peer, 7))
    work.wait()
dist.barrier()
notes = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).communicator.transport.notes
print("notes", notes is not None, "all well", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("transport", "hosts", "switch", "noted"),
    [
        ("gloo", "aa", "", False),
        ("tcp", "aaa", "", True),
        ("tcp", "baa", "", True),
        ("tcp", "aa", "TOPOCCL_ATTACH", False),
    ],
)
def test_over_gloo_and_sockets(transport: str, hosts: str, switch: str, noted: bool) -> None:
    results = run_ranks(len(hosts), [PROGRAM, hosts], env={"TOPOCCL_TRANSPORT": transport, **({switch: "0"} if switch else {})})
    all_well(results)
    for host, (_, text) in zip(hosts, results, strict=True):
        assert f"all well over {transport}, notes: {noted and hosts.count(host) > 1}" in text


@pytest.mark.parametrize(("hosts", "shm", "noted"), [("aaa", "1", True), ("baa", "1", True), ("aa", "0", False)])
def test_over_mpi(hosts: str, shm: str, noted: bool, mpirun: MpiRun) -> None:
    done = mpirun(len(hosts), "python", PROGRAM, hosts, env={"TOPOCCL_TRANSPORT": "mpi", "TOPOCCL_SHM": shm}, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    together = sum(hosts.count(host) > 1 for host in hosts)
    assert done.stdout.count(f"all well over mpi, notes: {noted}") == together, done.stdout
    assert done.stdout.count("all well over mpi") == len(hosts)


@pytest.mark.parametrize("transport", ["tcp", "mpi"], ids="over {}".format)  # pytest-mpi skips what is called "mpi"
def test_through_torch(transport: str, mpirun: MpiRun, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TORCH)
    if transport == "mpi":
        done = mpirun(3, "python", str(program), env={"TOPOCCL_TRANSPORT": "mpi"}, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        text = done.stdout
    else:
        results = run_ranks(3, [str(program)], env={"TOPOCCL_TRANSPORT": "tcp"})
        all_well(results)
        text = "".join(output for _, output in results)
    assert text.count("notes True all well") == 3, text


@pytest.mark.parametrize("who", ["sender", "receiver", "while it is read"])
def test_a_rank_that_is_killed_with_a_long_message_open(who: str) -> None:
    results = run_ranks(2, ["-c", DYING, who], hosts="aa", env={"TOPOCCL_TRANSPORT": "tcp"})
    assert [status for status, _ in results] == [0, -9], results
    what = "send to" if who == "receiver" else "recv from"
    assert f"{what} rank 1 with tag 0 failed" in results[0][1]
    why = "has died or has closed its transport" if who == "receiver" else "cannot be read: No such process"
    assert why in results[0][1]


def test_a_world_that_is_dropped_with_a_long_message_open(tmp_path: Path) -> None:
    """Its bytes are not taken for the message when they have changed."""
    results = run_ranks(2, ["-c", DROPPED, str(tmp_path / "dropped")], hosts="aa", env={"TOPOCCL_TRANSPORT": "tcp"})
    all_well(results)
    assert "recv from rank 0 with tag 0 failed" in results[1][1]
    assert "the sender has given it up" in results[1][1]
