"""An environment of your own: put letters in order by swapping neighbours, in as few swaps as it takes."""

import json

import gymnasium

from segue.envs.tool import tool
from segue.envs.tool_env import Task, ToolEnv, ToolResult


class Swaps(ToolEnv):
    """Letters in a row, of which each seed draws an order.

    Reward terms:
        success: 1 for the row in order.
        efficiency: up to 0.2, less for each swap that the order did not need.
    """

    def __init__(self, num_letters: int = 4) -> None:
        self.num_letters = num_letters
        self.max_calls = 2 * num_letters

    def begin(self, seed, options):
        """The task of a seed; everything random comes from `self.np_random`, which is seeded with it."""
        if options:
            raise ValueError(f"Swaps has no options, got {options}")
        self.row = [chr(ord("a") + int(number)) for number in self.np_random.permutation(self.num_letters)]
        if self._num_wrong() == 0:
            self.row.reverse()
        self.num_needed, self.num_swaps = self._num_wrong(), 0
        return Task(user=f"put in order: {' '.join(self.row)}", info={"question_class": f"{self.num_needed} swaps"})

    @tool("Swap the letter at a place, from 1, with the one behind it.")
    def swap(self, place: int) -> ToolResult:
        """One call of the policy's; what does not fit the type hints never comes here."""
        if not 1 <= place < len(self.row):
            return ToolResult(observation=f"error: place must be from 1 to {len(self.row) - 1}, got {place}")
        self.row[place - 1 : place + 1] = reversed(self.row[place - 1 : place + 1])
        self.num_swaps += 1
        if self._num_wrong():
            return ToolResult(observation=" ".join(self.row))
        terms = {"success": 1.0, "efficiency": 0.2 * self.num_needed / self.num_swaps}
        return ToolResult(observation="in order", reward_terms=terms, terminated=True, is_success=True)

    def expert(self, skill, rng):
        """Optional: the next turn of a demonstrator, for `segue pretrain`; the fallible one errs by `rng`."""
        wrong = [i for i in range(1, len(self.row)) if self.row[i - 1] > self.row[i]]
        is_slip = skill == "fallible" and rng.random() < 0.3
        place = rng.randrange(1, len(self.row)) if is_slip else wrong[0]
        return {"response": "", "calls": [{"name": "swap", "arguments": {"place": place}}]}

    def snapshot(self):
        """Optional: the episode as data, so that it survives the process that plays it."""
        return json.dumps([self.row, self.num_needed, self.num_swaps]).encode()

    def restore(self, data):
        """Takes up what `snapshot` gave."""
        self.row, self.num_needed, self.num_swaps = json.loads(data)

    def _num_wrong(self) -> int:
        """Pairs in the wrong order: the fewest swaps of neighbours that mend it."""
        row = self.row
        return sum(row[i] > row[j] for j in range(len(row)) for i in range(j))


gymnasium.register(id="Swaps-v0", entry_point=Swaps)
