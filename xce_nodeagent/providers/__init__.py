"""One resource kind, whole, in one file; siblings do not know each other."""

from __future__ import annotations

from importlib import import_module

from xce_nodeagent.provider import Provider

NAMES = ("nvidia", "amd", "accelerator", "nic", "ports", "simulated", "declared", "reported")
"""Every provider that there is, in the order in which they are asked."""


def all_providers(names: tuple[str, ...] = NAMES) -> tuple[Provider, ...]:
    """Give the providers. They are imported here, so that who needs none pays for none."""
    return tuple(import_module(f"{__name__}.{name}").PROVIDER for name in names)
