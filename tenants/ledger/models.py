"""The ledger's tables. Rows are written by `settlement` alone, and never changed."""

from django.db import models

QUANTITIES = (
    "prompt_tokens",
    "computed_tokens",
    "cached_tokens",
    "recomputed_tokens",
    "generated_tokens",
    "billed_tokens",
    "wasted_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "queue_us",
    "prefill_us",
    "decode_us",
    "kv_block_ms",
    "preemptions",
)
"""What events count and rollups sum. Whole numbers: tokens, microseconds, blocks × milliseconds."""


class Quantities(models.Model):
    prompt_tokens = models.BigIntegerField(default=0)
    computed_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(default=0)
    recomputed_tokens = models.BigIntegerField(default=0)
    generated_tokens = models.BigIntegerField(default=0)
    billed_tokens = models.BigIntegerField(default=0)
    wasted_tokens = models.BigIntegerField(default=0)
    drafted_tokens = models.BigIntegerField(default=0)
    accepted_tokens = models.BigIntegerField(default=0)
    queue_us = models.BigIntegerField(default=0)
    prefill_us = models.BigIntegerField(default=0)
    decode_us = models.BigIntegerField(default=0)
    kv_block_ms = models.BigIntegerField(default=0)
    preemptions = models.BigIntegerField(default=0)

    class Meta:
        abstract = True


class LedgerEvent(Quantities):
    """One settled request. Partitioned by month of `occurred_at`, which the worker stamped once; unique by (worker, epoch, sequence)."""

    occurred_at = models.DateTimeField()
    worker = models.CharField(max_length=64)
    epoch = models.CharField(max_length=64)
    sequence = models.BigIntegerField()
    request_id = models.CharField(max_length=128)
    tenant_id = models.UUIDField()
    project_id = models.UUIDField()
    key_id = models.UUIDField()
    model = models.CharField(max_length=200)
    endpoint = models.CharField(max_length=100)
    reason = models.CharField(max_length=20)
    price_version = models.IntegerField(default=0)
    budget_day = models.BigIntegerField(help_text="Unix seconds at which the tenant's day began that this was charged to.")
    budget_month = models.BigIntegerField(help_text="The same for its month.")
    source = models.CharField(max_length=64, default="", help_text="The stream entry that brought it.")

    class Meta:
        managed = False  # partitioned: the migration's SQL makes it
        db_table = "tenants_ledgerevent"

    def __str__(self) -> str:
        return f"{self.request_id} {self.reason}"


class Rollup(Quantities):
    """Sums of events by bucket, tenant, project, key and model."""

    tenant_id = models.UUIDField()
    project_id = models.UUIDField()
    key_id = models.UUIDField()
    model = models.CharField(max_length=200)
    requests = models.BigIntegerField(default=0)

    class Meta:
        abstract = True


class UsageHour(Rollup):
    bucket = models.DateTimeField(help_text="Where the hour begins, UTC.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["bucket", "tenant_id", "project_id", "key_id", "model"], name="usage_hour_unique")]
        indexes = [models.Index(fields=["tenant_id", "bucket"], name="usage_hour_tenant")]

    def __str__(self) -> str:
        return f"{self.bucket:%Y-%m-%d %H}h {self.tenant_id}"


class UsageDay(Rollup):
    bucket = models.DateField(help_text="The UTC day.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["bucket", "tenant_id", "project_id", "key_id", "model"], name="usage_day_unique")]
        indexes = [models.Index(fields=["tenant_id", "bucket"], name="usage_day_tenant")]

    def __str__(self) -> str:
        return f"{self.bucket} {self.tenant_id}"


class BudgetUse(models.Model):
    """Tokens charged to one scope's day or month, in the tenant's own time zone: what the budgets in Redis are rebuilt from."""

    scope = models.CharField(max_length=10)
    owner = models.UUIDField()
    period = models.CharField(max_length=5)
    start = models.BigIntegerField(help_text="Unix seconds.")
    tokens = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["scope", "owner", "period", "start"], name="budget_use_unique")]
        indexes = [models.Index(fields=["period", "start"], name="budget_use_period")]

    def __str__(self) -> str:
        return f"{self.scope} {self.owner} {self.period} {self.start}"
