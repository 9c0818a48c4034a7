"""Programs that find torch imported are as others are in all that tests of them look at."""

import signal
from pathlib import Path

import pytest

from tests import preloaded


def test_it_finds_torch_and_nothing_of_ours() -> None:
    code = "import sys; print('torch' in sys.modules, [name for name in sys.modules if name in ('store', 'moonclip')])"
    done = preloaded.run("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True []\n", "")


def test_it_has_what_it_was_given_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 7")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, beside\n"
        "print(__name__, sys.argv[1:], dict(os.environ), os.getcwd(), beside.value, os.listdir('/proc/self/fd')[:-1])"
    )
    done = preloaded.run(str(script), "one", "two", directory=tmp_path, environment={"NAME": "value"})
    assert done.stdout == f"__main__ ['one', 'two'] {{'NAME': 'value'}} {tmp_path} 7 ['0', '1', '2']\n", done.stderr


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("", 0),
        ("sys.exit(7)", 7),
        ("raise ValueError('wrong')", 1),
        ("warnings.warn('a warning')", 1),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_it_ends_as_interpreters_do(ending: str, code: int) -> None:
    program = f"import atexit, os, signal, sys, warnings\natexit.register(print, 'exit')\n{ending}"
    done = preloaded.run("-W", "error", "-c", program)
    assert done.returncode == code
    assert ("exit" in done.stdout) == (code >= 0)
    assert ("wrong" in done.stderr, "a warning" in done.stderr) == ("ValueError" in ending, "warn(" in ending)


def test_it_can_be_killed_while_it_reads() -> None:
    with preloaded.start("-c", "import sys; print('reading', flush=True); sys.stdin.readline()") as program:
        assert program.stdout.readline() == "reading\n"
        program.kill()
        assert program.wait() == -signal.SIGKILL


def test_random_numbers_differ_and_hashes_do_between_numbers() -> None:
    code = "import random, numpy; print(random.random(), numpy.random.random(), hash('a string'))"
    told = []
    for number in (0, 0, 1):
        with preloaded.start("-c", code, number=number) as program:
            told.append(program.communicate()[0].split())
    assert len({each[0] for each in told}) == len({each[1] for each in told}) == 3
    assert told[0][2] == told[1][2] != told[2][2]
