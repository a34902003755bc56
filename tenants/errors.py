"""What the domain refuses. Nothing has changed when one of these is raised, and trying the same again helps only where it says so.

DomainError
├── Invalid     one or more fields are wrong; names each. Mend them and try again
│   └── Taken   another one has that name
├── NotFound    there is no such thing, or not within the scope that was asked
└── Refused     the thing's state doesn't allow it
"""

from collections.abc import Mapping


class DomainError(Exception):
    """Base of all that the domain refuses."""


class Invalid(DomainError):
    """`errors` maps each wrong field to what is wrong with it."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{field}: {message}" for field, message in errors.items()))
        self.errors = dict(errors)


class Taken(Invalid):
    """The name belongs to another one."""


class NotFound(DomainError):
    """No such thing, or not within the scope that was asked."""


class Refused(DomainError):
    """What the thing's state doesn't allow."""
