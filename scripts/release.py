"""Build the wheel and the sdist, and check both as a user would meet them.

pip install build twine
python -m scripts.release                                   builds into dist/, checks what is in it
python -m scripts.release --python python3.11 python3.13    and installs it into fresh environments,
                                                            where a user's first steps are taken
python -m scripts.release --wheel dist/NAME.whl --python P  these alone

Uploads nothing: `twine upload dist/*` is left to whoever releases.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

ROOT = Path(__file__).parents[1]
MOST_BYTES = 30_000_000
NEEDED = ("saformer/py.typed", "saformer/assets/frontiers.json")
NEEDED += ("saformer/report/templates/style.css", "saformer/report/templates/sort.js")
IN_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "mkdocs.yml", "Makefile")
LOG = """
import random
print("day,hour,room,valve,comfort", file=(log := open("log.csv", "w")))
for day in range(12):
    for hour in range(24):
        valve = random.random()
        print(day, hour, 15 + 9 * valve, valve, valve, sep=",", file=log)
"""
ACT = """
import saformer
policy = saformer.load("deployed").policy()
policy.reset([0.0] * 7, limit=5.0)
print(policy.act([0.0] * 7).action)
"""
SMALL = "--updates 4 --width 16 --layers 1"
COLUMNS = "--state hour room --action valve --reward comfort --episode day"


def _saformer(*commands: str) -> tuple[tuple[str, ...], ...]:
    return tuple(("-m", "saformer", *command.split()) for command in commands)


FIRST_STEPS: tuple[tuple[str, ...], ...] = (
    ("-W", "error", "-c", "import saformer; print(saformer.__version__)"),
    *_saformer(
        "--version",
        "--help",
        "doctor",
        "demo plant --scale smoke",
        f"train plant-room --out room {SMALL} --data-steps 4000",
        "evaluate room --limits p50 --episodes 1",
        "export room deployed",
        "evaluate deployed --limits p50 --episodes 1 --shield",
    ),
    ("-c", ACT),
    ("-c", LOG),
    *_saformer(
        f"data import log.csv --out log {COLUMNS}",
        "data inspect log --report inspect.html",
        f"train log --out runs/log {SMALL}",
        "evaluate runs/log",
        "doctor runs/log",
    ),
)
"""What is tried in a fresh environment with the extras `gym` and `logs`."""


def problems(wheel: Path, sdist: Path) -> Iterator[str]:
    """What is wrong with the two files, in sentences."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stem = f"{project['name']}-{project['version']}"
    packed = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        sources = {name.removeprefix(f"{stem}/") for name in archive.getnames()}
    for path in (wheel, sdist):
        if not path.name.startswith(stem):
            yield f"{path.name} is not of version {project['version']}"
        if (size := path.stat().st_size) > MOST_BYTES:
            yield f"{path.name} has {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f}"
    yield from (f"{name} is not in the wheel" for name in NEEDED if name not in packed)
    yield from (f"{name} is not in the sdist" for name in IN_SOURCES if name not in sources)
    code = {f"saformer/{path}" for path in _files(ROOT / "src/saformer")}
    yield from (f"{name} is not in the wheel" for name in sorted(code - packed - set(NEEDED)))
    strange = {name for name in packed if PurePath(name).parts[0] not in _roots(stem)}
    yield from (f"{name} has no place in the wheel" for name in sorted(strange))


def _files(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(folder).as_posix()


def _roots(stem: str) -> set[str]:
    return {"saformer", f"{stem}.dist-info"}


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel, made from the sdist as a user's pip would, and the sdist."""
    _run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def try_out(wheel: Path, python: str) -> None:
    """Install into a fresh environment and take a user's first steps, away from the sources."""
    with tempfile.TemporaryDirectory() as folder:
        _run(python, "-m", "venv", f"{folder}/venv")
        fresh = f"{folder}/venv/bin/python"
        _run(fresh, "-m", "pip", "install", "--quiet", f"{wheel}[gym,logs]")
        for step in FIRST_STEPS:
            _run(fresh, *step, where=folder)


def _run(*command: object, where: Path | str = ROOT) -> None:
    """A command; what it needs of ours is installed, or it has nothing."""
    print("$", *command, flush=True)
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    alone |= {"SAFORMER_HOME": f"{where}/home", "OMP_NUM_THREADS": "1"}
    subprocess.run([str(part) for part in command], cwd=where, check=True, env=alone)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--python", nargs="*", default=[], help="interpreters to install it with")
    parser.add_argument("--wheel", type=Path, help="builds nothing, installs this one")
    options = parser.parse_args(arguments)
    if options.wheel is not None:
        for python in options.python:
            try_out(options.wheel.resolve(), python)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    if any(options.out.iterdir()):
        parser.error(f"{options.out} is not empty: remove what was built before")
    wheel, sdist = build(options.out)
    _run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    wrong = list(problems(wheel, sdist))
    for text in wrong:
        print("problem:", text)
    if wrong:
        return 1
    for python in options.python:
        try_out(wheel.resolve(), python)
    for path in (wheel, sdist):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
