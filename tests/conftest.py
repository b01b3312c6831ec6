"""Fixtures that several files of tests share."""

import pytest

from hw.config import Structure
from sim.run import binary_for


@pytest.fixture(scope="session")
def model():
    """The simulator of the default structure: built by the first test that wants it.

    Others that start at the same time, in other processes too, wait for it (`sim.build`).
    """
    return binary_for(Structure())


def pytest_collection_modifyitems(config, items):
    """The campaign builds a model per test: it runs where it is asked for by name only."""
    if "campaign" not in config.option.markexpr:
        kept = [item for item in items if not item.get_closest_marker("campaign")]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
