"""The exception tree: what went wrong -> one line and an exit code.

CampError                  1   anything the user can act on
├── InputError             1   a file or a value that was given is not what it should be
├── MismatchError          1   two artifacts do not belong together (fingerprint, size, tokenizer)
├── MissingPackageError    1   an optional dependency is needed and absent
├── StorageError           1   the disk or the remote store refused (full, permissions, lost)
├── TooManyFailuresError   1   --max-errors was passed
└── VerificationError      4   an artifact is damaged or incomplete

A message states what was found, what was expected and what to do next.
"""

from __future__ import annotations

EXIT_INCOMPLETE = 3  # finished, but with failed rows


class CampError(Exception):
    """Anything the user can act on: shown as one line, without a traceback."""

    exit_code = 1


class InputError(CampError):
    """A file or a value that was given is not what it should be."""


class MismatchError(CampError):
    """Two artifacts do not belong together."""


class MissingPackageError(CampError):
    """An optional dependency is needed and absent."""


class StorageError(CampError):
    """The disk or the remote store refused."""


class TooManyFailuresError(CampError):
    """More rows failed than --max-errors allows."""


class VerificationError(CampError):
    """An artifact is damaged or incomplete."""

    exit_code = 4
