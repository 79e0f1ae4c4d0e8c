"""Who may keep a state: slots and pages are set aside before they are used, so no forward runs out of them."""

import torch

from segue.model.pool import StatePool
from segue.rollout.engine.request import CachedState
from segue.rollout.engine.stats import EngineStats


class StateMemory:
    """Admission to a state pool.

    A session that samples holds pages for its longest possible stream. When there are too few, idle snapshots of task
    prefixes go first, the least recently used first, then states of sessions that do not run and were opened later than
    the one in need, the youngest first. Nobody takes memory from an older session, so two sessions never evict each
    other in a loop, and the oldest always gets on.
    """

    def __init__(self, pool: StatePool, stats: EngineStats) -> None:
        self._pool = pool
        self._stats = stats
        self._holders: set[CachedState] = set()
        self._free_pages = pool.num_pages

    def can_ever_hold(self, num_tokens: int) -> bool:
        """Whether a stream of so many tokens fits when nothing else is held."""
        return self._pages(num_tokens) <= self._pool.num_pages

    def has_room(self, *token_counts: int) -> bool:
        """Whether new states of so many tokens each fit beside what is held."""
        return len(token_counts) <= self._pool.free_slots and sum(map(self._pages, token_counts)) <= self._free_pages

    def admit(self, state: CachedState, num_tokens: int, *, fork_of: CachedState | None = None) -> bool:
        """Set memory aside for a stream of so many tokens, and a slot if the session has none.

        Args:
            fork_of: the state that a new slot starts as a copy of; it is not evicted meanwhile.
        Returns:
            False where room cannot be made; nothing was set aside then.
        """
        num_new_pages = max(self._pages(num_tokens) - state.num_pages, 0)
        num_new_slots = int(state.slot is None)
        while num_new_pages > self._free_pages or num_new_slots > self._pool.free_slots:
            victim = self._find_victim(state, fork_of)
            if victim is None:
                return False
            self.drop(victim)
            self._stats.num_evicted += 1
        self._free_pages -= num_new_pages
        state.num_pages += num_new_pages
        if state.slot is None:
            self._take_slot(state, fork_of)
        return True

    def trim(self, state: CachedState) -> None:
        """Give back pages set aside beyond what the state of an idle session holds."""
        num_spare_pages = state.num_pages - self._pages(state.num_fed)
        state.num_pages -= num_spare_pages
        self._free_pages += num_spare_pages

    def drop(self, state: CachedState) -> None:
        """Forget a state, if there is one; its session can be fed again from its tokens."""
        if state.slot is None:
            return
        self._pool.free(state.slot)
        self._free_pages += state.num_pages
        self._holders.remove(state)
        state.slot, state.num_pages = None, 0
        state.oldest_version = state.newest_version = None

    def _pages(self, num_tokens: int) -> int:
        return self._pool.pages_needed(0, num_tokens)

    def _take_slot(self, state: CachedState, parent: CachedState | None) -> None:
        # tensors that grew in a forward, which runs in inference mode, can only be written in that mode
        with torch.inference_mode():
            if parent is None or parent.slot is None:
                state.slot = self._pool.allocate()
                self._stats.num_missed += state.had_state
            else:
                state.slot = self._pool.fork(parent.slot)
                state.oldest_version, state.newest_version = parent.oldest_version, parent.newest_version
                state.session.inherit_experts(parent.session, state.slot.num_tokens)
                self._stats.num_forked += 1
        state.had_state = True
        self._holders.add(state)
        self._stats.num_admitted += 1
        self._stats.peak_slots = max(self._stats.peak_slots, len(self._holders))

    def _find_victim(self, state: CachedState, fork_of: CachedState | None) -> CachedState | None:
        idle = [h for h in self._holders if h.is_evictable and h is not fork_of and h is not state]
        prefixes = [holder for holder in idle if holder.session.id.index is None]
        if prefixes:
            return min(prefixes, key=lambda holder: holder.last_used)
        younger = [holder for holder in idle if holder.age > state.age]
        return max(younger, key=lambda holder: holder.age, default=None)
