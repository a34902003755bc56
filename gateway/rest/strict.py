"""Bodies and query strings in which every field is known: what would be ignored is refused by name."""

from collections.abc import Mapping
from typing import Any

from django.http import QueryDict
from rest_framework import serializers


# No docstring: the schema would repeat it at every shape that inherits.
class StrictSerializer(serializers.Serializer[Any]):
    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            writable = {name for name, field in self.fields.items() if not field.read_only}
            errors = {}
            for name in data:
                if name in self.fields and name not in writable:
                    errors[name] = ["Set by the server only."]
                elif name not in writable:
                    errors[name] = [f"Unknown field. Known are {', '.join(sorted(writable)) or 'none'}."]
                elif isinstance(data, QueryDict) and len(data.getlist(name)) > 1:
                    errors[name] = ["Given more than once."]
            if errors:
                raise serializers.ValidationError(errors)
        return super().to_internal_value(data)


def read(serializer: type[StrictSerializer], data: Any) -> dict[str, Any]:
    """The valid fields that were given. Raises DRF's ValidationError, which names the wrong ones."""
    reader = serializer(data=data)
    reader.is_valid(raise_exception=True)
    return dict(reader.validated_data)


class PageQuery(StrictSerializer):
    """What every list takes."""

    after = serializers.CharField(required=False, help_text="The `next` of the page before.")
    page_size = serializers.IntegerField(required=False, min_value=1, max_value=200, help_text="Rows a page, 50 unless told.")
