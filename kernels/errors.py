"""What a kernel refuses.

KernelError
├── ShapeError              sizes or layouts that don't fit together
├── DtypeError              a type that the operation doesn't take
└── NoImplementationError   an unknown name, or one that this device or installation can't run

None of them helps to try again: the caller is wrong, or the installation is.
"""


class KernelError(ValueError):
    """A call that no implementation can carry out."""


class ShapeError(KernelError):
    """Sizes or layouts that don't fit together."""


class DtypeError(KernelError):
    """A type that the operation doesn't take."""


class NoImplementationError(KernelError):
    """An unknown implementation, or one that this device or installation can't run."""
