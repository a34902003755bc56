"""GET /api/v1/usage/: sums out of the ledger."""

from datetime import UTC, datetime, timedelta
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from gateway.rest.strict import PageQuery, StrictSerializer, read
from gateway.rest.views import PAGE_SIZE, ManagementViewSet, page_of
from tenants.ledger import reports

USUAL_RANGE = timedelta(days=30)


class UsageFilter(StrictSerializer):
    start = serializers.DateField(required=False, help_text="First UTC day; 30 days ago unless told.")
    end = serializers.DateField(required=False, help_text="UTC day after the last; tomorrow unless told.")
    group_by = serializers.ChoiceField(choices=reports.GROUPS, required=False)
    tenant = serializers.UUIDField(required=False)
    project = serializers.UUIDField(required=False)
    key = serializers.UUIDField(required=False)
    model = serializers.CharField(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        today = datetime.now(UTC).date()
        attrs.setdefault("end", today + timedelta(days=1))
        attrs.setdefault("start", attrs["end"] - USUAL_RANGE)
        if attrs["start"] >= attrs["end"]:
            raise serializers.ValidationError({"start": ["Must be before end."]})
        return attrs


class UsageQuery(PageQuery, UsageFilter):
    bucket = serializers.ChoiceField(choices=reports.BUCKETS, required=False, help_text="`day` unless told.")


class Usage(StrictSerializer):
    """Sums of settled requests. Charged is what budgets count: prompt tokens, cached or not, and billed output."""

    group = serializers.CharField(allow_null=True, help_text="Id of the tenant, project or key, or the model's name.")
    requests = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField()
    computed_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField()
    recomputed_tokens = serializers.IntegerField()
    generated_tokens = serializers.IntegerField()
    billed_tokens = serializers.IntegerField()
    wasted_tokens = serializers.IntegerField()
    charged_tokens = serializers.IntegerField()
    queue_us = serializers.IntegerField()
    prefill_us = serializers.IntegerField()
    decode_us = serializers.IntegerField()
    kv_block_ms = serializers.IntegerField()
    preemptions = serializers.IntegerField()


class UsageBucket(Usage):
    bucket = serializers.DateTimeField(help_text="Where the bucket begins, UTC.")


class UsageViewSet(ManagementViewSet):
    """Usage out of the rollups. Buckets are UTC; what has settled within the last seconds may be missing."""

    @extend_schema(parameters=[UsageQuery], responses=page_of(UsageBucket), filters=False)
    def list(self, request: Request) -> Response:
        """Usage by hour, day or month, and by group."""
        asked = read(UsageQuery, request.query_params)
        page = reports.usage_page(size=asked.pop("page_size", PAGE_SIZE), after=asked.pop("after", ""), **asked)
        return Response({"items": UsageBucket(page.rows, many=True).data, "next": page.next})

    @extend_schema(parameters=[UsageFilter], responses=Usage(many=True), filters=False)
    @action(detail=False, methods=["get"])
    def totals(self, request: Request) -> Response:
        """Sums over the whole range, the largest group first."""
        return Response(Usage(reports.totals(**read(UsageFilter, request.query_params)), many=True).data)
