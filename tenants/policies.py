"""Which values a tenant, project or key may have. Every writer cleans through here, so that no field is dropped or misread."""

import math
import re
import zoneinfo
from collections.abc import Callable, Mapping
from datetime import datetime

from django.utils import timezone

from tenants.errors import Invalid
from tenants.models import CachePolicy

LARGEST_LIMIT = 2_000_000_000
LARGEST_BUDGET = 10**15  # exact in the doubles that Lua counts in
LARGEST_WEIGHT = 1000.0
LOWEST_PRIORITY = 9
LONGEST_NAME = 100
MOST_MODELS = 100

Cleaner = Callable[[object], object]
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]")


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("expected text")
    name = value.strip()
    if not name:
        raise ValueError("must not be empty")
    return _checked_text(name)


def _label(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("expected text")
    return _checked_text(value.strip())


def _checked_text(text: str) -> str:
    if len(text) > LONGEST_NAME:
        raise ValueError(f"at most {LONGEST_NAME} characters, got {len(text)}")
    if _CONTROL.search(text):
        raise ValueError("must not hold control characters")
    return text


def _whole_number(low: int, high: int, *, hint: str = "") -> Cleaner:
    def clean(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("expected a whole number")
        if not low <= value <= high:
            raise ValueError(f"expected {low} to {high}, got {value}{hint}")
        return value

    return clean


def _limit(high: int) -> Cleaner:
    number = _whole_number(1, high, hint="; to stop all calls, suspend instead")

    def clean(value: object) -> object:
        return None if value is None else number(value)

    return clean


def _models(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("expected a list of model names")
    if len(value) > MOST_MODELS:
        raise ValueError(f"at most {MOST_MODELS} models, got {len(value)}")
    return list(dict.fromkeys(_name(item) for item in value))


def _weight(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("expected a number")
    if not (math.isfinite(value) and 0.001 <= value <= LARGEST_WEIGHT):
        raise ValueError(f"expected 0.001 to {LARGEST_WEIGHT:g}, got {value}")
    return float(value)


def _time_zone(value: object) -> str:
    if not isinstance(value, str) or value not in zoneinfo.available_timezones():
        raise ValueError("expected a time zone such as UTC or Europe/Berlin")
    return value


def _expiry(value: object) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or timezone.is_naive(value):
        raise ValueError("expected a date and time with a zone")
    if value <= timezone.now():
        raise ValueError("must be in the future")
    return value


LIMITS: Mapping[str, Cleaner] = {
    "requests_per_minute": _limit(LARGEST_LIMIT),
    "tokens_per_minute": _limit(LARGEST_BUDGET),
    "in_flight": _limit(LARGEST_LIMIT),
    "tokens_per_day": _limit(LARGEST_BUDGET),
    "tokens_per_month": _limit(LARGEST_BUDGET),
    "allowed_models": _models,
}
TENANT: Mapping[str, Cleaner] = {
    "name": _name,
    "weight": _weight,
    "priority": _whole_number(0, LOWEST_PRIORITY),
    "time_zone": _time_zone,
    **LIMITS,
}
PROJECT: Mapping[str, Cleaner] = {"name": _name, **LIMITS}
KEY: Mapping[str, Cleaner] = {"name": _label, "expires_at": _expiry, **LIMITS}
TRUST_GROUP: Mapping[str, Cleaner] = {"name": _name}


def clean(rules: Mapping[str, Cleaner], values: Mapping[str, object]) -> dict[str, object]:
    """The values as they will be stored. Raises Invalid naming every wrong or unknown field."""
    cleaned: dict[str, object] = {}
    errors: dict[str, str] = {}
    for field, value in values.items():
        if field not in rules:
            errors[field] = f"unknown field; known are {', '.join(sorted(rules))}"
            continue
        try:
            cleaned[field] = rules[field](value)
        except ValueError as error:
            errors[field] = str(error)
    if errors:
        raise Invalid(errors)
    return cleaned


def clean_cache_policy(value: object) -> CachePolicy:
    """The cache policy of that name. Raises Invalid naming the field."""
    if value not in CachePolicy.values:
        raise Invalid({"cache_policy": f"expected one of {', '.join(CachePolicy.values)}"})
    return CachePolicy(value)
