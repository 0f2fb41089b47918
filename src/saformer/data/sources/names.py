"""Sources by name: `d4rl:hopper-medium-v2`, `dsrl-hdf5:OfflineBallRun-v0`,
`minari:mujoco/hopper/medium-v0`, or a file's path."""

import hashlib
import re
import urllib.error
import urllib.request
from importlib import resources
from pathlib import Path

from saformer.data.home import home
from saformer.data.sources.arrays import read_hdf5, read_npz
from saformer.data.sources.dsrl import FILE_PREFIX, find_dsrl, local_file
from saformer.data.sources.minari import METADATA, read_minari
from saformer.data.sources.source import EnvironmentHints, Progress, Source
from saformer.files import replacing

D4RL_HOST = "http://rail.eecs.berkeley.edu/datasets/offline_rl"
ROBOTS = "hopper|walker2d|halfcheetah"
MIXTURES = "random|medium|expert|medium-replay|medium-expert|full-replay"
D4RL_NAME = re.compile(rf"({ROBOTS})-({MIXTURES})-v([012])")
READERS = {".hdf5": read_hdf5, ".h5": read_hdf5, ".npz": read_npz}


def is_hosted(text: str) -> bool:
    """Whether this names a dataset that somebody hosts."""
    return text.startswith(("d4rl:", "minari:", FILE_PREFIX))


def open_source(
    text: str, known: EnvironmentHints | None = None, *, progress: Progress | None = None
) -> Source:
    """The source of this name, downloaded if it is not on this machine, or at this path."""
    if text.startswith("d4rl:"):
        return read_hdf5(_d4rl_file(text.removeprefix("d4rl:"), progress), known)
    if text.startswith(FILE_PREFIX):
        path, address = local_file(find_dsrl(text))
        return read_hdf5(_downloaded(address, path, None, progress), known)
    if text.startswith("minari:"):
        return read_minari(text.removeprefix("minari:"), known, download=True)
    path = Path(text)
    if (path / METADATA).exists() or (path / "data" / METADATA).exists():
        return read_minari(path, known)
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {text}")
    if path.suffix.lower() not in READERS:
        raise ValueError(
            f"{text} is none of the files that can be read: {', '.join(READERS)} (D4RL, DSRL or "
            "plain arrays), .csv and .parquet (logs), the folder of a Minari dataset"
        )
    return READERS[path.suffix.lower()](path, known)


def _d4rl_file(name: str, progress: Progress | None) -> Path:
    """Where D4RL's file of this name lies, after downloading it if need be."""
    match = D4RL_NAME.fullmatch(name)
    if not match:
        expected = f"({ROBOTS})-({MIXTURES})-v(0|1|2), as in hopper-medium-v2"
        raise ValueError(f"unknown D4RL dataset {name!r}; expected {expected}")
    robot, mixture, version = match[1], match[2].replace("-", "_"), match[3]
    local = f"{robot}_{mixture}-v{version}.hdf5"
    remote = f"gym_mujoco_v{version}/{local}"
    if version == "0":  # the first release had no version in its names and called replay "mixed"
        remote = f"gym_mujoco/{robot}_{mixture.replace('medium_replay', 'mixed')}.hdf5"
        remote = remote.replace("walker2d_mixed", "walker_mixed")
    own, theirs = home() / "d4rl" / local, Path.home() / ".d4rl" / "datasets" / Path(remote).name
    if not own.exists() and theirs.exists():
        return theirs
    return _downloaded(f"{D4RL_HOST}/{remote}", own, _sha256_of(remote), progress)


def _sha256_of(remote: str) -> str | None:
    """Of D4RL's file, as others recorded it; None of one that nobody did."""
    text = resources.files("saformer").joinpath("assets", "d4rl.sha256").read_text()
    known = {name: digest for digest, name in map(str.split, text.splitlines())}
    return known.get(remote)


def _downloaded(address: str, path: Path, expected: str | None, progress: Progress | None) -> Path:
    """The file at this path, fetched if it is not there: whole, with the digest that was recorded
    of it if one was, or not at all; several processes may fetch the same one."""
    if path.exists():
        return path
    digest = hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(path) as file, urllib.request.urlopen(address, timeout=30) as answer:
            total = int(answer.headers.get("Content-Length") or 0)
            while chunk := answer.read(1 << 20):
                file.write(chunk)
                digest.update(chunk)
                if progress and total:
                    progress(file.tell(), total)
            if total and file.tell() != total:
                raise urllib.error.URLError(f"only {file.tell()} of {total} bytes came")
            if expected not in {None, digest.hexdigest()}:
                raise urllib.error.URLError("what came is not that file: its sha256 is another")
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise FileNotFoundError(
            f"could not download {address} ({getattr(error, 'reason', error)}); download it "
            f"elsewhere and put it at {path}"
        ) from None
    return path


def default_name(source: str) -> str:
    """Of the store that is made of a source, in the present folder."""
    name = source.partition(":")[2] if is_hosted(source) else Path(source.rstrip("/*")).name
    plain = name.split(".")[0].replace("/", "-").replace("*", "") or "store"
    is_source = Path(source).is_dir() and plain == name  # never the folder that is read
    return f"{plain}-store" if is_source else plain
