"""Data parallelism: a small network learns scikit-learn's digits, one replica per rank, with DistributedDataParallel.

    mpirun -n 4 python examples/ddp_digits.py
    torchrun --nproc-per-node 4 examples/ddp_digits.py
    torchrun --nproc-per-node 4 examples/ddp_digits.py --backend gloo
    python bench/lab.py run bench/fabrics/cluster-4x2.yaml -- python examples/ddp_digits.py

The last line runs it on a virtual cluster of four hosts (needs root). Without a launcher it runs in one process.
"""

from __future__ import annotations

import argparse

import torch
from digits import Curve, Digits, options, start, stop
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data, curve = Digits(args.batch), Curve()
    for epoch in range(args.epochs):
        losses = []
        for images, digits in data.epoch(epoch):
            loss = cross_entropy(model(images), digits)
            optimizer.zero_grad()
            loss.backward()  # averages the gradients over all ranks meanwhile
            optimizer.step()
            losses.append(loss.detach())
        images, digits = data.test
        with torch.no_grad():
            curve.add(losses, network(images).argmax(1) == digits)
    curve.write(args.losses)


if __name__ == "__main__":
    arguments = options(__doc__).parse_args()
    start(arguments.backend)  # dist.init_process_group("topoccl")
    train(arguments)
    stop()
