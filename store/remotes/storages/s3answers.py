"""Answers of S3 servers that botocore reads whole: listings and errors. Hostile servers send them for ever."""

from collections.abc import Iterator
from typing import Any

from ...limits import MAX_ANSWER_BYTES


class BoundedSession:
    """Sends botocore's requests as another session does, and reads no more of an answer than one may be long.

    Args:
        session: botocore's.
    """

    def __init__(self, session: Any) -> None:
        self._session = session

    def send(self, request: Any) -> Any:
        """Send a request. Content of objects is left for whoever asked for it."""
        is_left = request.stream_output
        request.stream_output = True
        answer = self._session.send(request)
        if not is_left or answer.status_code >= 300:
            answer.raw = _Bounded(answer.raw)
            _ = answer.content  # which is when it is read
        return answer

    def close(self) -> None:
        """Close all connections."""
        self._session.close()


class _Bounded:
    """A body of which so much is read and no more."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def stream(self) -> Iterator[bytes]:
        """The body, in pieces.

        Raises:
            ValueError: it goes on and on.
        """
        left_bytes = MAX_ANSWER_BYTES
        for piece in self._body.stream():
            left_bytes -= len(piece)
            if left_bytes < 0:
                self._body.close()
                raise ValueError(f"more than {MAX_ANSWER_BYTES} bytes")
            yield piece
