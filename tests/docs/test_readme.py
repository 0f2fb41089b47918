"""README: its commands and its Python run as they stand, on a small scale."""

import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from saformer.agents.registry import KINDS, create_agent
from saformer.cli.main import command_of, main
from saformer.core.batch import Dimensions
from saformer.data.relabel import RelabelledStore, relabel
from saformer.envs import allowance
from saformer.runs.run import Run
from saformer.runs.spec import RunSpec
from saformer.training.loop.config import FitConfig
from tests.alone import Trainer
from tests.contracts.cases import CASES

README = (Path(__file__).parents[2] / "README.md").read_text()
DATA = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
EXPERIMENTS = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
FINETUNING = (Path(__file__).parents[2] / "docs" / "finetuning.md").read_text()
EXPORTING = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
AGENTS = {
    page.stem: page.read_text()
    for page in (Path(__file__).parents[2] / "docs" / "agents").glob("*.md")
}
COMMAND = r"^saformer (.*?)(?:\s+#.*)?$"
BLOCK = r"```python\n(.*?)```"


def block_with(page: str, text: str) -> str:
    (block,) = (block for block in re.findall(BLOCK, page, re.DOTALL) if text in block)
    return block


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make demo` does, with next to no data and training."""
    out = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAFORMER_HOME", str(tmp_path_factory.getbasetemp() / "home"))
        assert main(["demo", "--scale", "smoke", "--out", str(out)]) == 0
    return out


def test_the_demo_writes_a_report(smoke):
    page = (smoke / "report.html").read_text()
    for heading in (
        "Cost and return",
        "Among the data",
        "spent their budgets",
        "One decision",
        "Learning curves",
    ):
        assert heading in page
    assert page.count("<svg") == 5
    assert "make demo" in README


def test_the_demo_can_be_run_again(smoke, capsys):
    assert main(["demo", "--scale", "smoke", "--out", str(smoke)]) == 0
    assert "already finished" in capsys.readouterr().err


def test_commands_parse(tmp_path, monkeypatch):
    """Every `saformer` line of README and the pages beside the agents'. Seen to fail when a flag is
    gone."""
    monkeypatch.chdir(tmp_path)
    Path("mapping.toml").write_text(re.search(r"```toml\n(.*?)```", DATA, re.DOTALL)[1])
    lines = re.findall(COMMAND, README + DATA + EXPERIMENTS + FINETUNING + EXPORTING, re.MULTILINE)
    assert len(lines) >= 20
    for line in lines:
        command_of(shlex.split(line))


@pytest.mark.parametrize("name", list(KINDS))
def test_every_agent_has_a_page_whose_commands_are_understood(tmp_path, monkeypatch, name):
    """Options are those of the page's own run. Seen to fail when an agent's option is renamed."""
    monkeypatch.chdir(tmp_path)
    for line in re.findall(COMMAND, AGENTS[name], re.MULTILINE):
        words = shlex.split(line)
        command = command_of(words)
        if words[0] == "train":
            assert command.agent == (name,)
            kind = KINDS[name]
            config = replace(
                kind.config_type(), **({"limit": (1.0,)} if kind.has_one_limit else {})
            )
            spec = RunSpec(
                "x", name, asdict(config), {}, 0, ("torque",), None, 0, "", Dimensions(2, 1)
            )
            if command.out is not None:
                Run.create(command.out, spec)


@pytest.fixture(scope="module")
def allowance_data() -> RelabelledStore:
    return relabel(allowance.dataset(episodes=50), allowance.criteria())


@pytest.mark.parametrize("name", list(KINDS))
def test_every_metric_is_explained(allowance_data, name):
    """Those that are only watched, too. Seen to fail when a term is renamed."""
    agent = create_agent(allowance_data, CASES[name].config(0.0, 1), seed=0)
    trainer = Trainer(agent, agent.sampler(allowance_data), FitConfig(batch_size=4), seed=0)
    for term in trainer.step():
        assert term.endswith(("gradient_norm", "learning_rate")) or f"`{term}`" in AGENTS[name], (
            term
        )


class Machine:
    """Stands where the reader's machine would: a heater, no Gymnasium."""

    def __init__(self, size: int) -> None:
        self.steps, self._size = 0, size

    @property
    def stopped(self) -> bool:
        return self.steps == 5

    def start(self) -> np.ndarray:
        return np.zeros(self._size)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, float]:
        assert action.shape == (1,)
        self.steps += 1
        return np.full(self._size, 0.1 * self.steps), 1.0, 0.5 + float(np.abs(action).sum())


def test_a_policy_runs_in_a_plain_loop(smoke, capsys):
    """Seen to fail when `observe` does not book the cost."""
    run = smoke / "plant-smoke-seed0"
    machine = Machine(Run(run).spec.dimensions.state)
    exec(block_with(EXPORTING, "machine.start").replace("deployed", str(run)), {"machine": machine})
    assert machine.steps == 5
    spent = float(re.search(r"spent tensor\(\[\[([\d.]+)", capsys.readouterr().out)[1])
    assert spent >= 2.5


def test_training_and_evaluating_from_python(tmp_path, monkeypatch, capsys):
    """The README's own lines; only the size of the work is reduced. Seen to fail with a misspelt
    keyword in the block."""
    monkeypatch.chdir(tmp_path)
    assert README.count("```python") == 1, "another block would go untried"
    code = block_with(README, "saformer.train").replace(
        "updates=1000", "updates=3, data_steps=2000"
    )
    scope = {"__name__": "__main__"}
    exec(code.replace("episodes=20", "episodes=1"), scope)
    assert "3 limits met" in capsys.readouterr().out
    assert scope["policy"].reset is not None


def test_own_trajectories(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(block_with(DATA, "my-logs"), {})
    assert (tmp_path / "my-logs" / "manifest.json").exists()
    brief = ["--updates", "2", "--batch-size", "4", "--evaluate-every", "0", "--out", "run"]
    assert main(["train", "my-logs", *brief]) == 0


def test_logs_and_no_simulator(tmp_path, monkeypatch):
    """The README's commands, on a small log and with few updates. Seen to fail when one asks for
    what the others do not make."""
    monkeypatch.chdir(tmp_path)
    Path("logs").mkdir()
    rng = np.random.default_rng(0)
    for number in range(2):
        rows = ["run,level,valve,profit,wear"]
        for run in range(12):
            rows += [
                f"{number}-{run}," + ",".join(f"{value:.3f}" for value in rng.uniform(0, 3, 4))
                for _ in range(8)
            ]
        Path(f"logs/{number}.csv").write_text("\n".join(rows))
    named = {"action": ["valve"], "reward": "profit", "cost": "wear", "episode": "run"}
    mapping = {"state": ["level"], **named}
    Path("mapping.toml").write_text("\n".join(f"{k} = {v!r}" for k, v in mapping.items()))
    block = re.search(r"## Your logs\n\n```console\n(.*?)```", README, re.DOTALL)[1]
    proposing, *lines = (re.sub(r"\s+#.*", "", line) for line in block.splitlines())
    assert main(shlex.split(proposing)[1:]) == 1, "a mapping is proposed, nothing is written"
    for line in lines:
        words = shlex.split(line)[1:]
        brief = ["--updates", "3", "--batch-size", "4", "--width", "16", "--layers", "1"]
        assert main([*words, *(brief if words[0] == "train" else [])]) == 0, line


def test_linked_documents_exist(project):
    for page in [
        project / "README.md",
        *(project / "docs").rglob("*.md"),
        project / "CONTRIBUTING.md",
    ]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
