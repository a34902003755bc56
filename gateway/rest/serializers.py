"""The shapes of the management API. Their values are judged by tenants.policies when a service writes them."""

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from gateway.rest.strict import PageQuery, StrictSerializer
from tenants import selectors
from tenants.models import ApiKey, CachePolicy


class LimitsBody(StrictSerializer):
    """Limits of one scope; null means that this scope sets none."""

    requests_per_minute = serializers.IntegerField(required=False, allow_null=True)
    tokens_per_minute = serializers.IntegerField(required=False, allow_null=True)
    in_flight = serializers.IntegerField(required=False, allow_null=True)
    tokens_per_day = serializers.IntegerField(required=False, allow_null=True)
    tokens_per_month = serializers.IntegerField(required=False, allow_null=True)
    allowed_models = serializers.ListField(child=serializers.CharField(), required=False, help_text="Empty: every model.")


class TenantChange(LimitsBody):
    name = serializers.CharField(required=False)
    weight = serializers.FloatField(required=False)
    priority = serializers.IntegerField(required=False, help_text="Lower is served first.")
    time_zone = serializers.CharField(required=False)


class CachePolicyBody(StrictSerializer):
    cache_policy = serializers.ChoiceField(choices=CachePolicy.choices)
    trust_group = serializers.UUIDField(required=False, allow_null=True, help_text="With `shared`, and only with it.")


class TenantBody(TenantChange):
    name = serializers.CharField()
    cache_policy = serializers.ChoiceField(choices=CachePolicy.choices, required=False)
    trust_group = serializers.UUIDField(required=False, allow_null=True, help_text="With `shared`, and only with it.")


class Tenant(TenantBody):
    id = serializers.UUIDField(read_only=True)
    trust_group = serializers.UUIDField(source="trust_group_id", allow_null=True)
    cache_epoch = serializers.IntegerField(read_only=True)
    suspended_at = serializers.DateTimeField(read_only=True, allow_null=True)
    created_at = serializers.DateTimeField(read_only=True)


class ProjectChange(LimitsBody):
    name = serializers.CharField(required=False)


class ProjectBody(ProjectChange):
    tenant = serializers.UUIDField()
    name = serializers.CharField()


class Project(ProjectBody):
    id = serializers.UUIDField(read_only=True)
    tenant = serializers.UUIDField(source="tenant_id")
    suspended_at = serializers.DateTimeField(read_only=True, allow_null=True)
    created_at = serializers.DateTimeField(read_only=True)


class KeyChange(LimitsBody):
    name = serializers.CharField(required=False, allow_blank=True)
    expires_at = serializers.DateTimeField(required=False, allow_null=True)


class KeyBody(KeyChange):
    project = serializers.UUIDField()


class KeyRotation(StrictSerializer):
    grace_s = serializers.IntegerField(required=False, min_value=0, help_text="How long the old key works on; 0 unless told.")


class Key(KeyBody):
    """A key without its secret, which nobody can read again."""

    id = serializers.UUIDField(read_only=True)
    prefix = serializers.CharField(read_only=True)
    tenant = serializers.UUIDField(source="tenant_id", read_only=True)
    project = serializers.UUIDField(source="project_id")
    state = serializers.SerializerMethodField()
    created_by = serializers.CharField(source="created_by.username", read_only=True, default=None, allow_null=True)
    created_at = serializers.DateTimeField(read_only=True)
    revoked_at = serializers.DateTimeField(read_only=True, allow_null=True)
    last_used_at = serializers.DateTimeField(read_only=True, allow_null=True)

    @extend_schema_field(serializers.ChoiceField(choices=selectors.KEY_STATES))
    def get_state(self, key: ApiKey) -> str:
        return selectors.key_state(key, timezone.now())


class CreatedKey(StrictSerializer):
    """The answer to a key's creation, the only place that shows the secret."""

    key = Key(read_only=True)
    secret = serializers.CharField(read_only=True)


class TrustGroupBody(StrictSerializer):
    name = serializers.CharField()


class TrustGroup(TrustGroupBody):
    id = serializers.UUIDField(read_only=True)
    member_count = serializers.IntegerField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)


class AuditEntry(StrictSerializer):
    id = serializers.IntegerField(read_only=True)
    at = serializers.DateTimeField(read_only=True)
    actor = serializers.CharField(read_only=True)
    action = serializers.CharField(read_only=True)
    target_kind = serializers.CharField(read_only=True)
    target_id = serializers.CharField(read_only=True)
    tenant = serializers.UUIDField(source="tenant_id", read_only=True, allow_null=True)
    before = serializers.DictField(read_only=True)
    after = serializers.DictField(read_only=True)
    address = serializers.CharField(read_only=True, allow_null=True)


class TenantQuery(PageQuery):
    search = serializers.CharField(required=False)
    state = serializers.ChoiceField(choices=selectors.TENANT_STATES, required=False)


class ProjectQuery(PageQuery):
    tenant = serializers.UUIDField(required=False)
    search = serializers.CharField(required=False)


class KeyQuery(PageQuery):
    tenant = serializers.UUIDField(required=False)
    project = serializers.UUIDField(required=False)
    search = serializers.CharField(required=False)
    state = serializers.ChoiceField(choices=selectors.KEY_STATES, required=False)


class AuditQuery(PageQuery):
    tenant = serializers.UUIDField(required=False)
    actor = serializers.CharField(required=False)
    action = serializers.CharField(required=False, help_text="`key.create`, or `key` for all that begin so.")
    target = serializers.CharField(required=False)
    since = serializers.DateTimeField(required=False)
    until = serializers.DateTimeField(required=False, help_text="Excluded.")
