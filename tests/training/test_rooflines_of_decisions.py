"""The benchmark counts the arithmetic that is done."""

import pytest
import torch
from benchmarks import decision_parts, rooflines
from benchmarks.decisions import TRUNK, Case, model_of_paper_size, naive_decision, policy_at_work
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

CASE = Case(lanes=2, candidates=16)


def counted(function) -> float:
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        function()
    return counter.get_total_flops()


def test_arithmetic_is_what_torch_counts():
    """But for embeddings, heads and what candidates see of themselves, which are small."""
    model = model_of_paper_size("cpu")
    policy = policy_at_work(model, CASE)
    prompt = policy.history.prompt(
        torch.zeros(2, 11), policy.budget.rows(torch.arange(2)), torch.arange(2)
    )
    sizes = {"lanes": CASE.lanes, "window": CASE.window}
    reading = rooflines.reading(TRUNK, **sizes)
    assert reading.operations == pytest.approx(counted(lambda: model.prefill(prompt)), rel=0.02)
    naive = rooflines.naive(TRUNK, candidates=CASE.candidates, **sizes)
    assert naive.operations == pytest.approx(
        counted(lambda: naive_decision(model, prompt, CASE.candidates)), rel=0.02
    )
    both = reading + rooflines.one_round(TRUNK, candidates=CASE.candidates, **sizes)
    assert both.operations == pytest.approx(
        counted(lambda: policy.act(torch.zeros(2, 11))), rel=0.02
    )
    assert both == CASE.work


def test_parts_of_a_decision_are_timed():
    """A smoke test: what they take is for a quiet machine to say."""
    found = decision_parts.parts(policy_at_work(model_of_paper_size("cpu"), CASE), CASE, 2, "cpu")
    assert len(found) == 6
    assert min(found.values()) > 0
