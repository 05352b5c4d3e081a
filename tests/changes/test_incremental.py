"""What is looked at after an event is what a look at everything would find."""

from __future__ import annotations

from changes.changing import Changing
from hypothesis import settings

Changing.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
test_any_order_of_changes = Changing.TestCase
