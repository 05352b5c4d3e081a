"""For an agent of these tests and its helpers: simulated cards behind which there is a driver.

Behind the majors of simulated cards nothing is, so nobody can have one open. With this folder in
PYTHONPATH, the cards of the profile `real` are the kernel's own zero, full and random: nodes of
their own, which really open, and of which the first can be mapped.
"""

from pathlib import Path

from xce_nodeagent.model import major

MEM = 1  # drivers/char/mem.c
_real = major.character_drivers
major.LOCAL_MAJORS = (MEM, *major.LOCAL_MAJORS)
major.character_drivers = lambda text: {k: v for k, v in _real(text).items() if k != MEM}

from xce_nodeagent.providers import simulated  # noqa: E402  # it takes the names that were changed

simulated.PROFILES = Path(__file__).parent / "profiles"
