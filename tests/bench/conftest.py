"""Fixtures of the tests of benchmarks and of the virtual cluster."""

from __future__ import annotations

import pytest

from topoccl.bench.virtual import LabUnavailable
from topoccl.bench.virtual.cluster import Cluster
from topoccl.topology.load import load


@pytest.fixture(scope="session")
def virtual_cluster(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips what needs a virtual cluster where none can be had."""
    try:
        with Cluster.create(load("cluster:1x1"), "probe", base=tmp_path_factory.mktemp("probe")):
            pass
    except LabUnavailable as error:
        pytest.skip(str(error))
