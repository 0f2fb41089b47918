"""What is learnt here is judged, so nothing is cut short."""

from collections.abc import Iterator

import pytest

from tests import brief


@pytest.fixture(scope="package", autouse=True)
def _whole_fitting(_brief_fitting: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("saformer.rules.fitting.UPDATES", brief.WHOLE)
        yield
