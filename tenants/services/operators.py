"""Writes to the people who run the installation."""

import secrets
from dataclasses import dataclass, field
from typing import Literal

from django.contrib.auth.models import Group, User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from tenants.errors import Invalid, Taken
from tenants.services.recording import Actor, record

AUDITOR_GROUP = "auditor"
Role = Literal["operator", "auditor"]


@dataclass(frozen=True, kw_only=True)
class CreatedOperator:
    user: User
    password: str = field(repr=False)


@transaction.atomic
def create_operator(name: str, *, actor: Actor, password: str | None = None, role: Role = "operator") -> CreatedOperator:
    """Someone who may sign in: an operator may do everything, an auditor reads everything. Makes a password where none is given."""
    password = secrets.token_urlsafe(15) if password is None else password
    user = User(username=name, is_staff=role == "operator")
    try:
        user.clean_fields(exclude=["password"])
    except ValidationError as error:
        raise Invalid({"name": " ".join(error.messages)}) from error
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise Invalid({"password": " ".join(error.messages)}) from error
    user.set_password(password)
    try:
        with transaction.atomic():
            user.save(force_insert=True)
    except IntegrityError as error:
        raise Taken({"name": f"there is already an operator named {name}"}) from error
    if role == "auditor":
        user.groups.add(Group.objects.get_or_create(name=AUDITOR_GROUP)[0])
    record(actor, "operator.create", user, "operator", tenant=None, before={}, after={"name": name, "role": role})
    return CreatedOperator(user=user, password=password)
