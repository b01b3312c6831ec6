"""Where everything lies: slots of messages, the regions that hold them."""

from typing import TYPE_CHECKING

from hw.config import ConfigError

from .schema import show
from .work import DATA_BYTES, HOST_SUFFIX, Operation, Region

if TYPE_CHECKING:
    from .scenario import Scenario

__all__ = ["LINE", "Slots", "regions_of"]

#: Slots are a whole number of these, and at least one lies free between two.
LINE = 64
_PAGE = 4096


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


class Slots:
    """Hands out slots of regions: behind explicit operations, one behind the other."""

    def __init__(self, operations: tuple[Operation, ...]) -> None:
        self.ends: dict[tuple[int, str], int] = {}
        for op in operations:
            self._extend(op.node, op.region, op.offset + op.size)
            self._extend(op.peer, op.remote_region, op.remote_offset + op.size)

    def _extend(self, node: int, region: str, end: int) -> None:
        key = node, region
        self.ends[key] = max(self.ends.get(key, 0), _up(end, LINE) + LINE)

    def take(self, node: int, region: str, offset: int, size: int, count: int) -> tuple[int, int]:
        """(first byte, stride) of `count` slots that start `offset` behind what is taken."""
        first = self.ends.get((node, region), 0) + offset
        stride = _up(first % LINE + size, LINE) + LINE
        self._extend(node, region, first + (count - 1) * stride + size)
        return first, stride


def regions_of(scenario: "Scenario", ends: dict[tuple[int, str], int]) -> tuple[Region, ...]:
    """The given regions; or `send` and `recv` of each node, and the same in host memory where they
    are used.
    """
    return _given(scenario) if scenario.regions else _made(scenario, ends)


def _given(scenario: "Scenario") -> tuple[Region, ...]:
    for index, work in enumerate(scenario.workloads):
        for key in ("memory", "remote_memory"):
            if memory := getattr(work, key):
                raise ConfigError(
                    f"workload.{index}.{key}",
                    memory,
                    "allowed where there is no [[region]]; a region says its own memory",
                )
    for index, region in enumerate(scenario.regions):
        for other in scenario.regions[:index]:
            _apart(index, region, other)
    return scenario.regions


def _apart(index: int, region: Region, other: Region) -> None:
    """Raises where a region has the name or some bytes of an earlier one."""
    if region.node == other.node and region.name == other.name:
        raise ConfigError(
            f"region.{index}.name", region.name, "allowed names that the node does not have yet"
        )
    same_memory = (region.node, region.memory) == (other.node, other.memory)
    if same_memory and region.offset < other.end and other.offset < region.end:
        raise ConfigError(
            f"region.{index}.offset",
            region.offset,
            f"allowed outside of {show(other.name)}: {other.offset} to {other.end - 1}",
        )


def _made(scenario: "Scenario", ends: dict[tuple[int, str], int]) -> tuple[Region, ...]:
    need = _up(max(ends.values()), _PAGE)
    size = scenario.sizes.buffer_bytes or need
    if need > size:
        raise ConfigError(
            "memory.buffer_bytes", size, f"allowed at least {need}, or 0, for this work"
        )
    recv = _up(size, _PAGE) + _PAGE
    if recv + size > DATA_BYTES:
        raise ConfigError(
            "workload.0.count",
            scenario.workloads[0].count if scenario.workloads else 0,
            f"allowed what fits in {DATA_BYTES // 2} bytes of a region; this needs {size}",
        )
    used = {name for _, name in ends}
    return tuple(
        Region(name=name + suffix, node=node, memory=memory, offset=offset, size=size)
        for node in range(scenario.nodes.count)
        for memory, suffix in (("gpu", ""), ("host", HOST_SUFFIX))
        for name, offset in (("send", 0), ("recv", recv))
        if memory == "gpu" or name + suffix in used
    )
