"""The clock, and how nanoseconds, Gb/s and rates become cycles: here and nowhere else."""

__all__ = [
    "BYTE_FRACTION",
    "CLOCK_MHZ",
    "ITEM_FRACTION",
    "TIMER_FRACTION",
    "byte_interval",
    "cycles",
    "item_interval",
    "timer_unit",
]

#: One clock for everything; 1 GHz, so that a cycle reads as a nanosecond.
CLOCK_MHZ = 1000
#: Fraction bits of a cost in cycles per byte.
BYTE_FRACTION = 24
#: Fraction bits of a cost in cycles per item (260 M/s is 3.846 cycles).
ITEM_FRACTION = 8
#: Fraction bits of the units of the timers.
TIMER_FRACTION = 8


def cycles(ns):
    """Nanoseconds to whole cycles, rounded to the nearest."""
    return round(ns * CLOCK_MHZ / 1000)


def byte_interval(gbps):
    """Gb/s to cycles per byte, fixed point with `BYTE_FRACTION` bits, rounded to nearest."""
    return round((8 * CLOCK_MHZ / (gbps * 1000)) * (1 << BYTE_FRACTION))


def item_interval(millions_per_s):
    """Items per second (in millions) to cycles per item, fixed point; 0 means no limit."""
    return round(CLOCK_MHZ / millions_per_s * (1 << ITEM_FRACTION)) if millions_per_s else 0


def timer_unit(ns):
    """A unit of time in cycles, fixed point with `TIMER_FRACTION` bits."""
    return round(ns * CLOCK_MHZ / 1000 * (1 << TIMER_FRACTION))
