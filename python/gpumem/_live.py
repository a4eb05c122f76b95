"""What lives on the GPU, as a table."""

from __future__ import annotations

import os
import sys
from typing import Any

from ._answer import Answer
from ._size import plain, size


class Live(Answer):
    """What live() returns; print shows its largest lines as a table."""

    def __str__(self) -> str:
        rows = self["live"]
        if not rows:
            return f"no live {self.get('of', 'arrays')}"
        blocks = sum(row["blocks"] for row in rows)
        head = f"{size(sum(row['bytes'] for row in rows))} in {blocks:,} block{'s' * (blocks != 1)}"
        return "\n".join([head, *table(rows)])


def name_cells(rows: list[dict[str, Any]]) -> None:
    """Names lines of a notebook as it does: In[3]:2."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    for file, number in getattr(getattr(shell, "compile", None), "_filename_map", {}).items():
        for row in rows:
            for key in ("site", "stack"):
                row[key] = row[key].replace(os.path.basename(file) + ":", f"In[{number}]:")


def table(rows: list[dict[str, Any]], most: int = 20) -> list[str]:
    """Returns the first rows as lines, under a head."""
    pools = {row["pool"] for row in rows}
    pool = (lambda name: name) if len(pools) > 1 else (lambda name: "")
    cells = [("bytes", "blocks", pool("pool"), "where")]
    cells += [(size(row["bytes"]), f"{row['blocks']:,}", pool(row["pool"]), plain(row["site"]) or "unknown") for row in rows[:most]]
    widths = [max(len(line[column]) for line in cells) for column in range(3)]
    lines = ["  ".join(part for part in (a.rjust(widths[0]), b.rjust(widths[1]), c.ljust(widths[2]), d) if part) for a, b, c, d in cells]
    left = len(rows) - most
    return lines + ([f"and {left} more line{'s' * (left != 1)}"] if left > 0 else [])
