"""pytest's options `--vectors DIR` and `--pcaps DIR` (docs/conformance.md), as a plugin that pytest
knows from the start.

An option of tests/conftest.py would do, but for one thing: before pytest has read that file, it
takes DIR for a folder of tests, and looks for its configuration there.
"""

import sys

__all__ = ["pytest_addoption", "pytest_cmdline_main"]


def pytest_addoption(parser):
    """Declare the options."""
    for name, what in (("--vectors", "vectors"), ("--pcaps", "captures")):
        parser.addoption(
            name,
            metavar="DIR",
            help=f"directory of {what} for the conformance tests (docs/conformance.md)",
        )


def pytest_cmdline_main(config):
    """Start once more with the configuration of the working directory, if DIR had hidden it."""
    call = config.invocation_params
    file = call.dir / "pyproject.toml"
    if not (config.option.vectors or config.option.pcaps):
        return None
    if config.inipath or "-c" in call.args or not file.exists():
        return None
    return sys.modules["pytest"].main([*map(str, call.args), "-c", str(file)])
