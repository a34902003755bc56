"""What can go wrong in the engine.

EngineError
├── RequestRejected   a submit was refused; `code` as in protocol.frames.Reject; try again only where there is a `retry_after_s`
├── OutOfBlocks       the pool was asked for more than it has: a fault of the caller, who counts first
└── ConfigError       the engine can't be built like this; names the setting
"""


class EngineError(Exception):
    """Base of the engine's errors."""


class RequestRejected(EngineError):
    """A submit was refused. Nothing was computed and nothing was changed."""

    def __init__(self, code: str, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class OutOfBlocks(EngineError):
    """More blocks were asked for than are free or evictable."""


class ConfigError(EngineError):
    """A setting that can't work."""
