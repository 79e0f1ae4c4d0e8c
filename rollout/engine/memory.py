"""Who may keep a state: slots and pages are set aside before they are used, so no forward runs out of them."""

from collections import Counter
from collections.abc import Sequence

import torch

from segue.model.pool import StatePool
from segue.rollout.engine.request import CachedState, SharedPages
from segue.rollout.engine.stats import EngineStats


class StateMemory:
    """Admission to a state pool.

    A session that samples holds pages for its longest possible stream; full pages that a fork shares with its parent
    are counted once for all who share them. When there are too few, idle snapshots of task prefixes go first, the
    least recently used first, then states of sessions that do not run and were opened later than the one in need, the
    youngest first; none goes unless that makes room enough. Nobody takes memory from an older session, so two sessions
    never evict each other in a loop, and the oldest always gets on.
    """

    def __init__(self, pool: StatePool, stats: EngineStats) -> None:
        self._pool = pool
        self._stats = stats
        self._holders: set[CachedState] = set()
        self._free_pages = pool.num_pages

    def can_ever_hold(self, num_tokens: int) -> bool:
        """Whether a stream of so many tokens fits when nothing else is held."""
        return self._pages(num_tokens) <= self._pool.num_pages

    def has_room_for_fork(self, num_parent_tokens: int, num_tokens: int) -> bool:
        """Whether a new parent and its fork fit beside what is held.

        Args:
            num_parent_tokens: of the parent's stream, all of which but the last is fed and shared.
            num_tokens: of the fork's stream at its longest.
        """
        num_pages = self._pages(num_parent_tokens) + self._pages(num_tokens) - self._full_pages(num_parent_tokens - 1)
        return self._pool.free_slots >= 2 and num_pages <= self._free_pages

    def admit(self, state: CachedState, num_tokens: int, *, fork_of: CachedState | None = None) -> bool:
        """Set memory aside for a stream of so many tokens, and a slot if the session has none.

        Args:
            fork_of: the state that a new slot starts as a copy of; it is not evicted meanwhile.
        Returns:
            False where room cannot be made; nothing was set aside or dropped then.
        """
        num_shared_pages = state.num_shared_pages
        if state.slot is None and fork_of is not None:
            num_shared_pages = self._full_pages(fork_of.num_fed)
        num_new_pages = max(self._pages(num_tokens) - num_shared_pages - state.num_own_pages, 0)
        num_new_slots = int(state.slot is None)
        victims = self._choose_victims(self._candidates(state, fork_of), num_new_pages, num_new_slots)
        if victims is None:
            return False
        for victim in victims:
            self.drop(victim)
        self._free_pages -= num_new_pages
        state.num_own_pages += num_new_pages
        if state.slot is None:
            self._take_slot(state, fork_of)
        return True

    def trim(self, state: CachedState) -> None:
        """Give back pages set aside beyond what the state of an idle session holds."""
        num_spare_pages = state.num_shared_pages + state.num_own_pages - self._pages(state.num_fed)
        state.num_own_pages -= num_spare_pages
        self._free_pages += num_spare_pages

    def drop(self, state: CachedState) -> None:
        """Forget a state, if there is one; its session can be fed again from its tokens."""
        if state.slot is None:
            return
        self._free_pages += _reclaimable_pages([state])
        for pages in state.shared_pages:
            pages.num_owners -= 1
        self._pool.free(state.slot)
        self._holders.remove(state)
        state.slot, state.num_own_pages, state.shared_pages = None, 0, ()
        state.oldest_version = state.newest_version = None

    def _pages(self, num_tokens: int) -> int:
        return self._pool.pages_needed(0, num_tokens)

    def _full_pages(self, num_tokens: int) -> int:
        return num_tokens // self._pool.page_size

    def _take_slot(self, state: CachedState, parent: CachedState | None) -> None:
        # tensors that grew in a forward, which runs in inference mode, can only be written in that mode
        with torch.inference_mode():
            if parent is None or parent.slot is None:
                state.slot = self._pool.allocate()
                self._stats.num_missed += state.had_state
            else:
                state.slot = self._pool.fork(parent.slot)
                self._share(parent, state)
                state.oldest_version, state.newest_version = parent.oldest_version, parent.newest_version
                state.session.inherit_experts(parent.session, state.slot.num_tokens)
                self._stats.num_forked += 1
        state.had_state = True
        self._holders.add(state)

    def _share(self, parent: CachedState, fork: CachedState) -> None:
        """Count the parent's full pages for both."""
        num_unshared_pages = self._full_pages(parent.num_fed) - parent.num_shared_pages
        if num_unshared_pages:
            parent.num_own_pages -= num_unshared_pages
            parent.shared_pages += (SharedPages(num_pages=num_unshared_pages, num_owners=1),)
        fork.shared_pages = parent.shared_pages
        for pages in fork.shared_pages:
            pages.num_owners += 1

    def _candidates(self, state: CachedState, fork_of: CachedState | None) -> list[CachedState]:
        """Whose memory the session may take, in the order of taking."""
        idle = [h for h in self._holders if h.is_evictable and h is not fork_of and h is not state]
        prefixes = [holder for holder in idle if holder.session.id.index is None]
        younger = [holder for holder in idle if holder.session.id.index is not None and holder.age > state.age]
        return [
            *sorted(prefixes, key=lambda holder: holder.last_used),
            *sorted(younger, key=lambda holder: -holder.age),
        ]

    def _choose_victims(
        self, candidates: list[CachedState], num_pages: int, num_slots: int
    ) -> list[CachedState] | None:
        """The first candidates that make room enough, less those that the others make superfluous; None: all do not."""

        def suffices(victims: list[CachedState]) -> bool:
            has_slots = self._pool.free_slots + len(victims) >= num_slots
            return has_slots and self._free_pages + _reclaimable_pages(victims) >= num_pages

        if not suffices(candidates):
            return None
        victims: list[CachedState] = []
        while not suffices(victims):
            victims.append(candidates[len(victims)])
        for victim in reversed(victims[:-1]):
            others = [other for other in victims if other is not victim]
            if suffices(others):
                victims = others
        return victims


def _reclaimable_pages(states: Sequence[CachedState]) -> int:
    """Pages that are free once all of these states are dropped."""
    owners = Counter(pages for state in states for pages in state.shared_pages)
    shared = sum(pages.num_pages for pages, count in owners.items() if count == pages.num_owners)
    return sum(state.num_own_pages for state in states) + shared
