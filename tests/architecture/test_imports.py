"""Who may import whom: arrows point one way only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "saformer"

# docs/architecture.md shows the same table.
ALLOWED: dict[str, set[str]] = {
    "criteria": set(),
    "core": set(),
    "engine": set(),
    "files": set(),
    "kernels": {"core"},
    "data": {"core", "criteria", "files"},
    "runs": {"core", "files"},
    "envs": {"core", "criteria", "data", "files"},
    "shield": {"core", "criteria"},
    "rules": {"core", "data"},
    "agents": {"core", "data", "kernels", "rules"},
    "evaluation": {"core", "criteria", "data", "envs"},
    "training": {
        *(
            "core",
            "data",
            "envs",
            "rules",
            "agents",
            "kernels",
            "evaluation",
            "engine",
            "runs",
            "files",
        ),
    },
    "report": {"runs", "files"},
}
ALLOWED |= {"api": set(ALLOWED), "onnx": {*ALLOWED, "api"}, "trained": {*ALLOWED, "api", "onnx"}}
ALLOWED["selection"] = set(ALLOWED)
ALLOWED |= {"experiments": set(ALLOWED), "live": set(ALLOWED), "client": set()}
ALLOWED |= {"cli": {*ALLOWED, "experiments", "live"} - {"client"}, "__main__": {"cli"}}
CONFINED = {
    "safetensors": {"runs"},
    "gymnasium": {"envs", "data"},  # Minari speaks in its spaces
    "mujoco": {"envs"},
    "bullet_safety_gym": {"envs"},
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "tyro": {"cli"},
    "h5py": {"data"},
    "pyarrow": {"data"},
    "minari": {"data"},
    "pydantic": {"files", "live"},
    "starlette": {"live"},
    "uvicorn": {"live"},
    "websockets": {"live"},
    "msgpack": {"live"},
    "imageio": {"live"},
    "prometheus_client": {"live"},
    "ray": {"engine"},
    "triton": {"kernels"},
    "onnxruntime": {"onnx"},
}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at its top or anywhere below."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return found


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_point_one_way(path):
    """Seen to fail when core imports data."""
    rooms = {name.split(".")[1] for name in imports(path) if name.startswith("saformer.")}
    outside = (rooms & set(ALLOWED)) - ALLOWED[room(path)] - {room(path)}
    assert not outside, f"{path.name} may not import {outside}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_third_parties_are_confined(path):
    """Seen to fail when gymnasium is imported in evaluation."""
    used = {name.split(".")[0] for name in imports(path)}
    for package in used & set(CONFINED):
        assert room(path) in CONFINED[package], f"{path} may not import {package}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_one_file_speaks_to_other_ranks(path):
    """Seen to fail when training adds gradients up by itself."""
    speaks = any(name.startswith("torch.distributed") for name in imports(path))
    assert not speaks or path == PACKAGE / "engine" / "distributed.py"


def test_core_needs_torch_and_the_standard_library_only():
    """Seen to fail when core imports numpy."""
    for path in (PACKAGE / "core").glob("*.py"):
        strangers = (
            {name.split(".")[0] for name in imports(path)}
            - set(sys.stdlib_module_names)
            - {"torch", "saformer"}
        )
        assert not strangers, f"{path.name} imports {strangers}"


def test_core_can_be_imported_where_only_torch_is_installed():
    """Every other third party is made to fail. Seen to fail when saformer/__init__ imports the API
    eagerly."""
    code = (
        "import sys\n"
        "others = 'safetensors tyro rich matplotlib gymnasium mujoco h5py pyarrow minari'\n"
        "others += ' scipy jinja2 pydantic'\n"
        "for name in others.split():\n"
        "    sys.modules[name] = None\n"
        "import saformer.core.execution, saformer.core.objectives\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_agents_can_be_imported_without_triton():
    imported = "saformer.agents.registry, saformer.kernels.decisions"
    code = f"import sys; sys.modules['triton'] = None; import {imported}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_equation_and_algorithm_has_one_owner():
    """`Implements: Eq. (5)` stands in exactly one docstring. Seen to fail when one is removed."""
    owners: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                for line in (ast.get_docstring(node) or "").splitlines():
                    if line.startswith("Implements: "):
                        owners.setdefault(line.removeprefix("Implements: "), []).append(
                            f"{path.name}:{node.name}"
                        )
    expected = {f"Eq. ({number})" for number in range(1, 10)} | {
        f"Algorithm {number}" for number in (1, 2, 3)
    }
    assert {name for name, found in owners.items() if len(found) == 1} == expected, owners
