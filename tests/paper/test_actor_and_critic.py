"""Equations 3, 4, 6 and 7: what each prediction is allowed to see."""

import pytest
import torch

from saformer.agents.saformer import SaFormerAgent
from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.model import SaFormer
from saformer.core.transformer import TrunkConfig

INPUTS = ("limit", "cost_to_go", "return_to_go", "state", "action")


def sees(
    output: torch.Tensor, inputs: dict[str, torch.Tensor], step: int
) -> dict[str, tuple[bool, bool, bool]]:
    """For each input: does the output depend on it at earlier steps, at its own step, at later
    ones?"""
    gradients = torch.autograd.grad(
        output.sum(), list(inputs.values()), allow_unused=True, retain_graph=True
    )
    seen = {}
    for name, gradient in zip(inputs, gradients, strict=True):
        if name == "limit" or gradient is None:
            seen[name] = (gradient is not None and bool(gradient.any()),) * 3
        else:
            at = gradient.abs().sum((0, 2)) > 0
            seen[name] = (bool(at[:step].all()), bool(at[step]), bool(at[step + 1 :].any()))
    return seen


@pytest.fixture
def traced(agent: SaFormerAgent, batch: WindowBatch) -> tuple[WindowBatch, dict[str, torch.Tensor]]:
    whole = WindowBatch(**{name: values[:2] for name, values in vars(batch).items()})
    inputs = {name: getattr(whole, name).clone().requires_grad_() for name in INPUTS}
    return WindowBatch(**inputs, timestep=whole.timestep, valid=whole.valid), inputs


PAST, PAST_AND_NOW, NEVER = (True, False, False), (True, True, False), (False, False, False)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("cost_to_go", {"cost_to_go": PAST, "return_to_go": PAST, "state": PAST, "action": PAST}),
        (
            "return_to_go",
            {"cost_to_go": PAST_AND_NOW, "return_to_go": PAST, "state": PAST, "action": PAST},
        ),
        (
            "action",
            {
                "cost_to_go": PAST_AND_NOW,
                "return_to_go": PAST_AND_NOW,
                "state": PAST_AND_NOW,
                "action": PAST,
            },
        ),
    ],
)
def test_eq_3_4_each_head_sees_the_tokens_before_it(agent, traced, head, expected):
    """Seen to fail when the return-to-go head reads the return-to-go token itself."""
    batch, inputs = traced
    prediction = getattr(agent.model.actor(batch), head)
    for part in (prediction.mean, prediction.log_deviation):
        seen = sees(part[:, 2], inputs, step=2)
        assert seen["limit"][0], "every head sees the limit"
        assert {name: seen[name] for name in expected} == expected


def test_eq_6_critic_sees_states_and_actions_alone(agent, traced):
    """Seen to fail when the critic's head reads the state token, before the action."""
    batch, inputs = traced
    seen = sees(agent.model.critic(batch)[:, 2], inputs, step=2)
    assert seen["state"] == PAST_AND_NOW
    assert seen["action"] == PAST_AND_NOW
    assert all(seen[name] == NEVER for name in ("limit", "cost_to_go", "return_to_go"))


def test_paper_sized_model_has_1_46_million_parameters():
    """Seen to fail with a perceptron of twice the width instead of four times."""
    halfcheetah = SaFormer(Dimensions(state=17, action=6, horizon=1000), TrunkConfig())
    assert round(sum(p.numel() for p in halfcheetah.parameters()) / 1e6, 2) == 1.46
