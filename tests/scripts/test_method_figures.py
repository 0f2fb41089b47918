"""What `scripts.figures.method` watches is what happened, and it draws it."""

from dataclasses import replace
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from scripts.figures.method import Settings, main
from scripts.figures.method_episodes import (
    NARROW,
    PAPER,
    RESERVE,
    TOLD_THE_LIMIT,
    Account,
    Scene,
    watch,
)

import saformer
from saformer.cli.main import main as cli
from saformer.rules.reserve import NUM_LEVELS, Reserve, fit_reserve, num_narrow
from tests.runs.exported import telling_run

MAX_BYTES = 100_000
STOP_COST, IDLE_COST = 3.0, 0.26
EPISODES = {
    "goes on": (np.inf, np.inf),
    "idles": (np.inf, IDLE_COST),
    "can stop": (STOP_COST, IDLE_COST),
}
"""What it costs to stop one, and to idle for a step of it."""


@pytest.fixture(params=EPISODES.values(), ids=EPISODES.keys())
def run(request, tmp_path, monkeypatch):
    """Allowance, whose episodes cannot end before their time; or as if they could; or nothing is
    known of idling."""
    return known_run(tmp_path, monkeypatch, *request.param)


def known_run(path, monkeypatch, stop_cost, idle_cost):
    monkeypatch.setattr("saformer.agents.saformer.fit_reserve", partial(fit_reserve, updates=20))
    monkeypatch.setattr("saformer.rules.reserve.stop_cost", lambda _: np.array([stop_cost]))
    monkeypatch.setattr(
        "saformer.rules.reserve.idle_cost", lambda *_, **__: torch.tensor([idle_cost])
    )
    return telling_run(path / "run")


def test_draws_what_a_run_can_do(run, tmp_path, capsys):
    main(Settings(run=(str(run.path),), out=tmp_path / "figures", episodes=3))
    drawn = {path.stem: path.read_text() for path in (tmp_path / "figures").iterdir()}
    said = capsys.readouterr().out
    of_run = (
        {"reserve_budget_allowance", "reserve_stop_allowance"}
        if NARROW in said
        else {"reserve_course_allowance"}
    )
    assert set(drawn) == {"reserve_rule"} | of_run
    assert ("by reserve: spent + needed" in "".join(drawn.values())) == (
        "needed at first 5.2" in said
    )
    for text in drawn.values():
        assert ElementTree.fromstring(text).tag.endswith("svg")
        assert len(text) < MAX_BYTES
    assert f"{RESERVE}: " in said


def test_watches_what_evaluation_sees(run):
    """Seen to fail when a budget begins with the first step's cost, or when idling takes the same
    at every step."""
    scene = watch(str(run.path), limit="p20", episodes=3)
    for way, rule in ((PAPER, "paper"), (RESERVE, "reserve")):
        judged = saformer.evaluate(run.path, limits=["p20"], episodes=3, rule=rule)
        assert [one.cost for one in scene.accounts[way]] == pytest.approx(
            [row.cost[0] for row in judged.rows], rel=1e-4
        )
        assert [one.held.mean() for one in scene.accounts[way]] == [
            row.fell_back for row in judged.rows
        ]
    for account in scene.accounts[RESERVE]:
        remaining = account.left[:-1] - scene.margin
        at_stake = (account.forecast > remaining) & (remaining <= scene.needed[: len(remaining)])
        assert account.held.tolist() == at_stake.tolist()


def test_the_proposals_are_those_that_were_chosen_from(run):
    """Seen to fail when they are another step's."""
    scene = watch(str(run.path), limit="p20", episodes=3)
    looked_into = [one for one in scene.accounts[RESERVE] if one.proposals is not None]
    assert any(one.proposals.step for one in looked_into)
    for account in looked_into:
        found = account.proposals
        assert account.held[found.step]
        assert found.forecast[0] == pytest.approx(account.forecast[found.step])
        price = found.forecast + 3 * found.step_cost
        assert found.chosen == price[: None if found.had_wide else num_narrow(len(price))].argmin()
        assert found.had_wide or not scene.can_stop


def test_what_the_actor_was_told_is_what_it_read(tmp_path, monkeypatch, capsys):
    """Seen to fail when nobody is seen to idle, or when nobody is told the limit."""
    monkeypatch.setattr("saformer.rules.reserve.best_prompts", tell_everyone)
    run, read = known_run(tmp_path, monkeypatch, np.inf, IDLE_COST), []
    tell = Reserve.prompt

    def noted(reserve, prompt, remaining):
        found = tell(reserve, prompt, remaining)
        if prompt.past.valid.shape[1]:  # as the policy asks, with a past
            read.append(found.past.limit[:, 0].tolist())
        return found

    monkeypatch.setattr(Reserve, "prompt", noted)
    scene = watch(str(run.path), limit="p20", episodes=3)
    ways = (RESERVE, TOLD_THE_LIMIT)  # in the order of their rollouts
    told = np.concatenate(
        [np.stack([one.told for one in scene.accounts[way]], axis=1) for way in ways]
    )
    np.testing.assert_allclose(told, read, rtol=1e-6)
    assert any(0 < one.idles.sum() < len(one.idles) for one in scene.accounts[RESERVE])
    assert all(
        (one.told == scene.limit).all()
        for way in (PAPER, TOLD_THE_LIMIT)
        for one in scene.accounts[way]
    )
    main(Settings(run=(str(run.path),), out=tmp_path / "figures", episodes=3))
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == {
        "reserve_rule",
        "reserve_told_allowance",
    }
    assert "idled " in capsys.readouterr().out


def tell_everyone(data):
    """Twice the limit, whatever it is."""
    levels = np.quantile(data.episode_cost, np.linspace(0, 1, NUM_LEVELS), axis=0)
    return {"levels": levels, "best": 2 * levels, "gain": np.ones_like(levels)}


def test_the_episode_of_the_median_cost_is_shown():
    """Seen to fail when the dearest is."""

    def account(cost: float) -> Account:
        return Account(
            np.array([9.0, 9.0 - cost]),
            np.zeros(1),
            np.zeros(1, bool),
            np.full(1, 9.0),
            np.zeros(2),
            0,
            None,
        )

    accounts = {PAPER: [account(cost) for cost in (5.0, 8.0, 2.0, 7.0, 9.5)]}
    scene = Scene("x", 9.0, "p20", 0.0, np.inf, np.full(2, np.inf), accounts)
    assert scene.shown == 3
    assert not scene.accounts[PAPER][4].is_within
    assert replace(scene, accounts={PAPER: scene.accounts[PAPER][:4]}).shown == 0


def test_other_agents_are_refused(tmp_path):
    brief = "--data-steps 2000 --updates 1 --batch-size 8 --evaluate-every 0 --width 16 --layers 1"
    assert (
        cli(["train", "allowance", "--agent", "dt", *brief.split(), "--out", str(tmp_path / "run")])
        == 0
    )
    with pytest.raises(
        ValueError, match="dt with 1 constraints; these figures are of one constraint"
    ):
        watch(str(tmp_path / "run"), limit="p20", episodes=1)


def test_figures_of_the_documentation_are_small(project):
    kept = list((project / "docs" / "figures").glob("reserve_*.svg"))
    assert len(kept) == 5
    assert all(path.stat().st_size < MAX_BYTES for path in kept)
