"""The runs under mpirun are what they claim to be."""

from __future__ import annotations

import os

import pytest


def test_every_rank_runs_the_same_tests_in_the_same_order(request: pytest.FixtureRequest) -> None:
    from mpi4py import MPI

    assert int(os.environ["OMPI_COMM_WORLD_SIZE"]) == MPI.COMM_WORLD.size
    mine = [item.nodeid for item in request.session.items]
    everyone = MPI.COMM_WORLD.allgather(mine)
    assert all(theirs == mine for theirs in everyone), "tests that differ between ranks would wait for each other for ever"
