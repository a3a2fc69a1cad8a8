"""A bar chart of the rounds, drawn as SVG without a plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 56, 56
COLORS = ("#2f6fdb", "#b9c3d3", "#d98a2b", "#6b8f5e")


def bar_chart(
    title: str,
    unit: str,
    rounds: Sequence[Sequence[float]],
    *,
    names: Sequence[str],
    groups: Sequence[str] = (),
) -> str:
    """Return a chart with one group of bars a round, or for each of `groups`.

    A group has a bar for each of `names`.
    """
    top_value = max(value for each in rounds for value in each) * 1.15
    plot_height = HEIGHT - TOP - BOTTOM
    group_width = (WIDTH - LEFT - RIGHT) / len(rounds)
    bar_width = group_width * 0.7 / len(names)
    drawn = [_text(LEFT, 24, title, size=16, anchor="start"), *_axis(top_value, unit)]
    for number, values in enumerate(rounds):
        left = LEFT + number * group_width + group_width * 0.15
        label = groups[number] if groups else f"round {number + 1}"
        drawn.append(_text(left + group_width * 0.35, HEIGHT - BOTTOM + 18, label))
        for index, value in enumerate(values):
            height = plot_height * value / top_value
            x, y = left + index * bar_width, HEIGHT - BOTTOM - height
            drawn.append(_bar(x, y, bar_width - 3, height, COLORS[index]))
            drawn.append(_text(x + bar_width / 2, y - 5, f"{value:.1f}"))
    for index, name in enumerate(names):
        x = LEFT + index * 200
        drawn.append(_bar(x, HEIGHT - 24, 12, 12, COLORS[index]))
        drawn.append(_text(x + 18, HEIGHT - 14, name, anchor="start"))
    body = "\n".join(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif">\n<rect width="100%" height="100%" fill="white"/>\n'
        f"{body}\n</svg>\n"
    )


def _axis(top_value: float, unit: str) -> list[str]:
    lines = [_text(LEFT, 44, unit, anchor="start")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
        lines.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e6eb"/>'
        )
        lines.append(_text(LEFT - 8, y + 4, f"{share * top_value:.1f}", anchor="end"))
    return lines


def _bar(x: float, y: float, width: float, height: float, color: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}"/>'
    )


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "middle") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="#1d2430">'
        f"{escape(text)}</text>"
    )
