"""Expert parallelism: a mixture-of-experts layer learns scikit-learn's digits; each rank holds experts of its own.

    mpirun -n 4 python examples/moe_digits.py
    torchrun --nproc-per-node 4 examples/moe_digits.py
    torchrun --nproc-per-node 4 examples/moe_digits.py --backend gloo
    python bench/lab.py run bench/fabrics/cluster-4x2.yaml -- python examples/moe_digits.py

The last line runs it on a virtual cluster of four hosts (needs root). Without a launcher it runs in one process.

A gate sends every image to one of the experts, wherever that is, and its answer comes back. How many go from rank to rank
changes with every step: an all_to_all of unequal counts there, another one back, and both again for the gradients.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
from digits import Curve, Digits, options, start, stop
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot, relu

WIDTH = 64


class AllToAll(torch.autograd.Function):
    """Sends the first ``sending[0]`` rows to rank 0, the next ``sending[1]`` to rank 1, and so on; gradients go the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sending: list[int], receiving: list[int]) -> Tensor:
        ctx.counts = sending, receiving
        received = rows.new_empty((sum(receiving), *rows.shape[1:]))
        dist.all_to_all_single(received, rows.contiguous(), receiving, sending)
        return received

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        sending, receiving = ctx.counts
        return AllToAll.apply(grads[0], receiving, sending), None, None


class MixtureOfExperts(nn.Module):
    """``each`` experts on every rank, and a gate, the same on all ranks, that chooses one of them for each row."""

    def __init__(self, width: int, each: int) -> None:
        super().__init__()
        self.each = each
        self.total = each * dist.get_world_size()
        self.gate = nn.Linear(width, self.total)
        first = each * dist.get_rank()
        self.experts = nn.ModuleList(self._expert(width, first + i) for i in range(each))
        self.received = torch.zeros(each, dtype=torch.int64)  # rows that each expert has got in the last call

    @staticmethod
    def _expert(width: int, number: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(1 + number)  # experts differ, wherever they are
            return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What the experts say, and a loss that is least (1) when all experts are chosen equally often."""
        shares = self.gate(rows).softmax(1)
        share, chosen = shares.max(1)
        often = one_hot(chosen, self.total).to(shares.dtype).mean(0)
        balance = self.total * (often * shares.mean(0)).sum()

        # Tell every rank how many rows come for each of its experts.
        ranks = dist.get_world_size()
        going = chosen.bincount(minlength=self.total)
        coming = torch.empty_like(going)
        dist.all_to_all_single(coming, going)
        sending, receiving = (counts.view(ranks, self.each).sum(1).tolist() for counts in (going, coming))

        # There, ...
        order = chosen.argsort(stable=True)
        inputs = AllToAll.apply(rows[order], sending, receiving)
        # ... where the rows from each rank are sorted by expert, ...
        expert_of_row = torch.arange(self.each).repeat(ranks).repeat_interleave(coming)
        outputs = torch.empty_like(inputs)
        for i, expert in enumerate(self.experts):
            at = (expert_of_row == i).nonzero().flatten()
            outputs = outputs.index_copy(0, at, expert(inputs[at]))
        self.received = expert_of_row.bincount(minlength=self.each)
        # ... and back.
        answers = AllToAll.apply(outputs, receiving, sending)
        return share.unsqueeze(1) * torch.empty_like(answers).index_copy(0, order, answers), balance


class Network(nn.Module):
    def __init__(self, experts: int) -> None:
        super().__init__()
        self.first = nn.Linear(64, WIDTH)
        self.mixture = MixtureOfExperts(WIDTH, experts)
        self.last = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        hidden = relu(self.first(images))
        answers, balance = self.mixture(hidden)
        return self.last(hidden + answers), balance

    def average_gradients(self) -> None:
        """Each rank's loss is the mean over its own batch; the one to lessen is the mean over all ranks."""
        own = set(self.mixture.experts.parameters())
        for parameter in self.parameters():
            if parameter not in own:  # what came back through AllToAll is already the sum over all ranks
                dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    network = Network(args.experts)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    data, curve = Digits(args.batch), Curve()
    for epoch in range(args.epochs):
        losses = []
        for images, digits in data.epoch(epoch):
            answers, balance = network(images)
            loss = cross_entropy(answers, digits)
            optimizer.zero_grad()
            (loss + 0.1 * balance).backward()
            network.average_gradients()
            optimizer.step()
            losses.append(loss.detach())
        images, digits = data.test
        with torch.no_grad():
            curve.add(losses, network(images)[0].argmax(1) == digits)
    counts = network.mixture.received
    everyones = [torch.empty_like(counts) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, counts)
    if dist.get_rank() == 0:
        print(f"of the test images, the experts got {torch.cat(everyones).tolist()}")
    curve.write(args.losses)


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--experts", type=int, default=2, help="experts per rank (default: %(default)s)")
    arguments = parser.parse_args()
    start(arguments.backend)  # dist.init_process_group("topoccl")
    train(arguments)
    stop()
