"""Servers with an S3 interface for tests, which install themselves under `.cache/s3`, and a proxy that spoils things.

python -m tools.s3 install        # all that this machine can have
python -m tools.s3 start ceph     # until Ctrl-C
"""

from . import ceph, juicefs, ministack, moto, rclone, swift
from .installing import Failed, Unavailable
from .server import Account, Kind, Server, Traits

__all__ = ["SERVERS", "Account", "Failed", "Kind", "Server", "Traits", "Unavailable"]

SERVERS = {module.KIND.name: module.KIND for module in (moto, ministack, swift, ceph, juicefs, rclone)}
"""By name. The first two are there wherever the tests run; the last two ignore conditions of a PUT."""
