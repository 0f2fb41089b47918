"""What a command loads: no more than it needs, as that is most of its time."""

import subprocess
import sys

import pytest

RUN = """
import gc, sys
from saformer.cli import main
sys.argv = ["saformer", *{words!r}]
wanted = main.command_of
class Wanted:
    def run(self, console):
        print(gc.isenabled(), gc.get_freeze_count() > 1000, *sys.modules)
        return 0
main.command_of = lambda words: (wanted(words), Wanted())[1]
main.main()
"""


@pytest.mark.parametrize("verb", ["export", "calibrate", "train"])
def test_a_command_loads_what_it_needs(verb, tmp_path):
    """And no collection goes through that, though there are some afterwards. Seen to fail when
    cli/judge.py imports reports, trained.py estimates or exports to ONNX at its top; when main
    leaves the collector off, or does not freeze."""
    words = {
        "export": ["run", "out"],
        "calibrate": ["run", "--rate", "0.1"],
        "train": ["allowance"],
    }
    code = RUN.format(words=[verb, *words[verb]])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    is_enabled, is_frozen, *modules = done.stdout.split()
    assert (is_enabled, is_frozen) == ("True", "True")
    others = {"matplotlib", "jinja2", "gymnasium", "saformer.onnx.export"}
    others |= {"saformer.api.estimate", "saformer.evaluation.evaluate", "saformer.data.logs.cells"}
    assert not others & {*modules}
