"""Bare parameters of a model, such as one learnt number: a pack keeps one for each of its
models."""

from types import SimpleNamespace

import torch
from torch import nn

from saformer.agents.agent import Phase
from saformer.core.batch import Dimensions
from saformer.training.loop.checkpoints import optimizer_tensors, restore_optimizer
from saformer.training.loop.config import FitConfig
from saformer.training.loop.optimizers import PlainAdamW
from saformer.training.packs.layers import packed_layer
from saformer.training.packs.learner import Slot


class Number(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.value.expand(len(rows))


def packed(*values: float) -> nn.Module:
    parts = [Number(value) for value in values]
    return packed_layer(parts, Dimensions(2, 1), is_gaussian=False)


def test_each_model_reads_and_moves_its_own_number():
    """Seen to fail when every model's rows read the first one's."""
    pack = packed(1.0, 5.0)
    rows = pack(torch.zeros(6))
    assert rows.tolist() == [1.0, 1.0, 1.0, 5.0, 5.0, 5.0]
    (rows * torch.arange(6)).sum().backward()
    assert pack.get_parameter("value").grad.tolist() == [3.0, 12.0]


def test_its_averages_are_saved_and_restored_by_model():
    """Seen to fail when averages without an axis are taken for the count of steps."""

    def learner(model: nn.Module) -> SimpleNamespace:
        single = Number(0.0)
        agent = SimpleNamespace(model=single, phases=(Phase("one", (single.value,), dict),))
        stacked = model.get_parameter("value")
        return SimpleNamespace(
            agents=(agent, agent), slot=lambda index, name: Slot(stacked, lambda part: part[index])
        )

    def optimizer(model: nn.Module) -> PlainAdamW:
        phase = Phase("one", tuple(model.parameters()), dict)
        return PlainAdamW(phase, FitConfig(), num_models=2, on_gpu=False)

    before, after = packed(1.0, 5.0), packed(1.0, 5.0)
    first, second = optimizer(before), optimizer(after)
    first.take([torch.tensor([0.1, 0.2])])
    first.step()
    for index in range(2):
        saved = optimizer_tensors(first, learner(before), "one", index)
        assert saved["0.exp_avg"].shape == ()
        restore_optimizer(second, learner(after), "one", index, saved)
    theirs, ours = first.state[before.value], second.state[after.value]
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[key], ours[key]) for key in theirs)
