"""Composition, event loop, socket, configuration, systemd notification."""
