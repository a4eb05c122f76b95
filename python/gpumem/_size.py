"""Bytes and names as people read them."""

from __future__ import annotations


def size(n: int) -> str:
    """Returns n bytes in the largest unit that leaves 1 or more: 1536 is 1.50 KiB."""
    value, unit = float(n), 0
    while value >= 1024 and unit < 5:
        value, unit = value / 1024, unit + 1
    number = f"{value:.2f}"
    return (number[:-3] if number.endswith(".00") else number) + " " + ("B", "KiB", "MiB", "GiB", "TiB", "PiB")[unit]


def plain(text: str) -> str:
    """Returns text in one line: what a terminal would obey, or what breaks lines, is shown as Python writes it."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
