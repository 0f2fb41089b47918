"""Bundles: snapshots of a behaviour policy in one .npz file, packaged or of the user's making.

A bundle holds S snapshots of one soft actor-critic run, in float16 to be small:

    w0 [S, obs, h0]  b0 [S, h0]  w1 [S, h0, h1]  b1 [S, h1]
    w2 [S, h1, 2*act]  b2 [S, 2*act]   (mean | log-deviation)
    steps [S]                          environment steps at which each snapshot was taken
    replay                             indices of the snapshots that make up "medium-replay"
    medium, expert                     index of the "medium" and of the "expert" snapshot
    environment                        Gymnasium id; a packaged bundle may do without
    action_low, action_high [act]      the environment's bounds; -1 and 1 where absent

    action = tanh(mean + exp(clip(log_deviation, -10, 2)) * normal), scaled to the bounds
    (observations are fed raw)

`scripts/train_behaviours.py` makes such a file for any Gymnasium task with bounded actions.
"""

import hashlib
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.files import check_is_new, replacing

ENVIRONMENTS = {"hopper": "Hopper-v5", "walker2d": "Walker2d-v5", "halfcheetah": "HalfCheetah-v5"}
ENVIRONMENTS |= {f"{robot}-effort": identifier for robot, identifier in ENVIRONMENTS.items()}
"""Of the packaged bundles. Effort snapshots differ in target speed and in the price of torque."""
LOG_DEVIATION_RANGE = (-10.0, 2.0)
LAYERS = 3
SUFFIX = ".npz"
WEIGHTS = tuple(f"{kind}{layer}" for layer in range(LAYERS) for kind in "wb")
REQUIRED = (*WEIGHTS, "steps", "replay", "medium", "expert", "environment")
OPTIONAL = ("action_low", "action_high")
HINT = "scripts/train_behaviours.py makes such files"

Arrays = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Behaviour:
    """One snapshot of a soft actor-critic: two hidden layers and a tanh-squashed Gaussian."""

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    action_low: Floats
    action_high: Floats

    def act(self, state: NDArray[np.floating], rng: np.random.Generator) -> Floats:
        mean, log_deviation = self.gaussian(state)
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        return self.squash(mean + np.exp(log_deviation) * noise)

    def gaussian(self, state: NDArray[np.floating]) -> tuple[Floats, Floats]:
        """[A] mean and [A] log-deviation for one state, before squashing."""
        hidden = state.astype(np.float32)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = np.maximum(hidden @ weight + bias, 0)
        mean, log_deviation = np.split(hidden @ self.weights[-1] + self.biases[-1], 2)
        return mean, np.clip(log_deviation, *LOG_DEVIATION_RANGE)

    def squash(self, sample: NDArray[np.floating]) -> Floats:
        """Bring a sample of the Gaussian within the bounds; for -1 and 1 by tanh, to the bit."""
        centre = (self.action_high + self.action_low) / 2
        reach = (self.action_high - self.action_low) / 2
        action: Floats = centre + reach * np.tanh(sample)
        return np.clip(action, self.action_low, self.action_high)  # float32 may round past them


@dataclass(frozen=True)
class Bundle:
    """The snapshots of one run, and which of them make up which mixture."""

    source: str  # robot or file that it was read from
    environment: str  # Gymnasium id
    weights: tuple[NDArray[np.floating], ...]  # three, [S, inputs, outputs]
    biases: tuple[NDArray[np.floating], ...]  # three, [S, outputs]
    steps: NDArray[np.integer]  # [S] environment steps at which each snapshot was taken
    replay: tuple[int, ...]
    medium: int
    expert: int
    action_low: Floats
    action_high: Floats

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for values in self.weights + self.biases:
            digest.update(np.ascontiguousarray(values).data)
        return digest.hexdigest()[:16]

    def behaviour(self, snapshot: int) -> Behaviour:
        weights = tuple(layer[snapshot].astype(np.float32) for layer in self.weights)
        biases = tuple(layer[snapshot].astype(np.float32) for layer in self.biases)
        return Behaviour(weights, biases, self.action_low, self.action_high)

    def snapshots(self, mixture: str) -> list[int]:
        members = {
            "medium": [self.medium],
            "medium-replay": list(self.replay),
            "medium-expert": [self.medium, self.expert],
        }
        if mixture not in members:
            raise ValueError(f"unknown mixture {mixture!r}; there are {', '.join(members)}")
        return members[mixture]


def open_bundle(robot: str | Path) -> Bundle:
    """The packaged bundle of a robot, or the one in a file of the user's."""
    if str(robot).endswith(SUFFIX):
        return bundle_of(_read(Path(robot)), str(robot))
    if robot not in ENVIRONMENTS:
        known = f"{', '.join(ENVIRONMENTS)}, or give the path of a {SUFFIX} bundle"
        raise ValueError(f"unknown robot {str(robot)!r}; there are {known}")
    folder = resources.files("saformer") / "assets" / "behaviours"
    packaged = _read(Path(str(folder / f"{robot}{SUFFIX}")))
    return bundle_of({"environment": np.array(ENVIRONMENTS[str(robot)]), **packaged}, str(robot))


def save_bundle(arrays: Arrays, path: str | Path) -> Bundle:
    """Check a bundle and write it to a new file, all of it or nothing."""
    path = Path(path)
    check_destination(path)
    bundle = bundle_of(arrays, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {n: arrays[n] for n in REQUIRED + OPTIONAL if n in arrays}
    with replacing(path) as file:
        np.savez_compressed(file, **content)
    return bundle


def check_destination(path: Path) -> None:
    """Refuse a name that a bundle cannot have, or that something has already."""
    if path.suffix != SUFFIX:
        raise ValueError(f"a bundle's name must end in {SUFFIX}, got {path}")
    check_is_new(path, "bundles")


def bundle_of(arrays: Arrays, source: str) -> Bundle:
    """Check arrays that came from outside and make a bundle of them."""
    if missing := ", ".join(name for name in REQUIRED if name not in arrays):
        raise ValueError(f"{source} is not a complete bundle: it has no {missing}; {HINT}")
    _check_layers(arrays, source)
    count, steps, identifier = len(arrays["w0"]), arrays["steps"], arrays["environment"]
    are_integers = steps.dtype.kind in "iu" and steps.shape == (count,)
    _require(are_integers, source, "steps", steps, f"{count} integers")
    is_text = identifier.dtype.kind == "U" and identifier.ndim == 0 and bool(str(identifier))
    _require(is_text, source, "environment", identifier, "a Gymnasium id as a string")
    low, high = _bounds(arrays, arrays["w2"].shape[2] // 2, source)
    return Bundle(
        source=source,
        environment=str(identifier),
        weights=tuple(arrays[f"w{layer}"] for layer in range(LAYERS)),
        biases=tuple(arrays[f"b{layer}"] for layer in range(LAYERS)),
        steps=steps,
        replay=_indices("replay", arrays["replay"], 1, count, source),
        medium=_indices("medium", arrays["medium"], 0, count, source)[0],
        expert=_indices("expert", arrays["expert"], 0, count, source)[0],
        action_low=low,
        action_high=high,
    )


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """Every array of the file. Nothing is unpickled: an array of objects is refused."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no bundle at {path}; {HINT}")
    try:
        if not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile("not an archive of arrays")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, RuntimeError) as error:
        raise ValueError(f"{path} is not a bundle or is damaged ({error}); {HINT}") from None


def _require(ok: bool, source: str, name: str, values: NDArray[Any], expected: str) -> None:
    if not ok:
        raise ValueError(f"{source}: {name} is {values.dtype} {values.shape}, expected {expected}")


def _check_layers(arrays: Arrays, source: str) -> None:
    """Three layers that fit onto each other, in every snapshot."""
    for name in WEIGHTS:
        values = arrays[name]
        axes = "[snapshots, inputs, outputs]" if name[0] == "w" else "[snapshots, outputs]"
        are_floats = values.ndim == axes.count(",") + 1 and values.dtype.kind == "f"
        _require(are_floats and values.size > 0, source, name, values, f"floats {axes}")
        if not np.isfinite(values).all():
            raise ValueError(f"{source}: {name} holds NaN or infinite values; train again")
    count, inputs = arrays["w0"].shape[:2]
    for layer in range(LAYERS):
        outputs = arrays[f"w{layer}"].shape[2]
        expected = {f"w{layer}": (count, inputs, outputs), f"b{layer}": (count, outputs)}
        for name, shape in expected.items():
            if (own := arrays[name].shape) != shape:
                raise ValueError(f"{source}: {name} has shape {own}, expected {shape}")
        inputs = outputs
    if inputs % 2:
        raise ValueError(f"{source}: w2 has {inputs} outputs, expected a mean and a log-deviation")


def _indices(
    name: str, values: NDArray[Any], dimensions: int, count: int, source: str
) -> tuple[int, ...]:
    are_integers = values.dtype.kind in "iu" and values.ndim == dimensions and values.size > 0
    expected = "a list of indices" if dimensions else "one index"
    _require(are_integers, source, name, values, f"{expected} of snapshots")
    indices: tuple[int, ...] = tuple(values.reshape(-1).tolist())
    for index in (index for index in indices if not 0 <= index < count):
        known = f"there are {count} (0 to {count - 1})"
        raise ValueError(f"{source}: {name} names snapshot {index}, but {known}")
    return indices


def _bounds(arrays: Arrays, num_actions: int, source: str) -> tuple[Floats, Floats]:
    if ("action_low" in arrays) != ("action_high" in arrays):
        raise ValueError(f"{source} has one of action_low, action_high: expected both or neither")
    bounds = []
    for name, default in (("action_low", -1.0), ("action_high", 1.0)):
        values = np.asarray(arrays.get(name, np.full(num_actions, default, np.float32)))
        are_numbers = values.dtype.kind in "fiu" and values.shape == (num_actions,)
        _require(are_numbers, source, name, values, f"{num_actions} numbers")
        bounds.append(values.astype(np.float32))
    low, high = bounds
    if not (np.isfinite(bounds).all() and (low < high).all()):
        bounds_text = f"{low.tolist()} to {high.tolist()}"
        raise ValueError(f"{source}: actions must lie between finite bounds, got {bounds_text}")
    return low, high
