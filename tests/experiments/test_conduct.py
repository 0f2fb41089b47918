"""Runs are shared, never redone, gone on with, and fail alone."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from saformer import Listener
from saformer.agents.saformer import SaFormerConfig
from saformer.data.relabel import relabelled
from saformer.data.store import TrajectoryStore
from saformer.engine.engine import LocalEngine
from saformer.envs import allowance
from saformer.experiments.catalogue import EXPERIMENTS
from saformer.experiments.conduct import Site, conduct, jobs_for
from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import (
    CHEETAHS,
    DATASETS,
    EFFORT_DATASETS,
    NEAREST_RANKS,
    SCALES,
    Judging,
    Needs,
    Setting,
    Training,
)
from saformer.runs.run import Run
from saformer.training.loop.presets import PUBLISHED

SETTING = Setting(SCALES["smoke"])
DATASET = "hopper-medium"


def experiment(*judgings, name="tried"):
    return Experiment(name, "", "", "", lambda setting: Needs(judgings=judgings), lambda result: [])


def conducted(experiments, folder, **options):
    site = Site(folder / "runs", device="cpu")
    return list(conduct(experiments, SETTING, engine=LocalEngine(), site=site, **options))


def times(folder):
    """When each file of each run was last written."""
    return {path: path.stat().st_mtime_ns for path in (folder / "runs").glob("*/*")}


def test_experiments_share_their_runs():
    """The nine models serve Tables 1, 2, 4, 7, 8 and Figure 5. Seen to fail when needs are not
    united."""
    setting = Setting(SCALES["paper"])
    own_data = {"finetuning", "exploration", "dsrl", "offline"}
    needs = [each.needs(setting) for each in EXPERIMENTS.values() if each.name not in own_data]
    whole = Needs()
    for one in needs:
        whole |= one
    models = [
        t
        for t in whole.trainings
        if t.agent == "saformer" and t.cost_discount == 1 and not t.criteria
    ]
    robots = (*DATASETS, *EFFORT_DATASETS)
    ours = [Training(dataset, published=False) for dataset in robots]
    assert set(models) == {*(Training(dataset) for dataset in robots), *ours}
    # SaFormer as published and ours, DT, discounted SaFormer, BCQ-L, CPQ, CDT, BC-Safe for four
    # limits, SaFormer on speed
    assert len(whole.trainings) == 12 + 12 + 9 + 3 + 6 + 6 + 12 + 4 * 12 + 6
    assert len(whole.trainings) < sum(len(one.trainings) for one in needs)


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_what_stands_for_the_paper_is_as_published(scale):
    """Seen to fail when experiments of the paper train our method."""
    default = SaFormerConfig()
    changed_back = {name: getattr(default, name) for name in PUBLISHED["saformer"]}
    published, ours = (scale.preset("saformer", published=each).agent for each in (True, False))
    assert (published.rule, ours) == ("paper", replace(published, **changed_back))
    for experiment_ in EXPERIMENTS.values():
        own = {t.published for t in experiment_.needs(SETTING).trainings if t.agent == "saformer"}
        both = {True, False}
        beyond = {"safety": both, "effort": both, "speed": {False}, "exploration": {False}}
        beyond |= {"dsrl": both, "offline": {False}}
        assert own <= beyond.get(experiment_.name, {True})
    one, other = Training(DATASET), Training(DATASET, published=False)
    assert one.pack != other.pack
    assert one.name != other.name


def test_the_nine_models_are_one_job_where_they_are_packed():
    """Seen to fail when every run is a job of its own."""
    needs = EXPERIMENTS["adaptation"].needs(replace(SETTING, seeds=(0, 1)))
    packed = jobs_for(needs, SETTING, Site(packed=True))
    assert sorted(len(job.trainings) for job in packed) == [18, 18]
    assert len(jobs_for(needs, SETTING, Site(packed=False))) == 36


def test_limits_of_one_agent_are_one_job_where_they_are_packed(tmp_path):
    """Each dataset for its own limit. Seen to fail when every limit is a job, and when a job has
    one limit."""
    needs = EXPERIMENTS["baselines"].needs(SETTING)
    (job,) = [
        job for job in jobs_for(needs, SETTING, Site(packed=True))
        if (job.trainings[0].agent, job.trainings[0].cost_discount) == ("bcq_lag", 1)
    ]  # fmt: skip
    assert {training.dataset: training.limit for training in job.trainings} == NEAREST_RANKS
    judgings = [
        Judging(Training(dataset, "bcq_lag", limit), (limit,))
        for dataset, limit in ((DATASET, "p20"), ("walker2d-medium", "p50"))
    ]
    packed = Site(tmp_path, device="cpu", packed=True)
    (found,) = conduct([experiment(*judgings)], SETTING, engine=LocalEngine(), site=packed)
    assert ["-p20-" in row["run"] for row in found.rows["verdicts"]] == [True, False]
    assert ["-p50-" in row["run"] for row in found.rows["verdicts"]] == [False, True]


def test_limits_of_one_dataset_are_jobs_of_their_own_where_runs_are_packed():
    """A pack has a run for each dataset and seed. Seen to fail when three of four limits that
    BC-Safe is trained for were lost on a GPU."""
    setting = replace(SETTING, seeds=(0, 1))
    packed = jobs_for(EXPERIMENTS["effort"].needs(setting), setting, Site(packed=True))
    cloned = [job for job in packed if job.trainings[0].agent == "bc_safe"]
    assert [{training.limit for training in job.trainings} for job in cloned] == [
        {"p10"}, {"p20"}, {"p30"}, {"p50"},
    ]  # fmt: skip
    assert all(len(job.trainings) == 2 for job in cloned)


def test_runs_of_one_job_have_rows_of_their_own(tmp_path):
    """As they have alone. Seen to fail when seeds and datasets are mixed up."""
    judgings = [
        Judging(Training(dataset, "dt", seed=seed), ("p50",))
        for dataset in (DATASET, "walker2d-medium")
        for seed in (3, 5)
    ]
    packed = Site(tmp_path / "packed", device="cpu", packed=True)
    (together,) = conduct([experiment(*judgings)], SETTING, engine=LocalEngine(), site=packed)
    (alone,) = conducted([experiment(*judgings)], tmp_path)
    assert [(row["dataset"], row["seed"]) for row in together.rows["verdicts"]] == [
        (judging.training.dataset, judging.training.seed) for judging in judgings
    ]
    for one, other in zip(together.rows["verdicts"], alone.rows["verdicts"], strict=True):
        assert (one["run"], one["costs"], one["returns"]) == (
            other["run"],
            other["costs"],
            other["returns"],
        )
        assert f"-seed{one['seed']}-" in one["run"]
        assert one["dataset"] in one["run"]


def test_table_1_asks_for_the_ranks_of_the_papers_limits():
    """Seen to fail when D4RL's limits are asked of other data."""
    limits = {
        (t.dataset, t.cost_discount): t.limit
        for t in EXPERIMENTS["baselines"].needs(SETTING).trainings
        if t.limit
    }
    assert limits == {
        **{(dataset, 0.99): "p10" for dataset in CHEETAHS},
        **dict(zip([(dataset, 1.0) for dataset in CHEETAHS], ["p10", "p20", "p50"], strict=True)),
    }
    on_d4rl = EXPERIMENTS["baselines"].needs(Setting(SCALES["paper"], source="d4rl"))
    assert {(t.cost_discount, t.limit) for t in on_d4rl.trainings if t.limit} == {
        (0.99, "400"),
        (1.0, "4490"),
        (1.0, "4300"),
    }


def test_finished_runs_and_judgements_are_not_redone(tmp_path):
    """Seen to fail when what was judged is judged again."""
    tried = experiment(Judging(Training(DATASET, "dt")))
    (first,) = conducted([tried], tmp_path)
    before = times(tmp_path)
    (again,) = conducted([tried], tmp_path)
    assert again.rows == first.rows
    assert times(tmp_path) == before
    (more,) = conducted(
        [experiment(Judging(Training(DATASET, "dt"), ("p40",), "another"))], tmp_path
    )
    after = times(tmp_path)
    assert {path: after[path] for path in before} == before
    assert len(after) == len(before) + 1
    assert [row["limit_name"] for row in more.rows["verdicts"]] == ["p40"]


def test_an_interrupted_sweep_goes_on(tmp_path):
    """Ctrl-C in the second run. Seen to fail when an interrupt counts as a failed job."""
    judgings = [
        Judging(Training(dataset, "dt"), ("p50",))
        for dataset in (DATASET, "hopper-medium-expert", "walker2d-medium")
    ]
    seen = []

    def interrupt(update, updates, metrics):
        seen.append(update)
        if len(seen) == updates + 5:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        conducted([experiment(*judgings)], tmp_path, listener=Listener(training=interrupt))
    runs = {
        Run(path).spec.task_name.split("-cut")[0]: Run(path)
        for path in (tmp_path / "runs").iterdir()
    }
    assert {name: run.is_done for name, run in runs.items()} == {
        DATASET: True,
        "hopper-medium-expert": False,
    }
    assert runs["hopper-medium-expert"].load(groups=()).facts["update"] == 5
    before, seen = times(tmp_path), []
    (result,) = conducted(
        [experiment(*judgings)], tmp_path, listener=Listener(training=lambda u, *_: seen.append(u))
    )
    assert seen == [*range(6, 21), *range(1, 21)]
    assert [row["dataset"] for row in result.rows["verdicts"]] == [
        j.training.dataset for j in judgings
    ]
    assert not result.failed
    finished = {path: time for path, time in before.items() if path.parent == runs[DATASET].path}
    assert {path: times(tmp_path)[path] for path in finished} == finished


def test_a_failing_run_and_a_failing_judgement_are_reported_and_the_rest_go_on(tmp_path):
    """Seen to fail when one judgement's error ends the job."""
    said = []
    good, bad = Training(DATASET, "dt"), Training(DATASET, "cpq", limit="p900")
    tried = experiment(
        Judging(bad), Judging(good, variant="odd", options=(("candidates", 4),)), Judging(good)
    )
    other = experiment(Judging(good), name="other")
    result, unconcerned = conducted([tried, other], tmp_path, listener=Listener(say=said.append))
    assert [row["variant"] for row in result.rows["verdicts"]] == [""] * 4
    assert [
        "p900" in failure["why"] or "no option candidates" in failure["why"]
        for failure in result.failed
    ] == [
        True,
        True,
    ]
    assert sum(line.startswith("failed: ") for line in said) == 2
    assert unconcerned.failed == []


def test_why_training_failed_is_returned(tmp_path, monkeypatch):
    """Seen to fail when the reason is looked for in what was said."""
    diverging = Training(DATASET, "dt")
    monkeypatch.setattr(
        "saformer.api.train.fit",
        lambda members, *_, **__: {0: FloatingPointError("the loss is not finite")},
    )
    (result,) = conducted([experiment(Judging(diverging))], tmp_path)
    assert [failure["why"] for failure in result.failed] == ["the loss is not finite"]
    assert result.failed[0]["what"] == diverging.name


def test_runs_are_watched_where_a_figure_shows_it_alone(tmp_path):
    """Seen to fail when every task is watched."""
    needs = Needs(curves=(Training("halfcheetah-medium", "dt"), Training(DATASET, "dt")))
    watched = Experiment("watched", "", "", "", lambda setting: needs, lambda result: [])
    (result,) = conducted([watched], tmp_path)
    seen = [(row["dataset"], row["update"], row["limit_name"]) for row in result.rows["curves"]]
    assert seen == [("halfcheetah-medium", 10, "p10"), ("halfcheetah-medium", 20, "p10")]


def test_agents_that_learn_from_costs_are_judged_by_no_others(tmp_path):
    """Seen to fail when any discount will do."""
    judgings = [
        Judging(Training(DATASET, agent), ("p50",), cost_discount=0.99)
        for agent in ("dt", "saformer")
    ]
    (result,) = conducted([experiment(*judgings)], tmp_path)
    assert [row["agent"] for row in result.rows["verdicts"]] == ["dt"]
    assert [
        "trained on costs discounted by 1 and" in failure["why"] for failure in result.failed
    ] == [True]


def test_data_that_cannot_be_had_is_reported_and_the_rest_go_on(tmp_path):
    """A folder of stores that lacks one. Seen to fail when runs are tried on data that is not
    there."""
    made = Setting(SCALES["smoke"])
    conducted([experiment(Judging(Training(DATASET, "dt")))], tmp_path)
    (tmp_path / "stores").mkdir()
    os.symlink(made.task(DATASET), tmp_path / "stores" / DATASET)
    brief = replace(SCALES["smoke"], horizon=None)
    setting = Setting(brief, source=str(tmp_path / "stores"))
    judgings = [
        Judging(Training(dataset, "dt"), ("p50",)) for dataset in (DATASET, "walker2d-medium")
    ]
    site = Site(tmp_path / "runs", device="cpu")
    (result,) = conduct([experiment(*judgings)], setting, engine=LocalEngine(), site=site)
    assert [row["dataset"] for row in result.rows["verdicts"]] == [DATASET]
    assert [failure["what"] for failure in result.failed] == ["data of walker2d-medium"]


def test_nothing_is_trained_on_data_that_cannot_be_rolled_out(tmp_path):
    """Logs without an environment. Seen to fail when they are trained on first."""
    store = allowance.dataset(episodes=50)
    nowhere = replace(store, environment=replace(store.environment, identifier=None))
    nowhere.save(tmp_path / "stores" / DATASET)
    setting = Setting(replace(SCALES["smoke"], horizon=None), source=str(tmp_path / "stores"))
    site = Site(tmp_path / "runs", device="cpu")
    asked = experiment(Judging(Training(DATASET, "dt"), ("p50",)))
    (result,) = conduct([asked], setting, engine=LocalEngine(), site=site)
    assert "names no environment" in result.failed[0]["why"]
    assert not (tmp_path / "runs").exists()


def test_limits_may_be_those_of_data_without_its_cheapest_tenth(tmp_path):
    """Numbers are taken from the whole. Seen to fail when percentiles are of what is left."""
    training = Training(f"{DATASET}-from-p10", "dt")
    (result,) = conducted(
        [experiment(Judging(training, ("94.2", "p10", "p50"), "offline"))], tmp_path
    )
    whole = relabelled(TrajectoryStore.open(SETTING.task(DATASET)), ())
    rest = relabelled(TrajectoryStore.open(SETTING.task(training.dataset)), ())
    p10, p50 = np.percentile(whole.episode_cost, [10, 50])
    assert [row["limit"] for row in result.rows["verdicts"]] == pytest.approx(
        [0.942 * p10, p10, p50], rel=1e-5
    )
    assert rest.episode_cost.min() >= p10
    assert len(rest.store) == (whole.episode_cost >= p10).sum() < len(whole.store)


def test_fine_tuning_is_shown_before_and_after():
    """From made-up rows, whether or not it can be carried out."""
    shown = {"costs": [4.0], "returns": [1.0], "frontier_share": None}
    rows = [
        {"variant": variant, "limit_name": str(limit), "limit": limit, **shown}
        for variant in ("offline", "fine-tuned")
        for limit in (3.5, 4.5)
    ]
    summary, table, *_ = EXPERIMENTS["finetuning"].present(
        Results("finetuning", {"verdicts": rows}, {}, [])
    )
    assert [line[1] for line in summary.rows] == ["1 of 2", "1 of 2"]
    assert [cell[0] for cell in table.rows[0][-2:]] == ["4046 / 3700", "3656 / 3700"]
    assert [cell[1] for cell in table.rows[0][2:4]] == ["missed", "missed"]


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="each once"):
        Setting(SCALES["smoke"], (0, 0))
    with pytest.raises(ValueError, match="makes its own data"):
        Setting(SCALES["smoke"], source="d4rl")
    with pytest.raises(ValueError, match="a folder of stores"):
        Setting(SCALES["paper"], source="nowhere")


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_rows_that_cannot_be_read_are_named(tmp_path, content):
    (tmp_path / "sensitivity.json").write_text(content)
    with pytest.raises(
        ValueError,
        match=r"sensitivity\.json .* make it again with `saformer experiment sensitivity`",
    ):
        Results.read(tmp_path, "sensitivity")


def test_a_run_learns_the_cost_and_for_as_long_as_its_training_says(tmp_path):
    """Seen to fail when the criteria or the updates of a training are passed over."""
    fast = Training(DATASET, criteria=("above(next_state[5], 2)",), updates=11)
    (found,) = conducted([experiment(Judging(Training(DATASET)), Judging(fast))], tmp_path)
    costs = {
        tuple(row["criteria"]): (row["updates"], row["limit"]) for row in found.rows["verdicts"]
    }
    assert costs[()][0] == SETTING.scale.preset("saformer").fit.updates
    assert costs[fast.criteria][0] == 11
    assert costs[fast.criteria][1] != costs[()][1]
