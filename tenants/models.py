"""Tenant → project → API key, each with limits of its own; cache policies; what admission must be told; the audit trail."""

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q

from tenants.ledger.models import BudgetUse, LedgerEvent, UsageDay, UsageHour

__all__ = [
    "LIMIT_FIELDS",
    "AccessChange",
    "ApiKey",
    "AuditEntry",
    "BudgetUse",
    "CachePolicy",
    "LedgerEvent",
    "Limited",
    "Project",
    "Tenant",
    "TrustGroup",
    "UsageDay",
    "UsageHour",
]


class CachePolicy(models.TextChoices):
    """Who may reuse the prefixes that a tenant's requests leave in the KV cache."""

    ISOLATED = "isolated", "each key alone"
    PROJECT = "project", "keys of one project"
    TENANT = "tenant", "all keys of the tenant"
    SHARED = "shared", "all tenants of a trust group"
    OFF = "off", "nobody, nothing is kept"


class Limited(models.Model):
    """The limits of one scope. Empty means that this scope sets no limit; a request has to pass every scope."""

    requests_per_minute = models.PositiveIntegerField(null=True, blank=True)
    tokens_per_minute = models.PositiveBigIntegerField(null=True, blank=True)
    in_flight = models.PositiveIntegerField(null=True, blank=True)
    tokens_per_day = models.PositiveBigIntegerField(null=True, blank=True)
    tokens_per_month = models.PositiveBigIntegerField(null=True, blank=True)
    allowed_models = models.JSONField(default=list, blank=True, help_text="Model names; an empty list allows every model.")

    class Meta:
        abstract = True


LIMIT_FIELDS = ("requests_per_minute", "tokens_per_minute", "in_flight", "tokens_per_day", "tokens_per_month")


class TrustGroup(models.Model):
    """Tenants that agreed to share one cache domain."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=100, unique=True)
    cache_epoch = models.PositiveIntegerField(default=0, help_text="What its members' epoch is at least, former members' included.")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class Tenant(Limited):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=100, unique=True)
    cache_policy = models.CharField(max_length=10, choices=CachePolicy, default=CachePolicy.TENANT)
    trust_group = models.ForeignKey(TrustGroup, null=True, blank=True, on_delete=models.PROTECT, related_name="tenants")
    cache_epoch = models.PositiveIntegerField(default=0, help_text="Part of every cache key: raising it forgets all that was cached.")
    weight = models.FloatField(default=1.0, help_text="Share of the engine beside other tenants of the same priority.")
    priority = models.PositiveSmallIntegerField(default=1, help_text="Lower is served first.")
    time_zone = models.CharField(max_length=64, default="UTC", help_text="Where the tenant's days and months begin.")
    suspended_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=Q(weight__gt=0), name="tenant_weight_positive"),
            models.CheckConstraint(
                condition=~Q(cache_policy="shared") | Q(trust_group__isnull=False), name="tenant_shared_needs_trust_group"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Project(Limited):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="projects")
    name = models.CharField(max_length=100)
    suspended_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="project_name_unique_in_tenant")]

    def __str__(self) -> str:
        return self.name


class ApiKey(Limited):
    """A key is shown once, at creation; here is only its SHA-256 (the key has 256 bits of entropy, so no slow hash is needed)."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="keys")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="keys")
    name = models.CharField(max_length=100, blank=True)
    prefix = models.CharField(max_length=16, help_text="The key's first characters, to tell keys apart.")
    digest = models.CharField(max_length=64, unique=True, help_text="SHA-256 of the whole key, in hex.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.prefix}…"


class AccessChange(models.Model):
    """Outbox: something admission must be told. Written in the transaction of the change, deleted once Redis holds it."""

    kind = models.CharField(max_length=10, choices=[("tenant", "tenant"), ("project", "project"), ("key", "key")])
    target = models.UUIDField()
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"


class AuditEntry(models.Model):
    """Who changed what, when and from where."""

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    actor = models.CharField(max_length=150)
    action = models.CharField(max_length=50)
    target_kind = models.CharField(max_length=20)
    target_id = models.CharField(max_length=64)
    tenant = models.ForeignKey(Tenant, null=True, blank=True, on_delete=models.SET_NULL, related_name="audit_entries")
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)
    address = models.GenericIPAddressField(null=True, blank=True)

    class Meta:
        ordering = ["-at", "-id"]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.target_kind} {self.target_id}"
