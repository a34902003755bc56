import pytest
from django.db import IntegrityError, connection

from tenants.models import CachePolicy, Tenant


@pytest.mark.django_db
def test_tests_run_on_a_real_postgres():
    assert connection.vendor == "postgresql"


@pytest.mark.django_db
def test_shared_cache_policy_needs_a_trust_group():
    with pytest.raises(IntegrityError):
        Tenant.objects.create(name="acme", cache_policy=CachePolicy.SHARED)
