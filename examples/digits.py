"""What both examples need beside their subject: options, a start under any launcher, scikit-learn's digits, a file of losses."""

from __future__ import annotations

import argparse
import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import topoccl  # noqa: F401  (makes the backend known; an installed topoccl is known to torch without this)

TRAIN = 1500  # of 1797 images; the others are for testing


def options(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="topoccl", choices=["topoccl", "gloo"], help="of torch.distributed (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the training images (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=96, help="images per step, over all ranks (default: %(default)s)")
    parser.add_argument("--losses", type=Path, metavar="FILE", help="write the loss of every step, as JSON")
    return parser


def start(backend: str) -> None:
    """Joins the other ranks of this job. A program that neither torchrun nor mpirun has started is alone."""
    if any(name in os.environ for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")):
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def stop() -> None:
    """Leaves the other ranks; call it where nothing refers to models and works any more.

    Gloo's threads abort a process whose interpreter ends before them, and they live as long as anything holds the group.
    DistributedDataParallel does, in cycles that only the garbage collector finds.
    """
    dist.destroy_process_group()
    gc.collect()


class Digits:
    """1797 images of 8 x 8 pixels, and what digit each shows."""

    def __init__(self, batch: int) -> None:
        images, digits = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(images))
        x = torch.tensor(images[order] / 16, dtype=torch.float32)
        y = torch.tensor(digits[order])
        train = TensorDataset(x[:TRAIN], y[:TRAIN])
        self._sampler = DistributedSampler(train)
        self._loader = DataLoader(train, batch_size=max(1, batch // dist.get_world_size()), sampler=self._sampler)
        mine = slice(TRAIN + dist.get_rank(), None, dist.get_world_size())
        self.test = x[mine], y[mine]

    def epoch(self, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's batches of an epoch: as many, and as large ones, as every other rank's."""
        self._sampler.set_epoch(number)
        yield from self._loader


class Curve:
    """The loss of every step, averaged over all ranks."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def add(self, losses: list[torch.Tensor], right: torch.Tensor) -> None:
        """An epoch's losses of this rank, and which of its test images the network then got right."""
        mean = torch.stack(losses).double()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        self.losses += mean.tolist()
        counts = torch.tensor([int(right.sum()), right.numel()])
        dist.all_reduce(counts)
        if dist.get_rank() == 0:
            print(f"{len(self.losses):4} steps: loss {mean[-1]:.4f}, {counts[0] / counts[1]:.1%} of the test images right", flush=True)

    def write(self, file: Path | None) -> None:
        if file is not None and dist.get_rank() == 0:
            said = {"backend": dist.get_backend(), "ranks": dist.get_world_size(), "losses": self.losses}
            file.write_text(json.dumps(said) + "\n", encoding="utf-8")
