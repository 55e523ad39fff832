"""The cases of methods between peers."""

from laws import METHODS, build

PEERS = [row for row in METHODS if build(row).settings.get("topology")]
