"""The page: memory that the harness shares with every process that it starts, and nothing else.

A process learns from it where it is to die or to stop, and says in it that it does. Prisoners read
from it what they may open, and write into it what they could. Nothing of this needs a system call,
so a process under the tightest filter can do it, and its order of steps stays what it was.
"""

from __future__ import annotations

import mmap
import os

ROLES = ("agent", "supervisor", "binder", "prober", "listener", "witness", "runner")

# One slot for each role, in words of 32 bits.
POINT, HITS, THEN, NUMBER, FIRED, EPOCH, HELD = range(7)
_SLOT = 16

NOW, CALLS, LINES = range(3)
"""What comes at the point: the signal, or so many calls of C or lines of Python until then."""

PRISONERS = 64
DEVICES = 256
_MASK_WORDS = DEVICES // 32
# A prisoner's slot: what it may open, what it could open at the last look, and its counts. `LET`
# counts the changes of what it may open, twice each; it is odd in the middle of one.
MAY, COULD = 0, _MASK_WORDS
WANTED, LOOKED, SWEEPS, BREACHES, BREACH, LET = range(2 * _MASK_WORDS, 2 * _MASK_WORDS + 6)
_PRISONER = 32

_PRISONERS_AT = len(ROLES) * _SLOT
SIZE = 4 * (_PRISONERS_AT + PRISONERS * _PRISONER)


class Page:
    """The page, mapped from a memfd."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, SIZE)
        self.words = memoryview(self._map).cast("I")

    @classmethod
    def make(cls) -> tuple[Page, int]:
        """Make a new one; give its descriptor, too, for the children."""
        descriptor = os.memfd_create("xce-soak")
        os.ftruncate(descriptor, SIZE)
        return cls(descriptor), descriptor

    # ---- where to die -----------------------------------------------------------------------

    def arm(self, role: str, point: int, *, hits: int, then: int, number: int) -> None:
        """Let the next process of this role that comes to the point be hit there."""
        at = ROLES.index(role) * _SLOT
        words = self.words
        words[at + FIRED] = 0
        words[at + HITS], words[at + THEN] = hits, then
        words[at + NUMBER], words[at + HELD] = number, 0
        words[at + EPOCH] += 1
        words[at + POINT] = point  # last: from here on it is armed

    def disarm(self, role: str) -> None:
        at = ROLES.index(role) * _SLOT
        self.words[at + POINT] = 0
        self.words[at + EPOCH] += 1

    def fired(self, role: str) -> int:
        """Give the pid of who was hit; 0 for nobody."""
        return self.words[ROLES.index(role) * _SLOT + FIRED]

    def let_go(self, role: str) -> None:
        """Let who was hit go on when it runs again."""
        self.words[ROLES.index(role) * _SLOT + HELD] = 0

    # ---- prisoners --------------------------------------------------------------------------

    def clear(self, number: int) -> None:
        at = prisoner(number)
        for word in range(at, at + _PRISONER):
            self.words[word] = 0

    def let(self, number: int, mask: int) -> None:
        """Say what a prisoner may open from now on.

        Give before the kernel may open, and take only after an answer said that it has closed: one
        open that this forbids is a breach.
        """
        at, words = prisoner(number), self.words
        new = [mask >> 32 * word & 0xFFFFFFFF for word in range(_MASK_WORDS)]
        if words[at + MAY : at + MAY + _MASK_WORDS].tolist() == new:
            return  # nothing changes, and no open need go by unjudged
        words[at + LET] += 1
        for word, bits in enumerate(new):
            words[at + MAY + word] = bits
        words[at + LET] += 1

    def is_breach(self, number: int, place: int, let: int) -> bool:
        """Say whether an open that succeeded was forbidden; `let` is the count from before it.

        What was open while this was being changed is nobody's fault; the next sweep judges again.
        """
        at, words = prisoner(number), self.words
        forbidden = not words[at + MAY + (place >> 5)] & 1 << (place & 31)
        # Read last: with the count unchanged, so were the bits, from before the open until now.
        return forbidden and let % 2 == 0 and words[at + LET] == let

    def could(self, number: int) -> int:
        at = prisoner(number) + COULD
        return sum(self.words[at + word] << 32 * word for word in range(_MASK_WORDS))

    def ask(self, number: int) -> int:
        """Ask for a look that begins from now on; `looked` says when it is done."""
        at = prisoner(number)
        self.words[at + WANTED] += 1
        return self.words[at + WANTED]

    def looked(self, number: int, asked: int) -> bool:
        return self.words[prisoner(number) + LOOKED] >= asked

    def count(self, number: int, what: int) -> int:
        return self.words[prisoner(number) + what]


def slot(role: str) -> int:
    """Give the first word of a role's slot."""
    return ROLES.index(role) * _SLOT


def prisoner(number: int) -> int:
    """Give the first word of a prisoner's slot."""
    return _PRISONERS_AT + number * _PRISONER
