"""A rectangle by its centre; sizes are in units of a picture, y grows downwards."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Box:
    """A rectangle by its centre."""

    x: float
    y: float
    w: float
    h: float

    @property
    def left(self) -> float:
        return self.x - self.w / 2

    @property
    def top(self) -> float:
        return self.y - self.h / 2

    @property
    def bottom(self) -> float:
        return self.y + self.h / 2

    def border(self, x: float, y: float) -> tuple[float, float]:
        """Where the line from the centre to a point leaves the rectangle."""
        dx, dy = x - self.x, y - self.y
        if dx == 0 and dy == 0:
            return self.x, self.top
        scale = min(self.w / 2 / abs(dx) if dx else math.inf, self.h / 2 / abs(dy) if dy else math.inf)
        return self.x + dx * min(1.0, scale), self.y + dy * min(1.0, scale)
