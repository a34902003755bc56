"""Why a generation didn't start.

GenerationError
├── AdmissionRefused   the caller may not, or not now: `refused` says which limit and when to come back
├── Unavailable        nobody can serve it now; try again after `retry_after_s`
├── Invalid            the worker refused the request itself; trying again won't help. `param` names the field
└── ResponseNotFound   no response of this id that this caller could attach to
"""

from gateway.admission.outcomes import Refused


class GenerationError(Exception):
    """Base of all errors of `gateway.generation`. `message` is for the caller."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class AdmissionRefused(GenerationError):
    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


class Unavailable(GenerationError):
    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Invalid(GenerationError):
    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ResponseNotFound(GenerationError):
    """The same for a response that never was, one that is over, and somebody else's."""
