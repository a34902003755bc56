"""Forms of the console. They turn text into values; whether the values are allowed is the services' say."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django import forms

from tenants import selectors
from tenants.errors import DomainError, Invalid
from tenants.models import LIMIT_FIELDS, CachePolicy, Limited, Project, Tenant, TrustGroup

LIMIT_WORDS = {
    "requests_per_minute": ("Requests per minute", "Empty: no limit here."),
    "tokens_per_minute": ("Tokens per minute", "Prompt and output together."),
    "in_flight": ("Requests in flight", "At the same time."),
    "tokens_per_day": ("Tokens per day", "Resets at midnight in the tenant's time zone."),
    "tokens_per_month": ("Tokens per month", "Resets on the first of the month."),
}
POLICY_WORDS = {
    CachePolicy.ISOLATED: "Each key alone: strictest, lowest hit rate",
    CachePolicy.PROJECT: "Keys of one project share",
    CachePolicy.TENANT: "All keys of the tenant share",
    CachePolicy.SHARED: "Tenants of a trust group share: highest hit rate",
    CachePolicy.OFF: "Nothing is kept, nothing is reused",
}


class ConsoleForm(forms.Form):
    """Marks wrong fields for screen readers, and takes domain errors to the fields they name."""

    def carry_out(self, write: Callable[[dict[str, Any]], object]) -> object | None:
        """What `write` returns for the form's values, or None with the errors in the form."""
        if not self.is_valid():
            return None
        try:
            return write(dict(self.cleaned_data))
        except Invalid as error:
            for field, message in error.errors.items():
                self.add_error(field if field in self.fields else None, _sentence(message))
        except DomainError as error:
            self.add_error(None, str(error))
        return None


def _sentence(message: str) -> str:
    return message[:1].upper() + message[1:] + ("" if message.endswith(".") else ".")


class ModelNames(forms.CharField):
    """Names separated by commas, spaces or lines."""

    def to_python(self, value: object) -> Any:
        return [name for name in re.split(r"[,\s]+", str(value or "")) if name]

    def prepare_value(self, value: object) -> object:
        return ", ".join(value) if isinstance(value, list) else value


class Moment(forms.CharField):
    """A date and time in UTC, as the browser's own field sends it."""

    def to_python(self, value: object) -> Any:
        text = str(value or "").strip()
        if not text:
            return None
        try:
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
        except ValueError as error:
            raise forms.ValidationError("Expected a date and a time.") from error

    def prepare_value(self, value: object) -> object:
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M") if isinstance(value, datetime) else value


class LimitsForm(ConsoleForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, (label, words) in LIMIT_WORDS.items():
            self.fields[name] = forms.IntegerField(required=False, label=label, help_text=words)
        self.fields["allowed_models"] = ModelNames(
            required=False, label="Allowed models", help_text="Names separated by commas. Empty: every model."
        )


def limits_of(scope: Limited) -> dict[str, object]:
    """Initial values for a form with limits."""
    return {name: getattr(scope, name) for name in (*LIMIT_FIELDS, "allowed_models")}


class TenantForm(LimitsForm):
    name = forms.CharField(max_length=100)
    weight = forms.FloatField(initial=1.0, help_text="Share of the engine beside other tenants of the same priority.")
    priority = forms.IntegerField(initial=1, help_text="0 to 9. Lower is served first.")
    time_zone = forms.CharField(initial="UTC", label="Time zone", help_text="Where days and months begin, such as Europe/Berlin.")


class CachePolicyForm(ConsoleForm):
    cache_policy = forms.ChoiceField(
        choices=[(policy.value, words) for policy, words in POLICY_WORDS.items()], initial=CachePolicy.TENANT, label="Who may reuse"
    )
    trust_group = forms.ModelChoiceField(
        TrustGroup.objects.order_by("name"),
        required=False,
        empty_label="none",
        label="Trust group",
        help_text="With sharing in a group only.",
    )


class NewTenantForm(CachePolicyForm, TenantForm):
    field_order = ["name", "weight", "priority", "time_zone", "cache_policy", "trust_group"]


class ProjectForm(LimitsForm):
    name = forms.CharField(max_length=100)


class KeyForm(LimitsForm):
    name = forms.CharField(max_length=100, required=False, help_text="What it is for, such as production.")
    expires_at = Moment(
        required=False, label="Expires (UTC)", help_text="Empty: never.", widget=forms.DateTimeInput(attrs={"type": "datetime-local"})
    )


class ProjectChoice(forms.ModelChoiceField):  # type: ignore[type-arg]  # generic in the stubs only
    def label_from_instance(self, obj: Any) -> str:
        return f"{obj.tenant.name} / {obj.name}"


class NewKeyForm(KeyForm):
    project = ProjectChoice(Project.objects.select_related("tenant").order_by("tenant__name", "name"), empty_label=None)
    field_order = ["project", "name", "expires_at"]


class RotationForm(ConsoleForm):
    grace = forms.TypedChoiceField(
        choices=[(0, "It stops at once"), (3600, "1 hour"), (86400, "1 day"), (604800, "7 days"), (2592000, "30 days")],
        coerce=int,
        initial=86400,
        label="The old key works on for",
    )


class TenantFilter(forms.Form):
    search = forms.CharField(required=False, max_length=100)
    state = forms.ChoiceField(required=False, choices=[("", "every state"), *((state, state) for state in selectors.TENANT_STATES)])


class KeyFilter(forms.Form):
    search = forms.CharField(required=False, max_length=100)
    state = forms.ChoiceField(required=False, choices=[("", "every state"), *((state, state) for state in selectors.KEY_STATES)])
    tenant = forms.ModelChoiceField(Tenant.objects.order_by("name"), required=False, empty_label="every tenant")


class UsageFilter(forms.Form):
    days = forms.TypedChoiceField(
        required=False, coerce=int, initial=30, label="Range", choices=[(7, "7 days"), (30, "30 days"), (90, "90 days")]
    )
    group = forms.ChoiceField(
        required=False,
        initial="tenant",
        label="Group by",
        choices=[("tenant", "tenant"), ("project", "project"), ("key", "key"), ("model", "model")],
    )
    tenant = forms.ModelChoiceField(Tenant.objects.order_by("name"), required=False, empty_label="every tenant")


class AuditFilter(forms.Form):
    actor = forms.CharField(required=False, max_length=150)
    action = forms.ChoiceField(
        required=False,
        choices=[
            ("", "everything"),
            ("tenant", "tenants"),
            ("project", "projects"),
            ("key", "keys"),
            ("trust_group", "trust groups"),
            ("operator", "operators"),
        ],
    )
    tenant = forms.ModelChoiceField(Tenant.objects.order_by("name"), required=False, empty_label="every tenant")
    target = forms.CharField(required=False, max_length=64, label="Target id")
