"""What is played is what is judged, and a limit can be moved while it is."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from saformer.data.limits import Limit
from saformer.envs.lanes import Maker
from saformer.envs.rollout import rollout
from saformer.live.play.company import Company
from saformer.live.play.recording import played
from saformer.live.play.scene import scene_of
from saformer.live.play.settings import FIRST_SEED, Acting


@pytest.fixture(scope="module")
def company(run) -> Company:
    return Company([str(run)], device="cpu")


def test_an_episode_that_is_played_is_the_one_that_is_judged(company, run):
    """To the last digit. Seen to fail when the player observes the cost of the step before."""
    acting, limits = Acting(str(run)), [Limit("a", (4.0,)), Limit("b", (9.0,))]
    player = company.player(acting, limits, seed=0)
    player.begin(0)
    steps = list(played(player))
    trained = company.trained(str(run))
    policy, totals = trained.agent.policy(trained.options(None, {"seed": 0})), trained.totals
    values = [np.array(limit.values) for limit in limits]
    maker, horizon = Maker(totals.environment, tuple(totals.criteria)), totals.environment.horizon
    episodes = rollout(policy, maker, values, [FIRST_SEED] * 2, horizon=horizon, workers=0)
    for lane, episode in enumerate(episodes):
        assert [step[lane]["cost"] for step in steps] == episode.cost.tolist()
        assert steps[-1][lane]["spent"] == pytest.approx(episode.cost.sum(0).tolist())
        assert steps[-1][lane]["earned"] == pytest.approx(float(episode.trajectory.reward.sum()))
        assert steps[-1][lane]["end"] == "whole"


def test_a_limit_moves_in_the_middle_and_stays_for_the_next_episode(company, run):
    """Seen to fail when only the player's own note of the limit is changed."""
    player = company.player(Acting(str(run)), [Limit("a", (8.0,))], seed=0)
    player.begin(0)
    before = player.step()[0]
    player.move_limit(0, 0, 2.0)
    after = player.step()[0]
    assert (before["limit"], after["limit"]) == ([8.0], [2.0])
    spent = after["spent"][0] - after["cost"][0]
    holdback = before["why"]["remaining"][0] / 8.0  # nothing was spent then
    assert after["why"]["remaining"][0] == pytest.approx(2.0 * holdback - spent, abs=1e-4)
    assert player.begin(1)[0]["limit"] == [2.0]


def test_why_says_who_decided(company, run):
    """Seen to fail when the shield's word is not asked for."""
    shielded = company.player(Acting(str(run), shield=True), [Limit("a", (0.5,))], seed=0)
    shielded.begin(0)
    frames = [step[0] for step in played(shielded)]
    assert any(frame["why"]["shield"] for frame in frames)
    assert frames[-1]["spent"][0] <= 0.5
    blind = company.player(Acting(str(run), rule="none"), [Limit("a", (0.5,))], seed=0)
    blind.begin(0)
    assert blind.step()[0]["why"]["forecast"] is None


def test_the_fan_is_the_quantiles_of_the_members(company, run):
    """Four members, by hand. Seen to fail without the scale of costs."""
    trained = company.trained(str(run))
    player = company.player(Acting(str(run)), [Limit("a", (9.0,))], seed=0)
    first = player.begin(0)[0]
    state = torch.tensor([first["pose"]])
    fan = np.array(player.step()[0]["why"]["least"][0])
    outlook = trained.agent.outlook
    normal = trained.agent.model.normalizer.normalize("state", state)
    when = torch.zeros(1, dtype=torch.long)
    least = outlook.least(normal, when)[:, 0, int(trained.may_end), 0] * outlook.cost_scale
    if bool(outlook.can_idle) and not trained.may_end:
        least = outlook.idle_cost
    expected = np.quantile(least.numpy() * outlook.weight_left(when).item(), [0.05, 0.5, 0.95])
    assert fan[[0, 2, 4]] == pytest.approx(expected, rel=1e-2)


def test_marks_are_the_percentiles_and_what_they_earned(company, run):
    """Seen to fail when marks are of the limit's range instead."""
    about, totals = company.about(Acting(str(run))), company.trained(str(run)).totals
    marks = {mark["name"]: mark for mark in about["constraints"][0]["marks"]}
    costs = totals.episode_cost[:, 0]
    assert marks["p50"]["cost"] == pytest.approx(float(np.median(costs)))
    best = np.sort(totals.episode_return[costs <= marks["p20"]["cost"]])[-5:].mean()
    assert marks["p20"]["earned"] == pytest.approx(float(best))


def test_only_runs_that_were_named_are_opened(company):
    """Seen to fail when any path is loaded."""
    with pytest.raises(ValueError, match="there is no run '/etc'"):
        company.trained("/etc")


def test_bodies_are_where_mujoco_has_them():
    """The robots: every capsule, no floor. Seen to fail when geoms' places are sent as bodies'."""
    gymnasium = pytest.importorskip("gymnasium")
    pytest.importorskip("mujoco")
    with gymnasium.make("HalfCheetah-v5") as environment:
        environment.reset(seed=0)
        scene = scene_of(environment)
        plain, pose = scene.plain(), np.array(scene.pose(None)).reshape(-1, 7)
        bare = environment.unwrapped
        assert len(plain["geoms"]) == 8
        assert {geom["shape"] for geom in plain["geoms"]} == {"capsule"}
        assert pose[:, :3] == pytest.approx(bare.data.xpos[1:], abs=1e-3)
        assert plain["dt"] == pytest.approx(0.05)


def test_the_first_picture_needs_no_torch():
    """It is there within a second or two. Seen to fail when the stage imports the company."""
    pytest.importorskip("mujoco")
    code = (
        "import sys; from saformer.live.play.server import PlayServer\n"
        "from saformer.live.play.preview import preview\n"
        "assert len(preview('pretrained:halfcheetah-effort', 0)['pose']) == 49\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
