"""Python programs that find torch imported: each is forked from a process that imported it once, for seconds.

They are processes of their own in every other way: their modules of ours are imported anew, they can be killed, and
their interpreters end as others do. What their descriptors, arguments, environment and directory are is said by whoever
starts them. Run as a program, this is the process that they are forked from.
"""

import atexit
import builtins
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple, Self

ROOT = Path(__file__).parents[1]
PATIENCE_S = 120.0
"""How long a program may take."""
_REQUEST_BYTES = 1 << 18


class Asked(NamedTuple):
    """What a program is to be.

    Attributes:
        arguments: those of ``python``: perhaps ``-W`` and what to do with warnings, then ``-c`` and code, or a file's
            path, then what the program itself is told.
        directory: where it runs.
        environment: all of it.
    """

    arguments: Sequence[str]
    directory: str
    environment: Mapping[str, str]


class Program:
    """A program that was started. Killed, if need be, at the end of a ``with`` block.

    Attributes:
        pid: its process id.
        returncode: as that of :class:`subprocess.Popen`.
        stdin: what it reads; it sees the end once that is closed.
        stdout: what it prints.
    """

    def __init__(self, pid: int, status: IO[str], stdin: IO[str], stdout: IO[str], errors: IO[str]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin, self.stdout = stdin, stdout
        self._status, self._errors = status, errors

    def wait(self, timeout: float = PATIENCE_S) -> int:
        """Wait for its end, for so many seconds at most; returns its exit code."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise TimeoutError(f"the program {self.pid} has not ended in {timeout} s")
            self.returncode = int(self._status.readline())
        return self.returncode

    def communicate(self, timeout: float = PATIENCE_S) -> tuple[str, str]:
        """Wait for its end; returns what it printed and nobody has read, and all its errors."""
        self.stdin.close()
        told = self.stdout.read()
        self.wait(timeout)
        self._errors.seek(0)
        return told, self._errors.read()

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """``kill -9``."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        for file in (self._status, self.stdin, self.stdout, self._errors):
            file.close()


def start(
    *arguments: str,
    directory: Path = ROOT,
    environment: Mapping[str, str] = os.environ,
    number: int = 0,
    are_errors_told: bool = False,
) -> Program:
    """Start a program.

    Args:
        arguments: see :class:`Asked`.
        directory: where it runs.
        environment: all of it.
        number: programs of one number share what Python makes hashes of strings from; ranks differ in it.
        are_errors_told: whether its errors are printed as well, among the rest.
    """
    asked = Asked(arguments, str(directory), dict(environment))
    stdin, stdin_w = os.pipe()
    stdout_r, stdout = os.pipe()
    status_r, status = os.pipe()
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the program
    passed_on = [stdin, stdout, stdout if are_errors_told else errors.fileno(), status]
    socket.send_fds(_nursery(number), [json.dumps(asked).encode()], passed_on)
    for fd in (stdin, stdout, status):
        os.close(fd)
    told = os.fdopen(status_r)
    return Program(int(told.readline()), told, os.fdopen(stdin_w, "w"), os.fdopen(stdout_r), errors)


def run(
    *arguments: str, directory: Path = ROOT, environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """Run a program, and wait for it. It has nothing to read. For the arguments see :func:`start`."""
    with start(*arguments, directory=directory, environment=environment) as program:
        told, errors = program.communicate()
        return subprocess.CompletedProcess(arguments, program.wait(), told, errors)


@cache
def _nursery(number: int) -> socket.socket:
    """What a process listens to from which others are forked. It ends with this one."""
    own, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
    settings = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    settings |= {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}  # NumPy's would start threads at once
    command = [sys.executable, "-m", "tests.preloaded", str(others.fileno())]
    with others:
        process = subprocess.Popen(
            command,
            pass_fds=[others.fileno()],
            cwd=ROOT,
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    atexit.register(_end, own, process, os.getpid())
    return own


def _end(own: socket.socket, process: "subprocess.Popen[bytes]", creator: int) -> None:
    own.close()
    if os.getpid() == creator:
        process.wait()


# --- the process that others are forked from ------------------------------------------------------------------------


def preload() -> None:
    """Import what takes long, and start no thread."""
    import pytest  # noqa: F401
    import torch
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel

    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()  # the first step of an optimizer imports for a second
    gc.freeze()  # what is there is never garbage: no program has to look at it, not even at its end


def serve(control: socket.socket) -> Asked | None:
    """Fork whatever is asked for, and tell what becomes of it.

    Returns:
        In each process that is forked: what was asked for. In this one, when nobody can ask any more: ``None``.
    """
    living: dict[int, tuple[int, int]] = {}
    while True:
        for fd in select.select([control.fileno(), *living], [], [])[0]:
            if fd in living:
                _tell_end(fd, *living.pop(fd))
                continue
            data, fds, *_ = socket.recv_fds(control, _REQUEST_BYTES, 4)
            if not data:
                return None
            pid = os.fork()
            if pid == 0:
                control.detach()
                _take(fds[:3])
                return Asked(*json.loads(data))
            for stream in fds[:3]:
                os.close(stream)
            os.write(fds[3], f"{pid}\n".encode())
            living[os.pidfd_open(pid)] = pid, fds[3]


def _tell_end(pidfd: int, pid: int, told: int) -> None:
    os.close(pidfd)
    status = os.waitpid(pid, 0)[1]
    with suppress(BrokenPipeError):
        os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os.close(told)


def _take(streams: Sequence[int]) -> None:
    """Make these the standard streams of this process, which has nothing else open."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 1 << 20)


def become(asked: Asked) -> Callable[[], None]:
    """Make this process the program that was asked for; returns what runs it."""
    os.environ.clear()
    os.environ.update(asked.environment)
    os.chdir(asked.directory)
    be_as_new()
    arguments = list(asked.arguments)
    if arguments[0] == "-W":
        warnings.simplefilter(arguments[1])  # type: ignore[arg-type]
        sys.warnoptions.append(arguments[1])
        del arguments[:2]
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if arguments[0] == "-c":
        code = compile(arguments.pop(1), "<string>", "exec")
        sys.path[0] = ""
    else:
        code = compile(Path(arguments[0]).read_text(), arguments[0], "exec")
        sys.path[0] = str(Path(arguments[0]).parent)
        main.__file__ = arguments[0]
    sys.argv[:] = arguments
    sys.modules["__main__"] = main
    return lambda: exec(code, main.__dict__)


def be_as_new() -> None:
    """Settle anew what libraries settle when imported: random numbers (Python sees to its own) and threads.

    Sums of other numbers of threads are others in their last bits.
    """
    import numpy as np
    import torch

    np.random.seed()
    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


if __name__ == "__main__":
    preload()
    program = serve(socket.socket(fileno=int(sys.argv[1])))
    if program is not None:
        become(program)()
