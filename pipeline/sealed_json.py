"""A JSON object <-> a file in which any changed byte is noticed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import VerificationError
from ..files import canonical_json, fingerprint, write_atomic

SEAL = "seal"


def sealed(value: Mapping[str, Any]) -> bytes:
    """An object -> canonical JSON that carries the fingerprint of its other fields."""
    assert SEAL not in value
    return canonical_json({**value, SEAL: fingerprint(dict(value))})


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """An object -> a sealed file, whole or not at all."""
    write_atomic(path, sealed(value))


def unseal(content: bytes, *, source: object) -> dict[str, Any]:
    """Sealed bytes -> the object without its seal, or an error naming `source`."""
    try:
        value = json.loads(content)
        seal = value.pop(SEAL)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise VerificationError(f"{source}: damaged, not a sealed JSON object ({error!r})") from None
    # The bytes are compared too: a changed space or an escaped letter leaves the fields as they were.
    if seal != fingerprint(value) or content != canonical_json({**value, SEAL: seal}):
        raise VerificationError(f"{source}: damaged, its content does not fit its seal")
    return value


def read_sealed(path: Path) -> dict[str, Any]:
    """A sealed file -> its object."""
    return unseal(path.read_bytes(), source=path)
