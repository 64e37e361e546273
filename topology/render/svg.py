"""A picture as SVG, written as text."""

from __future__ import annotations

import re
from html import escape

from topoccl.topology.graph import Topology
from topoccl.topology.render.drawing import Dot, Line, Path, Rect, Shape, Words, draw

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STYLE = (
    "text{font-family:Helvetica,Arial,sans-serif;font-size:12px;fill:#222}"
    ".title{font-size:17px;font-weight:bold}.note{fill:#666}.small{font-size:10px}.mid{text-anchor:middle}"
    ".host{fill:#f6f7f9;stroke:#8c929c}.slot{fill:#dbe8fa;stroke:#3b6ea8}.free{fill:#fff;stroke:#9aa;stroke-dasharray:3 2}"
    ".rank{font-weight:bold;font-size:13px}.nic{fill:#e4f1dd;stroke:#5f8f4e}.part{fill:#f3ead3;stroke:#9a8457}"
    ".numa{fill:#f0e8f6;stroke:#8d63a8}.switch{fill:#fdf3d8;stroke:#b08a2e}.line,.cut{fill:none;stroke-linecap:round}"
    ".faint{opacity:.4}.cut{opacity:.65}.name{paint-order:stroke;stroke:#f6f7f9;stroke-width:4px}"
)


def to_svg(topology: Topology) -> str:
    """``topology`` as a stand-alone SVG document."""
    sheet = draw(topology)
    wide, high = f"{sheet.width:.0f}", f"{sheet.height:.0f}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}">',
        f"<title>{_safe(sheet.title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{wide}" height="{high}" fill="#fff"/>',
        *map(_element, sheet.shapes),
        "</svg>",
    ]
    return "".join(f"{part}\n" for part in parts if part)


def _element(shape: Shape) -> str:
    match shape:
        case Rect(box, style, radius, note):
            size = f'x="{box.left:.1f}" y="{box.top:.1f}" width="{box.w:.1f}" height="{box.h:.1f}" rx="{radius:g}"'
            return f'<rect class="{style}" {size}><title>{_safe(note)}</title></rect>'
        case Dot(x, y, style, note, radius):
            return f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"><title>{_safe(note)}</title></circle>'
        case Words(x, y, text, style):
            return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{_safe(text)}</text>' if text else ""
        case Line(path, color, width, style, note):
            stroke = f'stroke="{color}" stroke-width="{width:g}"'
            return f'<path class="{style}" d="{_path(path)}" {stroke}><title>{_safe(note)}</title></path>'


def _path(path: Path) -> str:
    return "".join(command + " ".join(f"{number:.1f}" for number in numbers) for command, numbers in path)


def _safe(text: str) -> str:
    return escape(_ILLEGAL.sub("\ufffd", text), quote=False)
