"""A picture as PNG, through matplotlib (the extra ``plot``)."""

from __future__ import annotations

import io
import warnings
from typing import Any

from topoccl.topology.graph import Topology
from topoccl.topology.render.drawing import Dot, Line, Path, Rect, Sheet, Words, draw

_SCALE = 2.0  # pixels per unit, less for pictures that would be larger than this:
_MOST_PIXELS = 8000.0
_POINTS = 72 / 100  # of a unit
_FILLS = {
    "host": ("#f6f7f9", "#8c929c"),
    "slot": ("#dbe8fa", "#3b6ea8"),
    "free": ("#ffffff", "#99aaaa"),
    "nic": ("#e4f1dd", "#5f8f4e"),
    "part": ("#f3ead3", "#9a8457"),
    "numa": ("#f0e8f6", "#8d63a8"),
    "switch": ("#fdf3d8", "#b08a2e"),
}
_SIZES = {"title": 17.0, "rank": 13.0, "small": 10.0}
_OPACITY = {"faint": 0.4, "cut": 0.65}


def to_png(topology: Topology) -> bytes:
    """``topology`` as a PNG file, the same picture as the SVG one.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(f"pictures in PNG need matplotlib ({error}): pip install 'topoccl[plot]', or draw an SVG") from None
    sheet = draw(topology)
    scale = min(_SCALE, _MOST_PIXELS / max(sheet.width, sheet.height))
    figure = Figure(figsize=(sheet.width / 100, sheet.height / 100), dpi=100 * scale)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, sheet.width)
    axes.set_ylim(sheet.height, 0)
    _paint(axes, sheet)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # characters that no font has become boxes
        FigureCanvasAgg(figure).print_png(file)
    return file.getvalue()


def _paint(axes: Any, sheet: Sheet) -> None:
    from matplotlib.patches import Circle, FancyBboxPatch, PathPatch
    from matplotlib.patheffects import withStroke

    for order, shape in enumerate(sheet.shapes):
        match shape:
            case Rect(box, style, radius, _):
                fill, edge = _FILLS[style]
                rounded = f"round,pad=0,rounding_size={min(radius, box.w / 2, box.h / 2)}"
                look: dict[str, Any] = {"fc": fill, "ec": edge, "lw": _POINTS, "zorder": order}
                look["ls"] = (0, (3, 2)) if style == "free" else "solid"
                axes.add_patch(FancyBboxPatch((box.left, box.top), box.w, box.h, boxstyle=rounded, mutation_aspect=1, **look))
            case Dot(x, y, style, _, radius):
                fill, edge = _FILLS[style]
                axes.add_patch(Circle((x, y), radius, fc=fill, ec=edge, lw=_POINTS, zorder=order))
            case Line(path, color, width, style, _):
                alpha = min((_OPACITY.get(word, 1.0) for word in style.split()), default=1.0)
                axes.add_patch(PathPatch(_path(path), fc="none", ec=color, lw=width * _POINTS, alpha=alpha, capstyle="round", zorder=order))
            case Words(x, y, text, style):
                words = style.split()
                size = next((_SIZES[word] for word in words if word in _SIZES), 12.0)
                bold = "bold" if {"title", "rank"} & set(words) else "normal"
                effects = [withStroke(linewidth=4 * _POINTS, foreground="#f6f7f9")] if "name" in words else []
                axes.text(
                    x, y, text, size=size * _POINTS, weight=bold, color="#666666" if "note" in words else "#222222", zorder=order,
                    ha="center" if "mid" in words else "left", va="baseline", parse_math=False, path_effects=effects,
                )  # fmt: skip


def _path(path: Path) -> Any:
    from matplotlib.path import Path as Curve

    codes = {"M": [Curve.MOVETO], "L": [Curve.LINETO], "Q": [Curve.CURVE3] * 2, "C": [Curve.CURVE4] * 3}
    points = [(numbers[i], numbers[i + 1]) for _, numbers in path for i in range(0, len(numbers), 2)]
    return Curve(points, [code for command, _ in path for code in codes[command]])
