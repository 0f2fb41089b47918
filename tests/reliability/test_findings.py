"""Every finding of the attack that this room began with, and the tests that hold its mend."""

import ast
from pathlib import Path

FINDINGS = """
H1 who loses a lock relabels the winner's run: test_one_writer.py who_loses_the_lock
H2 shared files have code imported: test_foreign_code.py code_that_a_file_names
H3 NaN gets out, and switches the shield off: test_numbers.py is_none test_shield.py no_number
H4 the shield passes on what it did not cost: test_shield.py returned_is_what_was_costed
M1 what a rule fitted outlives its weights: test_rules.py nothing_is_fitted test_checksums.py identity
M2 a rule is fitted with dropout on: test_rules.py no_noise
M3 a seed in run.json is executed in reports: test_names.py a_seed_is_text
M4 brackets in names are markup: test_names.py names_go_through no_console
M5 dollar signs in names are formulas: test_names.py drawn_as_they_are
M6 a killed build leaves workers: test_workers.py killed_build
M7 saving a store deletes other folders: test_writer.py deletes_nothing
M8 a crafted store kills the interpreter: test_stores.py lengths_that_cannot_be misleads exchanged
M9 a full disk ends in a traceback: test_writer.py said_in_one_line not_the_environments_fault
M10 links are written through: test_writer.py replaced_is_never what_grows_is_never
L1 accounts in float32: test_numbers.py lose_no_cents as_exact test_shield.py cut_to_what_is_spent
L2 the shield out of turn: test_shield.py acting_twice booked_at refused_reset equal_to
L3 fixed temporary names: test_writer.py two_writers_of_one_file a_second_export
L4 no checksums: test_checksums.py flipped_bits test_files.py read_as_it_was_written lost_its_name test_stores.py said_with_its_store
L5 tracebacks and messages without a file: test_readers.py _json rows_of test_sources.py is_named
L6 one number for a whole observation: test_misuse.py never_stretched
L7 a lock that others wait on is unlinked: test_writer.py a_maker_that_failed
L8 HDF5 reads other files: test_sources.py never_reads_another
L9 a descriptor for each column: test_files.py many_stores
L10 any number of candidates: test_misuse.py more_candidates
L11 private files, unchecked downloads: test_writer.py permissions ../data/test_sources.py a_download
"""
"""number, what was wrong: files, and what the names of their tests contain"""


def test_every_finding_has_tests():
    """Seen to fail with L9 left out, and with a test called otherwise."""
    rows = [line.rsplit(": ", 1) for line in FINDINGS.strip().splitlines()]
    known = {"H": 4, "M": 10, "L": 11}
    numbers = [f"{letter}{n}" for letter, count in known.items() for n in range(1, count + 1)]
    assert [row[0].split()[0] for row in rows] == numbers
    for finding, where in rows:
        tests: list[str] = []
        for word in where.split():
            if word.endswith(".py"):
                tests = _tests_of(Path(__file__).parent / word)
            else:
                assert any(word in name for name in tests), f"{finding}: no test is called {word}"


def _tests_of(file: Path) -> list[str]:
    functions = ast.walk(ast.parse(file.read_text()))
    names = (node.name for node in functions if isinstance(node, ast.FunctionDef))
    return [name for name in names if name.startswith("test_")]
