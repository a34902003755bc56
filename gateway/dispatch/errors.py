"""Errors of links to workers.

DispatchError
├── GreetingFailed   the other end is no worker that this gateway can speak to; trying again helps only if it changes
└── LinkDown         the link can't take a request now; another worker may
"""


class DispatchError(Exception):
    """Base of all errors of `gateway.dispatch`."""


class GreetingFailed(DispatchError):
    """Another protocol version, a wrong proof, or bytes that are no greeting; the message says which."""


class LinkDown(DispatchError):
    """The link isn't up, or its worker reads too slowly."""
