"""Numbers and times as the console writes them: three significant digits, no exponents, "—" for what is absent."""

from datetime import datetime, timedelta

ABSENT = "—"
_STEPS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def significant(value: float) -> str:
    """Three significant digits, whole from 100 on."""
    if value == 0:
        return "0"
    size = abs(value)
    for bound, digits in ((99.95, 0), (9.995, 1), (0.9995, 2), (0.09995, 3)):
        if size >= bound:
            return f"{value:.{digits}f}"
    return f"{value:.4f}".rstrip("0").rstrip(".") or "0"


def grouped(value: int) -> str:
    """1204 → "1 204", with a space that doesn't break."""
    return f"{value:,}".replace(",", "\N{NO-BREAK SPACE}")


def compact(value: float | None) -> str:
    """12400 → "12.4k"; whole numbers under ten thousand in full, 1204 → "1 204"."""
    if value is None:
        return ABSENT
    if abs(value) < 10_000 and float(value).is_integer():
        return grouped(int(value))
    for bound, letter in _STEPS:
        if abs(value) >= bound * 0.9995:
            return significant(value / bound) + letter
    return significant(value)


def seconds(value: float | None) -> str:
    """ "231 ms" under a second, "1.23 s" from there, "2 min 5 s" from a minute."""
    if value is None:
        return ABSENT
    value = float(value)
    if value < 0.9995:
        return f"{significant(value * 1000)} ms"
    if value < 60:
        return f"{int(value)} s" if value.is_integer() else f"{significant(value)} s"
    minutes, rest = divmod(int(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d"


def percent(share: float | None) -> str:
    """0.982 → "98.2 %"."""
    return ABSENT if share is None else f"{significant(share * 100)} %"


def moment(at: datetime, now: datetime) -> str:
    """Relative within a day, absolute beyond."""
    distance = now - at
    if abs(distance) >= timedelta(hours=24):
        return f"{at:%Y-%m-%d %H:%M} UTC"
    size = abs(distance)
    if size < timedelta(seconds=60):
        return "just now" if distance >= timedelta(0) else "in under a minute"
    minutes = int(size.total_seconds()) // 60
    words = f"{minutes} min" if minutes < 60 else f"{minutes // 60} h"
    return f"{words} ago" if distance > timedelta(0) else f"in {words}"
