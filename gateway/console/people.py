"""Who is signed in, and what they may do: an operator (is_staff) everything, an auditor (group of that name) read everything."""

from typing import Literal

from django.contrib.auth.models import AbstractUser, AnonymousUser
from django.http import HttpRequest

from tenants.services import AUDITOR_GROUP, Actor

Person = AbstractUser | AnonymousUser


def role_of(person: Person) -> Literal["operator", "auditor"] | None:
    """The person's role, None for whoever may see nothing here."""
    if not isinstance(person, AbstractUser) or not person.is_active:
        return None
    if person.is_staff:
        return "operator"
    return "auditor" if person.groups.filter(name=AUDITOR_GROUP).exists() else None


def actor_of(request: HttpRequest) -> Actor:
    """Who acts, for the audit trail. The view has checked that someone is signed in."""
    assert isinstance(request.user, AbstractUser)
    return Actor(name=request.user.get_username(), address=address_of(request), user_id=request.user.pk)


def address_of(request: HttpRequest) -> str | None:
    """The client's address; None over a Unix socket."""
    return request.META.get("REMOTE_ADDR") or None
