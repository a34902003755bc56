"""The only writers of the domain. Each is one transaction: the change, its audit entry, and what admission must be told of it."""

from tenants.services.keys import CreatedKey, create_key, digest, revoke_key, rotate_key, update_key
from tenants.services.operators import AUDITOR_GROUP, CreatedOperator, create_operator
from tenants.services.projects import create_project, resume_project, suspend_project, update_project
from tenants.services.recording import Actor
from tenants.services.tenants import (
    DEFAULT_PROJECT,
    create_tenant,
    purge_cache,
    resume_tenant,
    set_cache_policy,
    suspend_tenant,
    update_tenant,
)
from tenants.services.trust_groups import create_trust_group, delete_trust_group, update_trust_group

__all__ = [
    "AUDITOR_GROUP",
    "DEFAULT_PROJECT",
    "Actor",
    "CreatedKey",
    "CreatedOperator",
    "create_key",
    "create_operator",
    "create_project",
    "create_tenant",
    "create_trust_group",
    "delete_trust_group",
    "digest",
    "purge_cache",
    "resume_project",
    "resume_tenant",
    "revoke_key",
    "rotate_key",
    "set_cache_policy",
    "suspend_project",
    "suspend_tenant",
    "update_key",
    "update_project",
    "update_tenant",
    "update_trust_group",
]
