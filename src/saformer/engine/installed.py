"""What the package can use, and what of it is installed."""

from importlib.metadata import PackageNotFoundError, version

CORE = (
    "torch",
    "numpy",
    "scipy",
    "safetensors",
    "tyro",
    "rich",
    "matplotlib",
    "jinja2",
    "pydantic",
)
EXTRAS = {
    "gym": (("gymnasium",), "plants, the demo, simulators of your own"),
    "mujoco": (("mujoco", "imageio"), "robots"),
    "hdf5": (("h5py",), "D4RL and DSRL files"),
    "minari": (("minari",), "Minari datasets"),
    "logs": (("pyarrow",), "CSV and Parquet logs"),
    "behaviours": (("stable-baselines3",), "training behaviour policies"),
    "dsrl": (
        ("pybullet", "xmltodict", "safety-gymnasium", "bullet-safety-gym"),
        "DSRL's environments (pybullet has wheels for Python 3.11 on Linux alone)",
    ),
    "ray": (("ray",), "experiments on a cluster"),
    "onnx": (("onnx", "onnxscript", "onnxruntime"), "policies that onnxruntime runs"),
    "track": (("tensorboard",), "TensorBoard metrics"),
    "web": (
        ("starlette", "uvicorn", "websockets", "msgpack", "prometheus-client"),
        "the live page and the server",
    ),
}
ALONE = {"dsrl": "safety-gymnasium==1.0.0 bullet-safety-gym==1.4.0"}
"""What an extra needs beside itself, without the dependencies it names: their pins are dead."""


def version_of(package: str) -> str | None:
    """Of an installed package; None where it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def command_for(extra: str) -> str:
    """What to type for an extra: one line, or two."""
    line = f"pip install 'saformer[{extra}]'"
    return f"{line} && pip install --no-deps {ALONE[extra]}" if extra in ALONE else line


def how_to_get(module: str) -> str:
    """What to say of a module that is not there."""
    name = module.partition(".")[0]
    extra = next((extra for extra, (packages, _) in EXTRAS.items() if name in packages), None)
    remedy = f"{command_for(extra)}; " if extra else ""
    return f"{name} is not installed: {remedy}`saformer doctor` says what needs it"
