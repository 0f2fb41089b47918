"""A decision as a graph: the same actions as torch's, its own memory, no torch to run it."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from saformer.cli.main import main
from saformer.core.rules import NoCriticOptions, NoCriticRule, PaperOptions, PaperRule
from saformer.onnx.driver import GRAPH, MANIFEST, GraphDriver
from saformer.onnx.export import TOLERANCE, write_graph
from saformer.rules.feasible import FeasibleOptions, FeasibleRule
from tests.cli.test_agents import train_briefly
from tests.onnx.policies import DISCOUNT, SIZES, Beside, policy_of, untrained

pytest.importorskip("onnxruntime", reason="needs saformer[onnx]")
pytest.importorskip("onnxscript", reason="needs saformer[onnx]")
EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx" / "drive.cpp"
HEADER = "onnxruntime_cxx_api.h"
MODEL, OUTLOOK = untrained()
RULES = {
    "feasible": FeasibleRule(FeasibleOptions(candidates=1), OUTLOOK, DISCOUNT),
    "paper": PaperRule(PaperOptions(candidates=5, rounds=3)),
    "none": NoCriticRule(NoCriticOptions(candidates=5)),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory):
    """The folder of a rule's graph, each written once."""
    folder = tmp_path_factory.mktemp("graphs")

    def export(rule: str) -> Path:
        if not (folder / rule).exists():
            write_graph(folder / rule, policy_of(MODEL, RULES[rule]), {"agent": "saformer"})
        return folder / rule

    return export


@pytest.mark.parametrize(
    "rule",
    ["feasible", *(pytest.param(rule, marks=pytest.mark.long) for rule in ("paper", "none"))],
)
def test_whole_episodes_are_decided_as_torch_decides_them(exported, rule):
    """Several limits, one moved midway; another action executed than chosen; costs discounted; two
    constraints; three rounds. Seen to fail when the last cost is not booked, when it is not
    discounted, when the executed action is not remembered, when the first round always decides, and
    when the lowest score does although another round did not fall back."""
    policy, random = policy_of(MODEL, RULES[rule]), torch.Generator().manual_seed(4)
    both = Beside(policy, GraphDriver(exported(rule)))
    for limit in ([17.0, 17.0], [0.0, 0.0], [19.0, 19.0]):
        both.reset(torch.zeros(SIZES.state), limit)
        for step in range(10):
            both.act(2 * torch.randn(SIZES.state, generator=random))
            swapped = torch.rand(SIZES.action, generator=random) if step % 3 == 1 else None
            both.observe(torch.rand(1, 2, generator=random), swapped)
            if step == 5:
                policy.budget.limit[:] += 3.0
                both.driver.limit = both.driver.limit + 3.0
    assert both.largest_difference() <= TOLERANCE
    if rule == "paper":
        assert {int(own.num_rounds) for own, _ in both.decisions} == {1, 2, 3}


@pytest.mark.parametrize(
    ("rule", "noise"), [("feasible", [1, 1]), pytest.param("paper", [3, 5], marks=pytest.mark.long)]
)
def test_the_manifest_says_all_that_a_driver_needs(exported, rule, noise):
    """The digest is the file's; the exporter's notes, which name folders of this machine, are
    gone."""
    folder = exported(rule)
    manifest, graph = json.loads((folder / MANIFEST).read_text()), (folder / GRAPH).read_bytes()
    assert manifest["sha256"] == hashlib.sha256(graph).hexdigest()
    shapes = {port["name"]: port["shape"] for port in manifest["inputs"]}
    assert shapes["state"] == [1, 3]
    assert shapes["limit"] == shapes["cost"] == [1, 2]
    assert shapes["return_noise"] == noise
    assert shapes["action_noise"] == [*noise, 2]
    assert shapes["memory"] == [1, sum(manifest["memory"].values())]
    assert manifest["action_low"] == [-9.0, -9.0]
    assert manifest["cost_discount"] == DISCOUNT
    assert manifest["largest_difference"] <= TOLERANCE
    assert str(Path(__file__).parents[2]).encode() not in graph


def test_it_runs_where_torch_is_not(exported):
    """In a process that cannot import it."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from saformer.onnx.driver import GraphDriver\n"
        f"driver = GraphDriver({str(exported('feasible'))!r})\n"
        "driver.reset([1.0, 1.0])\n"
        "for _ in range(3):\n"
        "    assert driver.act([0.0, 0.5, 1.0])['action'].shape == (1, 2)\n"
        "    driver.observe([0.25, 0.0])\n"
        "print(*driver.act([0.0, 0.5, 1.0])['remaining'][0])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    spent = 0.25 * (1 + DISCOUNT + DISCOUNT**2)
    assert [float(word) for word in ran.stdout.split()] == pytest.approx([1 - spent, 1.0])


def test_what_is_no_number_is_refused_and_so_is_an_exchanged_graph(exported, tmp_path):
    folder = shutil.copytree(exported("feasible"), tmp_path / "copy")
    driver = GraphDriver(folder)
    with pytest.raises(ValueError, match="limit must be numbers from 0"):
        driver.reset([1.0, -1.0])
    driver.reset([1.0, 1.0])
    with pytest.raises(ValueError, match="state must be numbers"):
        driver.act([0.0, np.nan, 0.0])
    with pytest.raises(ValueError, match="state must have shape"):
        driver.act([0.0, 0.0])
    (folder / GRAPH).write_bytes((folder / GRAPH).read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"not what policy\.json describes"):
        GraphDriver(folder)


def test_a_driver_called_out_of_turn_says_so(exported):
    """What is not observed is not booked. Seen to fail when `act` does not ask for `observe`, when
    a refused `reset` begins an episode, and when a limit that was written into is not read again."""
    driver, state = GraphDriver(exported("feasible")), [0.0, 0.5, 1.0]
    with pytest.raises(ValueError, match="no episode has begun"):
        driver.act(state)
    with pytest.raises(ValueError, match="limit must be numbers"):
        driver.reset([1.0, np.inf])
    with pytest.raises(ValueError, match="no episode has begun"):
        driver.act(state)
    driver.reset([1.0, 1.0])
    with pytest.raises(ValueError, match="has not acted"):
        driver.observe([0.1, 0.1])
    driver.act(state)
    with pytest.raises(ValueError, match="call observe first"):
        driver.act(state)
    with pytest.raises(ValueError, match="cost must be numbers of shape"):
        driver.observe("a lot")
    driver.observe([0.1, 0.1])
    driver.limit[:] = np.nan
    with pytest.raises(ValueError, match="limit must be numbers"):
        driver.act(state)


class HostRule(NoCriticRule):
    """Looks at a number, which no graph can."""

    def select(self, model, prefix, candidates):
        if candidates.action.sum().item() > 0:
            return super().select(model, prefix, candidates)
        return super().select(model, prefix, candidates)


def test_what_cannot_be_exported_says_so(tmp_path, capsys, monkeypatch):
    """A rule that leaves tensors, an agent that is no SaFormer, options of no graph; nothing is
    left behind."""
    with pytest.raises(ValueError, match="HostRule cannot be written as a graph"):
        write_graph(tmp_path / "host", policy_of(MODEL, HostRule(NoCriticOptions())), {})
    monkeypatch.setenv("SAFORMER_HOME", str(tmp_path / "home"))
    assert train_briefly("dt", tmp_path / "dt") == 0
    capsys.readouterr()
    export = ["export", str(tmp_path / "dt"), str(tmp_path / "out")]
    assert main([*export, "--format", "onnx"]) == 1
    assert "dt cannot be exported as ONNX" in " ".join(capsys.readouterr().err.split())
    assert main([*export, "--target-return", "3"]) == 1
    assert "how it acts is for" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "host").exists()


def headers() -> Path | None:
    """Where onnxruntime's C++ headers are, if anywhere."""
    usual = ("/usr/include/onnxruntime", "/usr/local/include/onnxruntime", "/usr/include")
    places = [Path(place) for place in (os.environ.get("ONNXRUNTIME_INCLUDE", ""), *usual) if place]
    return next((place for place in places if (place / HEADER).exists()), None)


def test_the_example_in_c_plus_plus_drives_it(exported, tmp_path):
    """Built here, fed with an episode: the actions of the graph (one candidate, so that noise
    decides nothing)."""
    compiler, include = shutil.which("g++"), headers()
    if not (compiler and include):
        pytest.skip(f"needs g++ and {HEADER} (libonnxruntime-dev, or set ONNXRUNTIME_INCLUDE)")
    package = Path(str(find_spec("onnxruntime").origin)).parent
    library = next((package / "capi").glob("libonnxruntime.so.*"))
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (tmp_path / name).symlink_to(library)
    build = [compiler, "-std=c++17", "-Wall", "-Werror", f"-I{include}", str(EXAMPLE)]
    link = [
        f"-L{tmp_path}",
        "-lonnxruntime",
        f"-Wl,-rpath,{tmp_path}",
        "-o",
        str(tmp_path / "drive"),
    ]
    subprocess.run([*build, *link], check=True)
    folder, random = exported("feasible"), np.random.default_rng(0)
    states, costs = random.normal(size=(12, 3)).round(4), random.random((12, 2)).round(4)
    steps = "\n".join(" ".join(map(str, [*c, *s])) for c, s in zip(costs, states, strict=True))
    drive = [str(tmp_path / "drive"), str(folder / GRAPH), "2.5", "3.5"]
    ran = subprocess.run(drive, input=steps, check=True, capture_output=True, text=True)
    driver = GraphDriver(folder)
    driver.reset([2.5, 3.5])
    for cost, state, line in zip(costs, states, ran.stdout.splitlines(), strict=True):
        driver.observe(cost)
        expected = driver.act(state)["action"][0]
        assert [float(word) for word in line.split()] == pytest.approx(expected.tolist(), abs=1e-4)
    broken = subprocess.run(drive, input="nan 1 1 1 1", check=False, capture_output=True, text=True)
    assert broken.returncode == 1
    assert "no number" in broken.stderr
