"""Placement: choose instances and ports for a request. Pure, and the same in every replay."""

from __future__ import annotations

from xce_nodeagent.placement.choice import Choice, choose
from xce_nodeagent.placement.ports import choose_ports

__all__ = ["Choice", "choose", "choose_ports"]
