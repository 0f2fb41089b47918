"""Runs that are trained together are what they would be alone."""

import math
from dataclasses import asdict, replace

import pytest
import torch

from saformer.agents.saformer import SaFormerAgent
from saformer.runs.run import Run
from saformer.runs.spec import RunSpec
from saformer.training.loop.config import FitConfig
from saformer.training.loop.fit import fit
from saformer.training.loop.trainer import Member, Observer, PackTrainer
from tests.alone import Trainer
from tests.conftest import randomise, tiny_config
from tests.training.test_update import CHEETAH, HOPPER, sampler

CONFIG = FitConfig(updates=10, batch_size=6, warmup_updates=2, checkpoint_every=4, report_every=5)
DATA = (HOPPER, CHEETAH)


SILENT = (Observer(), Observer())


def members(folder, *, observers=SILENT) -> list[Member]:
    made = []
    for seed, data in enumerate(DATA):
        agent = SaFormerAgent.create(data, tiny_config(), seed=seed)
        randomise(agent.model, seed=seed)
        agent.model.double()  # so that nothing but a mistake tells runs apart
        path = folder / f"run-{seed}"
        spec = RunSpec(
            "t",
            "saformer",
            asdict(agent.config),
            asdict(CONFIG),
            seed,
            ("torque",),
            None,
            0,
            "f",
            agent.dimensions,
        )
        run = Run(path) if path.exists() else Run.create(path, spec)
        made.append(Member(agent, sampler(data), seed, run, observers[seed]))
    return made


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.allclose(one[name], other[name], rtol=0, atol=1e-9) for name in one)


def test_each_run_of_a_pack_is_an_ordinary_run(tmp_path):
    """Rows, checkpoints and the mark at the end. Seen to fail when every run is given the first
    one's metrics."""
    together, alone = members(tmp_path / "together"), members(tmp_path / "alone")
    assert fit(together, CONFIG) == {}
    for member in alone:
        fit([member], CONFIG)
    for one, other in zip(together, alone, strict=True):
        assert one.run.is_done
        assert equal(one.run.load().groups["model"], other.run.load().groups["model"])
        for mine, theirs in zip(one.run.metrics(), other.run.metrics(), strict=True):
            assert mine | {"seconds": 0} == pytest.approx(
                theirs | {"seconds": 0}, rel=1e-6, abs=1e-6
            )


def test_a_run_saved_in_a_pack_goes_on_alone_and_the_other_way_round(tmp_path):
    """Seen to fail when the optimiser's averages are saved unsliced, or not restored into a
    pack."""
    whole = members(tmp_path / "whole")
    fit(whole, CONFIG)
    half = replace(CONFIG, updates=4)
    packed_first, alone_first = members(tmp_path / "packed"), members(tmp_path / "alone")
    trainer = PackTrainer(packed_first, CONFIG)
    while trainer.update < half.updates:
        trainer.advance(1)
    for number, member in enumerate(packed_first):
        other = members(tmp_path / "other")[number]
        rest = Trainer(other.agent, other.sampler, CONFIG, seed=member.seed)
        rest.restore([trainer.checkpoint({}, number)])
        while rest.update < CONFIG.updates:
            rest.step()
        assert equal(other.agent.model.state_dict(), whole[number].agent.model.state_dict())
    saved = []
    for member in alone_first:
        first = Trainer(member.agent, member.sampler, CONFIG, seed=member.seed)
        while first.update < half.updates:
            first.step()
        saved.append(first.checkpoint({}))
    fresh = members(tmp_path / "fresh")
    packed = PackTrainer(fresh, CONFIG)
    packed.restore(saved)
    while packed.update < CONFIG.updates:
        packed.advance(1)
    packed.unpack()
    assert all(
        equal(one.agent.model.state_dict(), two.agent.model.state_dict())
        for one, two in zip(fresh, whole, strict=True)
    )


def test_runs_at_different_updates_do_not_go_on_together(tmp_path):
    trainers = [Trainer(m.agent, m.sampler, CONFIG, seed=m.seed) for m in members(tmp_path)]
    trainers[0].step()
    pack = PackTrainer(members(tmp_path), CONFIG)
    with pytest.raises(ValueError, match=r"from the same update, got \[0, 1\]"):
        pack.restore([trainer.checkpoint({}) for trainer in trainers])


def test_a_run_that_diverges_is_left_behind(tmp_path):
    """The others end as they would have. Seen to fail when the whole pack stops with it."""
    pack: list[Member] = []

    def poison(update: int, _: dict) -> None:
        if update == 6:
            with torch.no_grad():
                slot = trainers[0].learner.slot(0, "actor.action_head.linear.bias")
                slot.write(slot.parameter, torch.full((6,), math.inf))

    trainers: list[PackTrainer] = []
    original = PackTrainer.__init__

    def remembered(self, *args, **options):
        original(self, *args, **options)
        trainers.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackTrainer, "__init__", remembered)
        pack = members(tmp_path / "together", observers=(Observer(progress=poison), Observer()))
        failed = fit(pack, CONFIG)
    assert list(failed) == [0]
    assert f"saved in {pack[0].run.path}" in str(failed[0])
    assert not pack[0].run.is_done
    assert pack[0].run.load().facts["update"] == 6
    alone = members(tmp_path / "alone")[1]
    fit([alone], CONFIG)
    assert pack[1].run.is_done
    assert equal(pack[1].run.load().groups["model"], alone.run.load().groups["model"])


def test_what_is_fitted_after_the_last_update_is_saved_with_each_run(tmp_path, monkeypatch):
    """Seen to fail when a pack is asked for parameters that it never had."""

    def finish(agent, data, progress):
        agent.model.add_module("fitted", torch.nn.Linear(data.cost.shape[1], 3))

    monkeypatch.setattr(SaFormerAgent, "finish", finish)
    pairs = zip(members(tmp_path), DATA, strict=True)
    together = [replace(member, data=data) for member, data in pairs]
    assert fit(together, replace(CONFIG, updates=2)) == {}
    for member in together:
        saved = member.run.load().groups["model"]
        assert torch.equal(
            saved["fitted.weight"], member.agent.model.get_parameter("fitted.weight")
        )
        assert member.run.is_done
