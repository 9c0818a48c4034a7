"""The environment that atheris lives in: beside the project's own, which it sees and does not change."""

import subprocess
import sys
import sysconfig
from pathlib import Path

_ATHERIS = "atheris==3.0.0"
_NAME = "moonclip.pth"


def python_with_atheris(directory: Path) -> Path:
    """The interpreter of that environment, which is made if it is not there.

    Args:
        directory: where it lies.

    Raises:
        subprocess.CalledProcessError: it could not be made; what failed said why.
    """
    python = directory / "bin" / "python"
    marker = directory / ".ready"
    if not marker.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], check=True)
        quiet = ["-m", "pip", "--disable-pip-version-check", "--quiet", "install", _ATHERIS]
        subprocess.run([str(python), *quiet], check=True)
        packages = subprocess.run(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        (Path(packages) / _NAME).write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        marker.touch()
    return python
