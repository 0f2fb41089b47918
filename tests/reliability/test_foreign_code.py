"""No file brings code: what a shared run, export, store, dataset or bundle names is not imported."""

import json
import shutil
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import saformer
from saformer.agents import registry
from saformer.agents.cdt import CDTConfig
from saformer.agents.saformer import SaFormerConfig
from saformer.cli.main import main
from saformer.core.transformer import TrunkConfig
from saformer.criteria import code
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.envs import allowance
from saformer.envs.costed import make
from saformer.envs.lanes import Maker
from saformer.runs.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from saformer.runs.run import Run
from saformer.training.loop.config import FitConfig
from saformer.training.loop.presets import Preset
from tests.editing import edit
from tests.envs.test_behaviours import pendulum_arrays

BRIEF = "--agent cdt --updates 2 --batch-size 8 --width 16 --layers 1 --device cpu".split()  # noqa: SIM905
JUDGE = ["--limits", "p50", "--episodes", "1", "--device", "cpu"]
EVIL = """
from pathlib import Path
Path("ran").touch()

def cost(step):
    return abs(step.action).sum(-1)

class Env:
    pass
"""
OWN = """
import gymnasium
from saformer.envs.allowance import Allowance

def cost(step):
    return 2 * abs(step.action).sum(-1)

class Machine(Allowance):
    pass

def machine(dimensions=1):
    return Machine(dimensions)

class Wide(Allowance):
    def __init__(self):
        super().__init__(dimensions=2)

def no_machine():
    return 3

gymnasium.register("own/Machine-v0", entry_point=Machine)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run, an export and a store, to be tampered with."""
    folder = tmp_path_factory.mktemp("made")
    allowance.dataset(episodes=30).save(folder / "store")
    assert main(["train", str(folder / "store"), *BRIEF, "--out", str(folder / "run")]) == 0
    saformer.export(folder / "run", folder / "export")
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """Copies of them in a folder with code, which is on the path as in a notebook."""
    shutil.copytree(made, tmp_path / "shared")
    monkeypatch.chdir(tmp_path / "shared")
    monkeypatch.syspath_prepend(str(tmp_path / "shared"))
    Path("evil_mod.py").write_text(EVIL)
    edit(Path("run/run.json"), task=str(Path("store").resolve()))
    sign()
    Path("own.py").write_text(OWN)
    yield Path()
    for name in ("evil_mod", "own"):
        sys.modules.pop(name, None)
    gymnasium.registry.pop("own/Machine-v0", None)


def sign(path: str = "run") -> None:
    """Make the checkpoint's digest match run.json again, as an attacker would."""
    run = Run(path)
    checkpoint = load_checkpoint(run.checkpoint_path)
    facts = {**checkpoint.facts, "spec": run.spec.digest}
    save_checkpoint(run.checkpoint_path, Checkpoint(checkpoint.groups, facts))


def evil_run() -> None:
    edit(Path("run/run.json"), criteria=["evil_mod:cost"])
    sign()


def evil_run_of_a_file() -> None:
    edit(Path("run/run.json"), criteria=["./evil_mod.py:cost"])
    sign()


def evil_environment(manifest: str, name: str = "evil_mod:Env-v0") -> None:
    path = Path(manifest)
    environment = json.loads(path.read_text())["environment"]
    edit(path, environment={**environment, "identifier": name})


def evil_minari() -> None:
    store = TrajectoryStore.open("store")
    spec = replace(store.environment, identifier="evil_mod:Env-v0")
    replace(store, environment=spec, path=None).save("imported")


def evil_bundle() -> None:
    np.savez("evil.npz", **pendulum_arrays(environment=np.array("evil_mod:Env-v0")))


CRITERIA, ENVIRONMENT = "--criteria evil_mod:cost", "--environment evil_mod:Env-v0"
ROUTES = {
    "run": (evil_run, ["evaluate", "run", *JUDGE], CRITERIA),
    "run of a file": (evil_run_of_a_file, ["evaluate", "run", *JUDGE], "--criteria ./evil_mod"),
    "calibrate": (evil_run, ["calibrate", "run"], CRITERIA),
    "to export": (evil_run, ["export", "run", "again"], CRITERIA),
    "export": (
        lambda: evil_environment("export/export.json"),
        ["evaluate", "export", *JUDGE],
        ENVIRONMENT,
    ),
    "file of an export": (
        lambda: evil_environment("export/export.json", "./evil_mod.py:Env"),
        ["evaluate", "export", *JUDGE],
        "--environment ./evil_mod.py:Env",
    ),
    "store": (
        lambda: evil_environment("store/manifest.json"),
        ["train", "store", *BRIEF, "--evaluate-every", "1"],
        ENVIRONMENT,
    ),
    "store of a run": (
        lambda: evil_environment("store/manifest.json"),
        ["evaluate", "run", *JUDGE],
        ENVIRONMENT,
    ),
    "Minari": (
        evil_minari,
        ["train", "imported", *BRIEF, "--evaluate-every", "1"],
        ENVIRONMENT,
    ),
    "bundle": (evil_bundle, ["data", "build", "evil.npz", "--steps", "10"], ENVIRONMENT),
}


@pytest.mark.parametrize("route", ROUTES)
def test_code_that_a_file_names_is_not_run(here, route, capsys):
    """The message says what to type. Seen to fail for every route when names were imported, some by
    the message alone."""
    tamper, command, advice = ROUTES[route]
    tamper()
    capsys.readouterr()
    assert main(command) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert not Path("ran").exists(), said
    assert f"type {advice}" in said
    assert "Traceback" not in said


def new_process(monkeypatch) -> None:
    """Nothing is typed and nothing imported."""
    monkeypatch.setattr(code, "_vouched", {})
    for name in [name for name in sys.modules if name == "own" or name.startswith("_saformer_")]:
        del sys.modules[name]
    gymnasium.registry.pop("own/Machine-v0", None)


def without_environment(path: str) -> None:
    """A store of the same data, whose machine nobody has a simulator of."""
    store = TrajectoryStore.open("store")
    store.with_environment(identifier=None, arguments={}).save(path)


def judged(path: str, **context):
    """As `saformer evaluate` would, without a report."""
    return saformer.load(path, device="cpu", **context).judge(["p50"], episodes=1)[0]


@pytest.mark.parametrize("name", ["./own.py:cost", "own:cost"])
def test_what_was_typed_is_remembered(here, name, monkeypatch):
    """For the run and its export, where they are, in this very state; not for a copy. Seen to fail
    when nothing is remembered, and when the digest is not compared."""
    path = list(sys.path)
    assert main(["train", "store", *BRIEF, "--criteria", name, "--out", "mine"]) == 0
    saformer.export("mine", "exported")
    shutil.copytree("mine", "copy")
    for folder in ("mine", "exported"):
        new_process(monkeypatch)
        judged(folder)
    assert sys.path == path
    own = Run("mine").spec.criteria[0]
    assert own == (f"{Path('own.py').resolve()}:cost" if "/" in name else name)
    new_process(monkeypatch)
    with pytest.raises(ValueError, match=f"^copy: .*type --criteria {own}"):
        judged("copy")
    judged("copy", criteria=[name])
    new_process(monkeypatch)
    edit(Path("mine/run.json"), seed=1)
    sign("mine")
    with pytest.raises(ValueError, match="would run Python code"):
        judged("mine")


def test_a_run_from_another_machine_is_told_where_its_code_is_here(here):
    """Seen to fail when the name in its file is imported for the one that was typed."""
    edit(Path("run/run.json"), criteria=["/home/alice/costs.py:cost"])
    sign()
    with pytest.raises(ValueError, match="type --criteria /home/alice"):
        judged("run")
    how = {"criteria": ["./own.py:cost"], "workers": 2}
    assert judged("run", **how).criteria == ("/home/alice/costs.py:cost",)
    with pytest.raises(ValueError, match="has 1 criteria"):
        judged("run", criteria=["./own.py:cost", "torque"])


def test_no_other_cost_is_slipped_under_a_run(here, capsys):
    """Seen to fail when criteria that are no code are not compared."""
    assert main(["evaluate", "run", *JUDGE, "--criteria", "energy"]) == 1
    assert "was trained with the criterion 'torque', not 'energy'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["own:Machine", "./own.py:machine", "./own.py:own/Machine-v0"])
def test_an_environment_is_attached_later(here, name, capsys):
    """A class, a function, an id that the file registers; in workers too. Seen to fail when workers
    are not told of the file."""
    without_environment("logs")
    assert main(["train", "logs", *BRIEF, "--held-out", "0", "--out", "mine"]) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = [judged("mine", environment=name, workers=workers).rows for workers in (0, 2)]
    assert rows[0] == rows[1]
    assert main(["evaluate", "mine", *JUDGE]) == 0, "it is judged offline, as it was"
    assert "in a world learnt from the logs" in capsys.readouterr().out


def test_an_environment_typed_for_training_is_remembered(here, monkeypatch):
    """For the run and for its export. Seen to fail when a run does not remember it."""
    without_environment("logs")
    typed = ["--environment", "./own.py:Machine"]
    assert main(["train", "logs", *BRIEF, *typed, "--evaluate-every", "1", "--out", "mine"]) == 0
    assert "evaluation" in list(Run("mine").metrics())[-1]
    new_process(monkeypatch)
    assert main(["export", "mine", "exported"]) == 0
    for folder in ("mine", "exported"):
        new_process(monkeypatch)
        judged(folder)


def test_fine_tuning_goes_by_what_was_typed(here, monkeypatch):
    """Now, or for the run that it begins with; the new run remembers it. Seen to fail when the new
    run does not, and when exploration is not told of the environment."""
    without_environment("logs")
    tiny = {"trunk": TrunkConfig(layers=1, width=16, dropout=0.0), "window": 4, "rule": "paper"}
    preset = Preset(SaFormerConfig(**tiny), FitConfig(updates=2, batch_size=8, evaluate_every=0))
    typed = {"criteria": ["./own.py:cost"], "held_out": 0, "device": "cpu"}
    saformer.train("logs", preset=preset, out="mine", **typed)
    how = {"episodes": 1, "lanes": 1, "updates": 1, "evaluation_episodes": 2}
    new_process(monkeypatch)
    with pytest.raises(ValueError, match="has no environment to roll out in"):
        saformer.finetune("mine", [0.1], out="tuned", workers=0, device="cpu", **how)
    there = {"environment": "./own.py:Machine", "workers": 0, "device": "cpu"}
    saformer.finetune("mine", [0.1], out="tuned", **there, **how)
    assert Run("tuned").spec.criteria == (f"{Path('own.py').resolve()}:cost",)
    new_process(monkeypatch)
    judged("tuned")


def test_an_environment_typed_for_an_import_is_remembered(here, monkeypatch, capsys):
    """Not one that the mapping file names. Seen to fail when stores do not remember, and when the
    mapping counts as typed."""
    rows = [f"{ep},{t / 20},1,{0.01 * ep},1" for ep in range(1, 30) for t in range(20)]
    Path("log.csv").write_text("ep,s,w,a,reward\n" + "\n".join(rows) + "\n")
    Path("map.toml").write_text(
        'state = ["s", "w"]\naction = ["a"]\nepisode = "ep"\nenvironment = "./own.py:Machine"\n'
    )
    columns = ["--mapping", "map.toml", "--action-low=-1", "--action-high", "1"]
    typed = ["--environment", "./own.py:Machine"]
    assert main(["data", "import", "log.csv", *columns, *typed, "--out", "told"]) == 0
    new_process(monkeypatch)
    assert main(["data", "import", "log.csv", *columns, "--out", "untold"]) == 0
    train = [*BRIEF, "--evaluate-every", "1", "--held-out", "0"]
    assert main(["train", "told", *train, "--out", "mine"]) == 0
    new_process(monkeypatch)
    capsys.readouterr()
    assert main(["train", "untold", *train, "--out", "other"]) == 1
    assert "type --environment" in " ".join(capsys.readouterr().err.split())


def test_passing_the_object_is_naming_it(here, monkeypatch):
    """Seen to fail when only names are understood."""
    without_environment("logs")
    trained = saformer.train(
        "logs", preset=tiny_preset(), criteria=[twice], held_out=0, out="mine", device="cpu"
    )
    assert trained.run.spec.criteria == (f"{__name__}:twice",)
    how = {"episodes": 1, "limits": ["p50"]}
    for environment in (allowance.Allowance, partial(allowance.Allowance, dimensions=1)):
        assert len(trained.judge(environment=environment, **how)[0].rows) == 1
    new_process(monkeypatch)
    again = saformer.load("mine", environment=allowance.Allowance, workers=2, device="cpu")
    assert again.evaluate(**how).criteria == (f"{__name__}:twice",), "remembered"
    assert len(trained.judge(environment=allowance.Allowance(), **how)[0].rows) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./own.py:Wide", "has 2 states and 2 actions, the data 2 and 1"),
        ("./own.py:no_machine", "is int: a gymnasium.Env is expected"),
        ("./own.py:absent", "Environment `absent` doesn't exist"),
        ("./none.py:Machine", "cannot be imported: [Errno 2] No such file"),
        ("Nowhere-v0", "doesn't exist. If a file of yours registers it: ./file.py:Nowhere-v0"),
        ("no.such:Machine", "'no.such' cannot be imported: No module named 'no'"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused(here, name, message, capsys):
    """In one line. Seen to fail when it is not made before it is rolled out, and when an id that
    nobody registered is not said to want its file."""
    assert main(["evaluate", "run", *JUDGE, "--environment", name]) == 1
    said = capsys.readouterr().err
    assert message in " ".join(said.split())
    assert "Traceback" not in said


def test_a_file_is_hinted_at_where_its_module_is_not_on_the_path(here, monkeypatch, capsys):
    """Seen to fail when the current folder is put on the path."""
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p and Path(p) != Path.cwd()])
    assert main(["data", "inspect", "store", "--criteria", "own:cost"]) == 1
    assert "the file of that name is ./own.py" in " ".join(capsys.readouterr().err.split())


def test_an_id_of_gymnasium_needs_no_module(here):
    """`evil_mod:Pendulum-v1` is Pendulum. Seen to fail when the module is imported for it."""
    spec = EnvironmentSpec((-2.0,), (2.0,), 200, "evil_mod:Pendulum-v1")
    maker = Maker(spec, ())
    make(spec, ()).close()
    Maker.read(maker.text())().close()
    assert not Path("ran").exists()


def twice(step):
    return 2 * np.abs(step.action).sum(-1)


def tiny_preset() -> Preset:
    trunk = TrunkConfig(layers=1, width=16, heads=2, dropout=0.0)
    fit = FitConfig(updates=2, batch_size=8, evaluate_every=0)
    return Preset(CDTConfig(window=4, trunk=trunk), fit)


PACKAGE = """
from saformer.agents.dt import DTAgent, DTConfig
from dataclasses import dataclass

@dataclass(frozen=True)
class OwnConfig(DTConfig):
    pass

class OwnAgent(DTAgent):
    name = "own_dt"
    config_type = OwnConfig

class Impostor(DTAgent):
    name = "cdt"
"""
POINTS = """[saformer.agents]
own_dt = own_agents:OwnAgent
cdt = own_agents:Impostor
broken = own_agents:Absent
"""


def test_installed_packages_add_agents_and_nobody_else(here, monkeypatch):
    """By an entry point; a name in a run's file imports nothing. Seen to fail when entry points are
    not read, and when one may take the name of ours."""
    monkeypatch.setattr(registry, "KINDS", dict(registry.KINDS))
    registry.all_kinds.cache_clear()
    edit(Path("run/run.json"), agent="evil_mod:Agent")
    sign()
    with pytest.raises(ValueError, match="unknown agent 'evil_mod:Agent'"):
        saformer.load("run")
    registry.all_kinds.cache_clear()
    information = Path("own_agents-1.dist-info")
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: own-agents\nVersion: 1\n")
    (information / "entry_points.txt").write_text(POINTS)
    Path("own_agents.py").write_text(PACKAGE)
    with pytest.warns(UserWarning, match="saformer.agents"):
        assert registry.find_kind("own_dt").config_type.__name__ == "OwnConfig"
    assert registry.find_kind("cdt").__module__ == "saformer.agents.cdt"
    registry.all_kinds.cache_clear()
