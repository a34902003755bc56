"""WeightsError
├── CheckpointNotFound      nothing there under this name
├── DownloadFailed          the hub couldn't be reached or refused; trying again may help
├── BrokenCheckpoint        a file is truncated, damaged or contradicts itself
└── UnsupportedCheckpoint   sound, but an architecture, type or option that isn't offered
"""

from pathlib import Path


class WeightsError(Exception):
    """A checkpoint can't be used. The message is one line that names the file and what is wrong."""

    retryable = False

    def __init__(self, where: Path | str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = str(where)
        self.reason = reason


class CheckpointNotFound(WeightsError):
    """No such file, folder or model."""


class DownloadFailed(WeightsError):
    """The hub didn't deliver."""

    retryable = True


class BrokenCheckpoint(WeightsError):
    """A file is truncated or damaged, or the files contradict one another."""


class UnsupportedCheckpoint(WeightsError):
    """The checkpoint is sound and isn't supported."""
