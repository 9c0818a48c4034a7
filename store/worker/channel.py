"""A socket between trainer and worker that carries whole messages, and descriptors with them.

Each message is one packet: no interrupt, and no death, leaves half of one. What is too long for a packet goes through
a file in memory whose descriptor is sent: so sending never waits for the other side to read, and what was sent is
there even if its sender is not.
"""

import array
import os
import pickle
import select
import socket
from collections.abc import Sequence
from typing import Any, Final

from ..disk.descriptors import Descriptor
from ..limits import KIB
from ..saving.arenas import nameless_file
from .peers import Peer

_MAX_INLINE_BYTES: Final = 16 * KIB
"""Longer messages go through a file: a socket holds about 200 KiB, a hundred thousand tensors take 5 MiB."""

_MAX_FDS: Final = 4

_INLINE, _IN_FILE = b"i", b"f"


class Disconnected(Exception):
    """This end was closed behind our back, or must not be used any more: what was said on it is lost."""


class Channel:
    """One end. Any thread may send; one receives.

    Args:
        own: this end of a pair of ``SOCK_SEQPACKET``; it becomes the channel's.
        peer: who has the other end.
    """

    def __init__(self, own: socket.socket, peer: Peer) -> None:
        own.setblocking(False)
        self._socket = own
        self._descriptor = Descriptor(own.fileno())
        self._peer = peer

    def fileno(self) -> int:
        """The socket's descriptor; it is readable when a message has come, or the other end is closed."""
        return self._socket.fileno()

    @property
    def is_readable(self) -> bool:
        """Whether a message has come, or the other end is closed."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(0))

    def send(self, message: object, fds: Sequence[int] = ()) -> None:
        """Send a message, and copies of some descriptors.

        Raises:
            BrokenPipeError: the other side is gone.
            Disconnected: see :meth:`receive`.
            OSError: no memory, or no descriptor, for a long message.
        """
        self._require_intact()
        body = pickle.dumps(message, protocol=5)
        if len(body) <= _MAX_INLINE_BYTES:
            self._send_packet(_INLINE + body, fds)
            return
        file = nameless_file()
        try:
            _write(file, body)
            self._send_packet(_IN_FILE, [*fds, file])
        finally:
            os.close(file)

    def receive(self) -> tuple[Any, list[int]] | None:
        """The next message and its descriptors, close-on-exec; ``None`` once the other end is closed.

        Raises:
            BlockingIOError: there is none yet.
            Disconnected: something in this process closed the socket; its number may lead anywhere now.
            OSError: there is no room for its descriptors.
        """
        self._require_intact()
        try:
            packet, fds, flags, _ = self._packet()
        except ConnectionResetError:  # said once, by who died with something of ours unread: before what it has sent
            packet, fds, flags, _ = self._packet()
        if not packet:
            return None
        if flags & socket.MSG_CTRUNC:
            raise OSError("no descriptors are left for what was sent; raise the limit of open files (ulimit -n)")
        if packet[:1] == _INLINE:
            return pickle.loads(packet[1:]), fds
        return pickle.loads(_read(fds.pop())), fds

    def close(self) -> None:
        """Close this end; again does nothing."""
        self._socket.detach()
        self._descriptor.close()

    def _require_intact(self) -> None:
        if not self._descriptor.is_intact:
            raise Disconnected(
                "something in this process closed the socket that leads to the other (os.closerange, perhaps)"
            )

    def _packet(self) -> tuple[bytes, list[int], int, Any]:
        return socket.recv_fds(self._socket, 1 + _MAX_INLINE_BYTES, _MAX_FDS, socket.MSG_CMSG_CLOEXEC)

    def _send_packet(self, packet: bytes, fds: Sequence[int]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        while True:
            try:
                self._socket.sendmsg([packet], rights, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                if not self._peer.wait((self.fileno(), select.POLLOUT)):
                    raise BrokenPipeError("the process at the other end is gone") from None
            except ConnectionResetError as error:
                raise BrokenPipeError(*error.args) from error
            else:
                return


def _write(fd: int, data: bytes) -> None:
    with open(fd, "wb", closefd=False) as file:
        file.write(data)


def _read(fd: int) -> bytes:
    with open(fd, "rb") as file:
        file.seek(0)  # the position is shared with whoever wrote it
        return file.read()
