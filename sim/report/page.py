"""A page whose sections are written by commands, each between two marks of its own."""

from pathlib import Path

from ..schema import BadInput

__all__ = ["check_section", "replace_section", "write_section"]


def replace_section(text: str, name: str, content: str) -> str:
    """`text` with `content` as its section `name`; raises `ValueError` if it has none."""
    first, last = f"<!-- section {name}: written by a command -->", f"<!-- end of {name} -->"
    before, found, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not found or not end:
        raise ValueError(f"{first} ... {last}")
    return f"{before}{first}\n{content.strip()}\n{last}{after}"


def _replaced(path: Path, name: str, content: str) -> str:
    try:
        return replace_section(path.read_text(encoding="utf-8"), name, content)
    except OSError as error:
        allowed = f"allowed a page that can be read ({error.strerror})"
    except ValueError as error:
        allowed = f"allowed a page with {error}"
    raise BadInput("--write", "page", str(path), allowed)


def check_section(path: Path, name: str) -> None:
    """Raises `BadInput` unless the page has the section."""
    _replaced(path, name, "")


def write_section(path: Path, name: str, content: str) -> None:
    """Write a section of a page; raises `BadInput` unless the page has it."""
    path.write_text(_replaced(path, name, content), encoding="utf-8")
