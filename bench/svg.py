"""Boxes, arrows and text of an SVG picture that is readable on light and on dark pages.

A picture has its own background, so it does not depend on the colour of the page around it. Colours
are classes: `Picture.box(…, kind="live")`.
"""

from __future__ import annotations

from html import escape

__all__ = ["Picture"]

STYLE = """<style>
.page { fill: #ffffff } .ink { fill: #24292f } .soft { fill: #57606a }
.box { fill: #f6f8fa; stroke: #8c959f } .part { fill: #ffffff; stroke: #afb8c1 }
.live, .dead { shape-rendering: crispEdges }
.live { fill: #2f7d5b } .dead { fill: #d0d7de } .jvm { fill: #fff1e0; stroke: #c98a3c }
.disk { fill: #e8f1ec; stroke: #2f7d5b } .frame { fill: none; stroke: #57606a }
.arrow { stroke: #57606a; fill: none; stroke-width: 1.4 } .head { fill: #57606a }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 } .ink { fill: #e6edf3 } .soft { fill: #9aa4af }
.box { fill: #161b22; stroke: #6e7681 } .part { fill: #21262d; stroke: #484f58 }
.live { fill: #3fa37a } .dead { fill: #3d444d } .jvm { fill: #3a2a14; stroke: #c98a3c }
.disk { fill: #12261c; stroke: #3fa37a } .frame { fill: none; stroke: #9aa4af }
.arrow { stroke: #9aa4af } .head { fill: #9aa4af }
}
</style>"""


class Picture:
    """Collects shapes; `render` is the file."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._width, self._height = width, height
        self._parts = [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                f'viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif" '
                f'font-size="13" role="img"><title>{escape(title)}</title>'
            ),
            STYLE,
            (
                '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
                'markerHeight="8" orient="auto-start-reverse">'
                '<path d="M0,0 L8,4 L0,8 z" class="head"/></marker></defs>'
            ),
        ]
        self.box(0, 0, width, height, "page", radius=8)

    def box(
        self, x: float, y: float, width: float, height: float, kind: str, radius: int = 0
    ) -> None:
        """A rectangle."""
        rounded = f' rx="{radius}"' if radius else ""
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
            f'{rounded} class="{kind}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        kind: str = "ink",
        *,
        anchor: str = "start",
        size: int = 13,
        bold: bool = False,
    ) -> None:
        """One line of text."""
        weight = ' font-weight="bold"' if bold else ""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}" '
            f'font-size="{size}"{weight}>{escape(text)}</text>'
        )

    def lines(self, x: float, y: float, text: str, kind: str = "soft", size: int = 12) -> None:
        """Several lines of text, 16 pixels each."""
        for number, line in enumerate(text.splitlines()):
            self.text(x, y + 16 * number, line, kind, size=size)

    def named(
        self,
        place: tuple[float, float, float, float],
        name: str,
        text: str = "",
        kind: str = "box",
    ) -> None:
        """A box with a name in its first line and text below it."""
        x, y, width, height = place
        self.box(x, y, width, height, kind, radius=6)
        self.text(x + 10, y + 20, name, bold=True)
        self.lines(x + 10, y + 38, text)

    def arrow(self, *points: tuple[float, float], both: bool = False) -> None:
        """A line through the points with a head at its end, or at both."""
        path = " ".join(f"{'L' if n else 'M'}{x:.1f},{y:.1f}" for n, (x, y) in enumerate(points))
        start = ' marker-start="url(#head)"' if both else ""
        self._parts.append(f'<path d="{path}" class="arrow" marker-end="url(#head)"{start}/>')

    def render(self) -> str:
        """The whole file."""
        return "\n".join([*self._parts, "</svg>", ""])
