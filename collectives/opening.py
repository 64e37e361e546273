"""Opening a job's transport so that what one rank cannot use is an error on all: ranks first say what they are about to open."""

from __future__ import annotations

import os
from typing import Any

from topoccl.collectives.bootstrap import (
    LaunchInfo,
    choose_transport,
    exchange_or_raise,
    open_gloo,
    open_transport,
    share_store,
)
from topoccl.collectives.config import Config, check_agreement, variable_of
from topoccl.collectives.errors import ConfigError, TopocclError
from topoccl.collectives.transports.base import Transport


def open_job(info: LaunchInfo, **options: Any) -> tuple[Transport, Config]:
    """The transport among all ranks of this job and this rank's configuration; every rank calls it.

    Args:
        info: how this process was started.
        options: as :func:`~topoccl.collectives.setup.init` takes them.

    Raises:
        ConfigError: a value or a library that one rank cannot use, or transports that differ; on every rank. Only where ranks have
            no place to meet (mpirun without mpi4py, or with a MASTER_ADDR that counts for Gloo alone) does one of them fail by
            itself, upon which its launcher ends the others.
        TransportError, CollectiveTimeout: ranks cannot reach each other.
    """
    config, name, problem = Config(), "", None
    try:
        config = Config.from_environment(os.environ, **options)
        name = choose_transport(config.transport, info)
        if name == "gloo":
            from topoccl.collectives.transports.gloo import import_torch_distributed

            import_torch_distributed()
    except TopocclError as error:
        problem = error
    if info.kind == "mpirun" and (info.master is None or name == "mpi"):
        return _meet_over_mpi(info, name, config, problem), config
    if problem is not None and info.kind != "torchrun":
        raise problem
    return open_transport(name or "gloo", info, config.timeout, config.socket_ifname, problem=problem), config


def _meet_over_mpi(info: LaunchInfo, name: str, config: Config, problem: TopocclError | None) -> Transport:
    from topoccl.collectives.transports.mpi import mpi_transport

    limit = config.timeout
    try:
        mpi = mpi_transport(info.size, timeout=limit, for_transport=name or "mpi")
    except ConfigError as error:  # nobody can be told
        raise problem or error from None
    try:
        names = exchange_or_raise(mpi, problem or name, limit)
        check_agreement([{variable_of("transport"): chosen} for chosen in names])
        if name == "mpi":
            return mpi
        store, master = share_store(mpi, info.size, limit, config.socket_ifname)
    except BaseException:
        mpi.close()
        raise
    mpi.close()
    return open_gloo(store, info, limit, config.socket_ifname, master)
