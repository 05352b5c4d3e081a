"""Tests' folders are no packages, but the machines of these tests are shared by several of them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
