"""docs/results.md says what the kept rows say."""

from saformer.experiments.catalogue import EXPERIMENTS
from scripts import results


def test_the_page_is_what_its_rows_say():
    """Seen to fail with one figure of the table changed by hand."""
    assert results.PAGE.read_text() == results.page(results.read(results.KEPT))


def test_every_kept_experiment_is_linked_and_drawn():
    """Seen to fail without the list of pages."""
    text = results.PAGE.read_text()
    for path in results.KEPT.glob("*.json"):
        assert path.stem in EXPERIMENTS
        assert f"({f'../results/paper/{path.stem}.md'})" in text
    assert (results.PAGE.parent / results.FIGURE).read_text().startswith("<svg")
