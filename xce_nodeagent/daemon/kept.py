"""The inventory of a moment ago, on disk: what an agent that starts again knows of this boot.

A library that is slow, or a card that fell off the bus, does not tell the ids that jobs and the
scheduler know the cards by. They are kept; nobody is given such a card before it is seen again.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from xce_nodeagent.host import whole
from xce_nodeagent.model.inventory import Inventory

log = logging.getLogger(__name__)


class Kept:
    """A file with the newest inventory. It is no record: without it nothing but names is lost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: Inventory | None = None

    def read(self, boot_id: str) -> Inventory | None:
        """Give the inventory of the agent before, if it was of this boot."""
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=Inventory)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.info("%s is not taken up: %s", self._path, error)
            return None
        return found if found.boot_id == boot_id else None

    def write(self, inventory: Inventory) -> None:
        """Put an inventory in the place of the one before, whole. A full disk costs nothing."""
        if inventory == self._written:
            return
        try:
            whole.replace(self._path, msgspec.json.encode(inventory))
        except OSError as error:
            log.info("%s is not written: %s", self._path, error)
        else:
            self._written = inventory
