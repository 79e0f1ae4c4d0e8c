"""Tasks of `verifiers` tasksets as an environment: a prompt, the task's tools, `answer`, the task's own rewards.

    seed -> task of the taskset -> prompt -> tool calls -> answer(text) -> Task.score over the trace of it -> rewards

Scored is as `verifiers` scores a finished trace again: without a runtime. What needs one (a container, a set-up, tools
with a state, rewards that look into the runtime) or more than one agent is refused by name when the environment is
built.
"""

import asyncio
import functools
import inspect
import json
from typing import TYPE_CHECKING, Any

import gymnasium

from segue.envs.adapters.extra import needs_extra
from segue.envs.adapters.verifiers_toolset import LocalToolsets, find_remote_need
from segue.envs.errors import EnvironmentSetupError, InfrastructureFailure
from segue.envs.tool import tool
from segue.envs.tool_env import Task, ToolEnv, ToolResult

if TYPE_CHECKING:
    from verifiers import v1 as vf


class VerifiersEnv(ToolEnv):
    """Each seed is a task of a taskset, in its order and from its beginning again after its last."""

    def __init__(
        self,
        *,
        taskset: str,
        config: dict[str, Any] | None = None,
        select: dict[str, Any] | None = None,
        success_reward: float = 1.0,
        timeout_s: float = 20.0,
    ) -> None:
        """Loads the tasks.

        Args:
            taskset: id of an installed taskset, or a module in the launch folder.
            config: of the taskset, as its `TasksetConfig` takes it.
            select: which tasks, as verifiers' `SelectConfig` takes it, such as `{exclude: {idx: ["0:100"]}}`.
            success_reward: least sum of the weighted rewards that counts as success.
            timeout_s: deadline of a tool's set-up and of each call of one, and of scoring, in seconds;
                `env.call_timeout_s` should be longer.
        Raises:
            EnvironmentSetupError: verifiers is not installed, or the tasks need what is not here.
        """
        with needs_extra("verifiers"):
            import verifiers.v1  # noqa: F401
        self._taskset, self._taskset_config = taskset, json.dumps(config or {}, sort_keys=True)
        self._select = select or {}
        self._success_reward, self._timeout_s = success_reward, timeout_s
        self._toolsets: LocalToolsets | None = None
        self._find_task(0, {})

    def begin(self, seed: int, options: dict[str, Any]) -> Task:
        """Shows the prompt of a seed's task; the option `select` selects from all tasks in the constructor's place."""
        from verifiers.v1.types import UserMessage

        unknown = set(options) - {"select"}
        if unknown:
            raise ValueError(f"options must be select, got {sorted(unknown)}")
        self.close()
        self._task = self._find_task(seed, options)
        data = self._task.data
        self._toolsets = LocalToolsets(self._task.toolsets(self._task.config), data, self._timeout_s)
        self.tools = (*self._toolsets.specs, *type(self).tools)
        if len({spec.name for spec in self.tools}) < len(self.tools):
            raise ValueError(f"tools must have different names, got {[spec.name for spec in self.tools]}")
        self._messages: list[vf.Message] = [UserMessage(content=data.prompt_text)]
        return Task(
            user=data.prompt_text,
            system=data.system_prompt or "",
            info={"task_index": data.idx, "task_name": data.name or data.id or ""},
        )

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Runs a tool of the task's, or takes the answer."""
        from verifiers.v1.types import AssistantMessage, ToolCall, ToolMessage

        if name == "answer":
            return self.answer(**arguments)
        assert self._toolsets is not None, "an episode is running"
        text = self._toolsets.call(name, arguments)
        call = ToolCall(id=f"call_{len(self._messages)}", name=name, arguments=json.dumps(arguments))
        self._messages.append(AssistantMessage(tool_calls=[call]))
        self._messages.append(ToolMessage(tool_call_id=call.id, content=text, name=name))
        return ToolResult(observation=text)

    @tool("Answer; this ends the task.")
    def answer(self, text: str) -> ToolResult:
        """Scores the answer.

        Raises:
            InfrastructureFailure: a model that judges failed.
        """
        from verifiers.v1 import ProviderError
        from verifiers.v1.types import AssistantMessage

        trace = _make_trace(self._task, [*self._messages, AssistantMessage(content=text)])
        try:
            asyncio.run(asyncio.wait_for(self._task.score(trace), self._timeout_s))
        except ProviderError as error:
            raise InfrastructureFailure(f"a judge of the taskset {self._taskset} failed: {error}") from error
        terms = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        is_success = sum(terms.values()) >= self._success_reward
        return ToolResult(
            observation="right" if is_success else "wrong",
            reward_terms=terms,
            terminated=True,
            is_success=is_success,
            info={"metrics": {name: value for name, value in trace.metrics.items() if value is not None}},
        )

    def close(self) -> None:
        """Ends the task's tools; may be called at any time."""
        if self._toolsets is not None:
            self._toolsets.close()
            self._toolsets = None

    def _find_task(self, seed: int, options: dict[str, Any]) -> "vf.Task[Any, Any, Any]":
        select = json.dumps(options.get("select", self._select), sort_keys=True)
        tasks = _load_tasks(self._taskset, self._taskset_config, select)
        return tasks[seed % len(tasks)]


@functools.cache
def _load_tasks(taskset_id: str, config: str, select: str) -> "list[vf.Task[Any, Any, Any]]":
    """Tasks, once for all environments of this process.

    Args:
        taskset_id: as verifiers finds it.
        config, select: as JSON.
    """
    from verifiers import v1 as vf
    from verifiers.v1.configs.select import SelectConfig
    from verifiers.v1.utils.loaders import environment_class, load_taskset, taskset_config_type

    if environment_class(taskset_id) is not vf.SingleAgentEnv:
        raise EnvironmentSetupError(f"taskset must be for one agent, got {taskset_id}, which has an Env of its own")
    taskset = load_taskset(taskset_config_type(taskset_id).model_validate({**json.loads(config), "id": taskset_id}))
    if taskset.toolsets(taskset.config):
        raise EnvironmentSetupError(f"taskset must share no tools among its tasks, got {taskset_id}")
    view = taskset.select(SelectConfig.model_validate(json.loads(select)))
    if not view.bounded:
        raise EnvironmentSetupError(f"taskset must end, got {taskset_id}; set env.kwargs.select.limit to a count")
    tasks = list(view)
    if not tasks:
        raise EnvironmentSetupError(f"select must leave a task of {taskset_id}, got {select}, which leaves none")
    for task in tasks:
        need = _find_need(task)
        if need is not None:
            raise EnvironmentSetupError(f"tasks must be a prompt that an answer is scored by, got {taskset_id}: {need}")
    return tasks


def _find_need(task: "vf.Task[Any, Any, Any]") -> str | None:
    """What a task needs that is not here, in words."""
    from verifiers import v1 as vf

    kind = type(task)
    if task.NEEDS_CONTAINER or task.data.image is not None:
        return f"{kind.__name__} needs a container"
    if kind.setup is not vf.Task.setup or kind.finalize is not vf.Task.finalize:
        return f"{kind.__name__} has a set-up in a runtime"
    for toolset in kind.toolsets(task.config):
        need = find_remote_need(toolset)
        if need is not None:
            return need
    if not task.data.prompt_text:
        return f"a task of {kind.__name__} has no prompt"
    signals = [*task.hooks("reward"), *task.hooks("metric"), *(judge.score for judge in task.plugged_judges())]
    for signal in signals:
        runtime = inspect.signature(signal).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            return f"{signal.__name__} of {kind.__name__} looks into a runtime"
    return None


def _make_trace(task: "vf.Task[Any, Any, Any]", messages: "list[vf.Message]") -> "vf.Trace[Any, Any, Any]":
    """What verifiers would have recorded of an episode."""
    from verifiers import v1 as vf
    from verifiers.v1.state import state_cls

    nodes = [
        vf.MessageNode(parent=index - 1 if index else None, message=message, sampled=message.role == "assistant")
        for index, message in enumerate(messages)
    ]
    return vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=nodes,
        state=state_cls(type(task))(),
    )


gymnasium.register(id="Verifiers-v0", entry_point=VerifiersEnv)
