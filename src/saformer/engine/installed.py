"""What the package can use, and what of it is installed."""

from importlib.metadata import PackageNotFoundError, version

CORE = ("torch", "numpy", "safetensors", "tyro", "rich", "matplotlib", "pydantic")
EXTRAS = {
    "mujoco": (("gymnasium", "mujoco", "imageio"), "robots and plants, rollouts, the demo"),
    "hdf5": (("h5py",), "D4RL and DSRL files"),
    "minari": (("minari",), "Minari datasets"),
    "logs": (("pyarrow",), "CSV and Parquet logs"),
    "behaviours": (("stable-baselines3",), "training behaviour policies"),
    "ray": (("ray",), "experiments on a cluster"),
    "onnx": (("onnx", "onnxscript", "onnxruntime"), "policies that onnxruntime runs"),
    "track": (("tensorboard",), "TensorBoard metrics"),
}


def version_of(package: str) -> str | None:
    """Of an installed package; None where it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def how_to_get(module: str) -> str:
    """What to say of a module that is not there."""
    name = module.partition(".")[0]
    extra = next((extra for extra, (packages, _) in EXTRAS.items() if name in packages), None)
    remedy = f"pip install 'saformer[{extra}]'; " if extra else ""
    return f"{name} is not installed: {remedy}`saformer doctor` says what needs it"
