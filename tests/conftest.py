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
