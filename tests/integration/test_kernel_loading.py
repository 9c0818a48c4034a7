"""Where compiled kernels come from: never compiled, nor numba imported, where it would hurt; safe in threads and forks.

Every scenario runs in a process of its own, most of them from a copy of the engine whose cache is cold.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import kernels

ENGINE = Path(kernels.__file__).parents[1]
CAP_DAC_OVERRIDE, PR_CAPBSET_DROP = 1, 24


def obey_permissions() -> None:
    """In a child about to run a program: root, too, may then write only where permissions say so."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


WORK = """
import hashlib, os, sys, threading
import numpy as np
from store import codec, kernels
from store.dtypes import Element

def chunks():
    for element in (Element.FP32, Element.BF16, Element.INT64):
        count = 400_000 // element.width_bytes
        base = (np.arange(count, dtype=np.uint64) ** 2 % 2**31).astype(f"<u{element.width_bytes}")
        yield element, memoryview((base + base % 7).tobytes()), memoryview(base.tobytes())

def work():
    seen = hashlib.sha256()
    for element, raw, base in chunks():
        encoded = codec.encode(raw, element, base, 250)
        payload = b"".join(encoded.payload)
        seen.update(payload)
        out = memoryview(bytearray(len(raw)))
        codec.decode(encoded.transform, encoded.grouped, element, memoryview(payload), len(raw),
                     base if encoded.uses_base else None, out)
        assert out == raw
    return seen.hexdigest()

def in_thread(times=16):
    results = set()
    thread = threading.Thread(target=lambda: results.update(work() for _ in range(times)))
    thread.start()
    thread.join()
    (result,) = results
    return result
"""


@pytest.fixture(scope="module")
def expected_digest() -> str:
    scope: dict[str, object] = {}
    exec(WORK, scope)
    work = scope["work"]
    assert callable(work)
    return str(work())


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Path]:
    """A folder with a copy of the engine that never compiled a kernel, readable by everybody."""
    root = tmp_path / "installation"
    shutil.copytree(ENGINE, root / "store", ignore=shutil.ignore_patterns("__pycache__"))
    yield root
    for folder, _, _ in os.walk(root):
        Path(folder).chmod(0o755)  # so that pytest can remove it


def run(code: str, root: Path = ENGINE.parent, *, site: bool = True, **environment: str) -> str:
    """What a process printed that works with the engine in ``root``, without a home unless given one."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HOME", "XDG"))}
    clean.update(PYTHONPATH=str(root), PYTHONDONTWRITEBYTECODE="1", **environment)
    if clean.get("EXTRA_PATH"):
        clean["PYTHONPATH"] = os.pathsep.join((clean.pop("EXTRA_PATH"), str(root)))
    command = [sys.executable, *([] if site else ["-S"]), "-c", WORK + code]
    done = subprocess.run(
        command,
        env=clean,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        preexec_fn=obey_permissions,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


NO_HELPER = "\nsys.executable = ''\n"
REPORT = "\nprint(in_thread(), kernels.is_compiled(), 'numba' in sys.modules)"


def test_e4_import_and_the_main_thread_never_load_numba() -> None:
    assert run("\nfor _ in range(16): work()\nprint(kernels.is_compiled(), 'numba' in sys.modules)") == "False False"


def test_e4_a_warm_cache_is_used_from_a_worker_thread(expected_digest: str) -> None:
    if not kernels.warm():
        pytest.skip("numba does not work here")
    assert run(REPORT) == f"{expected_digest} True True"


def test_e4_a_cold_cache_means_twins_and_no_compiling(cold: Path, expected_digest: str) -> None:
    home = cold / "home"
    assert run(NO_HELPER + REPORT, cold, HOME=str(home)) == f"{expected_digest} False False"


def test_e4_read_only_installation_without_a_home(cold: Path, expected_digest: str) -> None:
    for folder, _, names in os.walk(cold):
        for name in names:
            Path(folder, name).chmod(0o444)
        Path(folder).chmod(0o555)
    assert run(REPORT, cold, HOME="/proc/nowhere") == f"{expected_digest} False False"


def test_e4_numba_absent(tmp_path: Path, expected_digest: str) -> None:
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not entry.name.startswith(("numba", "llvmlite")):
            (tmp_path / entry.name).symlink_to(entry)
    assert run(REPORT, site=False, EXTRA_PATH=str(tmp_path)) == f"{expected_digest} False False"


@pytest.mark.parametrize("fault", ["raise ImportError('no LLVM')", "raise OSError('cannot load')", "config = None"])
def test_e4_numba_broken(tmp_path: Path, fault: str, expected_digest: str) -> None:
    kernels.warm()
    (tmp_path / "numba.py").write_text(fault)
    digest, is_compiled, _ = run(REPORT, EXTRA_PATH=str(tmp_path)).split()
    assert (digest, is_compiled) == (expected_digest, "False")


def test_e4_numba_without_its_compiler(expected_digest: str) -> None:
    assert run(REPORT, NUMBA_DISABLE_JIT="1") == f"{expected_digest} False False"


def test_e4_kernels_that_are_wrong_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.cache, "exercise", lambda kernel: repr(kernel).encode())
    loader = kernels._Loader()
    loader.load()
    assert loader.chosen is kernels.reference


@pytest.mark.slow
def test_e4_the_helper_process_warms_the_cache_meanwhile(cold: Path, expected_digest: str) -> None:
    """The process goes on with the twins and picks the compiled kernels up by itself, without compiling any."""
    if not kernels.warm():
        pytest.skip("numba does not work here")
    waiting = """
import time
end = time.monotonic() + 200
def until_compiled():
    while not kernels.is_compiled() and time.monotonic() < end:
        results.add(work())
results = set()
thread = threading.Thread(target=until_compiled)
thread.start()
thread.join()
results.add(work())
compiled = kernels.current(0)
misses = sum(sum(getattr(compiled, name).stats.cache_misses.values()) for name in ("split", "join", "context_keys"))
print(*results, kernels.is_compiled(), misses)
"""
    assert run(waiting, cold, HOME=str(cold)) == f"{expected_digest} True 0"


FORKS = """
import signal
signal.alarm(200)  # a hang becomes a failure

def child():
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(60)
    status = 1
    try:
        status = 0 if in_thread(1) == work() == expected else 1
    finally:
        sys.stderr.flush()
        os._exit(status)

def threads_and_forks(expected_now):
    global expected
    expected = expected_now
    pids = [child()]
    threads = [threading.Thread(target=lambda: [work() for _ in range(20)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and len(pids) < 25:
        pids.append(child())  # while numba is imported, while kernels are loaded, while they run
    for thread in threads:
        thread.join()
    pids.append(child())
    return [os.waitpid(pid, 0)[1] for pid in pids]
"""


@pytest.mark.parametrize("environment", [{}, {"NUMBA_DISABLE_JIT": "1"}], ids=["compiled", "twins"])
def test_e5_forks_before_during_and_after_first_use(expected_digest: str, environment: dict[str, str]) -> None:
    is_warm = kernels.warm() and not environment
    statuses, is_compiled = run(
        FORKS + f"\nprint(sum(threads_and_forks({expected_digest!r})), kernels.is_compiled())", **environment
    ).split()
    assert (statuses, is_compiled) == ("0", str(is_warm))


def test_e6_64_threads_share_nothing() -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
def one(seed):
    random = np.random.default_rng(seed)
    element = list(Element)[seed % len(Element)]
    base = (random.standard_normal(5000) * 100).astype("<f8").tobytes()
    raw = (np.frombuffer(base, np.uint64) + random.integers(0, 2**20, 5000, np.uint64)).tobytes()
    encoded = codec.encode(memoryview(raw), element, memoryview(base), 50)
    payload = memoryview(b"".join(encoded.payload))
    out = memoryview(bytearray(len(raw)))
    used = memoryview(base) if encoded.uses_base else None
    codec.decode(encoded.transform, encoded.grouped, element, payload, len(raw), used, out)
    return bytes(out) == raw
with ThreadPoolExecutor(64) as pool:
    print(all(pool.map(one, range(1500))), kernels.is_compiled())
"""
    assert run(code) == f"True {kernels.warm()}"
