"""Times as options and messages have them: microseconds UTC, and ISO 8601."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(text: str) -> int:
    """Return a time in microseconds; one without a zone is in UTC.  Raises ``ValueError``."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(microseconds=1)


def text_of(time: int) -> str:
    """Return the text of a time in microseconds."""
    return (EPOCH + timedelta(microseconds=time)).isoformat()
