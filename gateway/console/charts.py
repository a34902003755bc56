"""Lines as SVG paths, drawn by the server: straight, with a gap where a value is missing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

Points = Sequence[tuple[float, float | None]]
WIDTH, HEIGHT = 600, 160
INSET = 4


@dataclass(frozen=True, kw_only=True)
class Line:
    name: str
    colour: int
    """1 to 8, the same for the same thing everywhere."""
    path: str
    latest: float | None


@dataclass(frozen=True, kw_only=True)
class Chart:
    title: str
    unit: str
    lines: tuple[Line, ...]
    top: float
    """The value at the upper edge; the lower is 0."""
    begin: str
    end: str
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]
    """The same as a table, thinned: (time, value of each line)."""

    @property
    def middle(self) -> float:
        return self.top / 2

    @property
    def empty(self) -> bool:
        return not any(line.path for line in self.lines)


@dataclass(frozen=True, kw_only=True)
class Bar:
    x: str
    y: str
    width: str
    height: str
    colour: int


@dataclass(frozen=True, kw_only=True)
class Columns:
    title: str
    legend: tuple[tuple[str, int], ...]
    bars: tuple[Bar, ...]
    top: float
    begin: str
    end: str


def columns(title: str, legend: Sequence[tuple[str, int]], stacks: Sequence[tuple[str, Sequence[int]]]) -> Columns:
    """One stack for each label, its parts in the legend's order from the bottom up."""
    top = _round_up(float(max((sum(parts) for _, parts in stacks), default=0)))
    step = WIDTH / max(1, len(stacks))
    bars: list[Bar] = []
    for index, (_, parts) in enumerate(stacks):
        y = float(HEIGHT)
        for (_, colour), part in zip(legend, parts, strict=True):
            height = HEIGHT * part / top
            y -= height
            if part:
                bars.append(
                    Bar(
                        x=f"{index * step + step * 0.1:.2f}", y=f"{y:.2f}", width=f"{step * 0.8:.2f}", height=f"{height:.2f}", colour=colour
                    )
                )
    begin, end = (stacks[0][0], stacks[-1][0]) if stacks else ("", "")
    return Columns(title=title, legend=tuple(legend), bars=tuple(bars), top=top, begin=begin, end=end)


def chart(title: str, unit: str, series: Sequence[tuple[str, int, Points]], *, span_s: float) -> Chart:
    """The series (name, colour, points by time) over the `span_s` before the latest point."""
    times = [at for _, _, points in series for at, _ in points]
    end = max(times, default=0.0)
    begin = end - span_s
    top = _round_up(max((value for _, _, points in series for at, value in points if value is not None and at >= begin), default=0.0))
    lines = tuple(
        Line(name=name, colour=colour, path=_path(points, begin=begin, end=end, top=top), latest=points[-1][1] if points else None)
        for name, colour, points in series
    )
    return Chart(title=title, unit=unit, lines=lines, top=top, begin=_clock(begin), end=_clock(end), rows=_rows(series, begin))


def _path(points: Points, *, begin: float, end: float, top: float) -> str:
    parts: list[str] = []
    pen_down = False
    for at, value in points:
        if value is None or at < begin:
            pen_down = False
            continue
        x = WIDTH * (at - begin) / (end - begin)
        y = HEIGHT - INSET - (HEIGHT - 2 * INSET) * value / top
        parts.append(f"{'L' if pen_down else 'M'}{x:.1f} {y:.1f}")
        pen_down = True
    return "".join(parts) if len(parts) > 1 else ""


def _round_up(value: float) -> float:
    """The next of 1, 2, 5 × 10ⁿ, so that the scale doesn't jump with every sample; at least 1."""
    if value <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def _rows(series: Sequence[tuple[str, int, Points]], begin: float) -> tuple[tuple[str, tuple[float | None, ...]], ...]:
    times = [at for at, value in series[0][2] if value is not None and at >= begin][-1::-10][:12] if series else []
    by_time = [dict(points) for _, _, points in series]
    return tuple((_clock(at), tuple(values.get(at) for values in by_time)) for at in times)


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"
