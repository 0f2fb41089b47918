"""The garage of examples/ev_charging, on a few days."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sustaingym", reason="the example's README says how to install sustaingym")
FOLDER = Path(__file__).parents[2] / "examples" / "ev_charging"


@pytest.mark.long
def test_it_runs_from_logs_to_a_figure(tmp_path):
    """Tiny: a policy that has learnt next to nothing keeps its budget all the same, by stopping."""
    brief = f"--out {tmp_path / 'ev'} --episodes 6 --updates 10 --days 1"
    command = [sys.executable, "run.py", *brief.split()]
    done = subprocess.run(command, cwd=FOLDER, check=True, capture_output=True, text=True)
    assert "policy within 80 kg" in done.stdout
    assert (tmp_path / "ev" / "profit_and_carbon.svg").stat().st_size > 1000
    outcomes = json.loads((tmp_path / "ev" / "outcomes.json").read_text())
    ours = {each["budget"]: each["days"][0] for each in outcomes if each["who"] == "policy"}
    assert all(kilograms <= 1.1 * budget for budget, (_, kilograms) in ours.items() if budget)
