"""The policies that come with the package, as graphs, over whole episodes of their robots."""

import json

import numpy as np
import pytest
import torch

import saformer
from saformer.cli.main import main
from saformer.onnx.driver import MANIFEST, GraphDriver
from saformer.onnx.export import TOLERANCE
from tests.onnx.policies import Beside

pytest.importorskip("onnxruntime", reason="needs saformer[onnx]")
pytest.importorskip("onnxscript", reason="needs saformer[onnx]")
STEPS = 1000


@pytest.mark.long
@pytest.mark.parametrize("robot", ["halfcheetah", "hopper", "walker2d"])
def test_a_thousand_decisions_are_torchs(robot, tmp_path):
    """By the default rule, under p30, in the simulator: both see the same states and costs."""
    from saformer.envs.costed import make

    name = f"pretrained:{robot}-effort"
    assert main(["export", name, str(tmp_path / robot), "--format", "onnx"]) == 0
    trained = saformer.load(name, device="cpu")
    manifest = json.loads((tmp_path / robot / MANIFEST).read_text())
    (limit,) = (percentiles["p30"] for percentiles in manifest["cost_percentiles"].values())
    both = Beside(trained.agent.policy(trained.options()), GraphDriver(tmp_path / robot))
    environment = make(trained.totals.environment, trained.totals.criteria)
    num_decisions, seed = 0, 0
    while num_decisions < STEPS:
        state, ended = environment.reset(seed=seed)[0], False
        seed += 1
        both.reset(torch.as_tensor(state, dtype=torch.float32), [limit])
        while not ended and num_decisions < STEPS:
            action = both.act(torch.as_tensor(state, dtype=torch.float32)).action[0].numpy()
            state, _, terminated, truncated, info = environment.step(action)
            both.observe(np.atleast_2d(info["cost"]))
            num_decisions, ended = num_decisions + 1, terminated or truncated
    assert both.largest_difference() <= TOLERANCE
