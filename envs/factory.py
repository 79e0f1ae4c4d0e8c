"""From a configuration to environments."""

import contextlib
import difflib
import inspect

import gymnasium
from gymnasium.envs.registration import load_env_creator
from gymnasium.error import UnregisteredEnv

from segue.conf.schema import OWN_ENV_IDS, EnvConfig
from segue.envs.adapter import GymToolEnv
from segue.envs.archive.env import ArchiveEnv
from segue.envs.craft.env import CraftEnv
from segue.envs.errors import EnvironmentSetupError
from segue.envs.frames import FrameError
from segue.envs.python.env import PythonEnv
from segue.envs.python.program import ProgramLimits
from segue.envs.python.sandbox import DEFAULT_INTERPRETER, BubblewrapSandbox
from segue.envs.python.seccomp import build_filter
from segue.envs.sql.env import SqlEnv
from segue.envs.sql.executor import ProcessExecutor
from segue.envs.sql.query import QueryLimits
from segue.envs.tool_env import ToolEnv
from segue.envs.user_module import import_user_module, is_module_name

SQL_ID, PYTHON_ID, ARCHIVE_ID, CRAFT_ID = OWN_ENV_IDS


class EnvFactory:
    """Builds environments of one configuration; those that query or run programs share what does it for them."""

    def __init__(self, config: EnvConfig) -> None:
        """Prepares to build.

        Args:
            config: which environment, and its constructor's arguments.
        """
        self._config = config
        self._executor: ProcessExecutor | None = None
        self._sandbox: BubblewrapSandbox | None = None
        if config.id == SQL_ID:
            self._executor = ProcessExecutor(QueryLimits(), start_timeout_s=config.start_timeout_s)

    def check(self) -> None:
        """Builds what every episode needs, so that a fault shows before the first one.

        Raises:
            EnvironmentSetupError: an environment cannot be found, built or used, the query process did not start, or
                the sandbox does not work.
        """
        env = self.make()
        # nothing depends on it, and it is closed in the same way when an episode failed
        with contextlib.suppress(Exception, SystemExit):
            env.close()
        if self._executor is not None:
            try:
                self._executor.start()
            except (OSError, FrameError) as error:
                raise EnvironmentSetupError(f"the query process did not start: {error}") from error
        if self._sandbox is not None:
            self._check_sandbox(self._sandbox)

    def stop(self) -> None:
        """Ends the query process, if there is one; a query starts another."""
        if self._executor is not None:
            self._executor.stop()

    def make(self) -> ToolEnv:
        """Builds one environment.

        Raises:
            EnvironmentSetupError: it cannot be found, built or used.
        """
        try:
            if self._executor is not None:
                self._refuse_success_return()
                return SqlEnv(executor=self._executor, **self._config.kwargs)
            if self._config.id == PYTHON_ID:
                self._refuse_success_return()
                return self._make_python()
            if self._config.id == ARCHIVE_ID:
                self._refuse_success_return()
                return self._make_archive()
            if self._config.id == CRAFT_ID:
                self._refuse_success_return()
                return CraftEnv(**self._config.kwargs)
            return self._make_registered()
        except EnvironmentSetupError:
            raise
        except (Exception, SystemExit) as error:
            raise EnvironmentSetupError(
                f"env.id={self._config.id} cannot be built: {type(error).__name__}: {error}"
            ) from error

    def _make_python(self) -> ToolEnv:
        kwargs = dict(self._config.kwargs)
        # the sandbox's part of the arguments: it is found once, the environments are many
        interpreter = kwargs.pop("interpreter", DEFAULT_INTERPRETER)
        if self._sandbox is None:
            self._sandbox = BubblewrapSandbox(
                ProgramLimits(), interpreter=interpreter, system_call_filter=build_filter()
            )
        return PythonEnv(runner=self._sandbox, **kwargs)

    def _make_archive(self) -> ToolEnv:
        env = ArchiveEnv(**self._config.kwargs)
        if self._config.max_observation_chars < env.max_page_chars:
            raise EnvironmentSetupError(
                f"env.max_observation_chars must be at least {env.max_page_chars} for pages of this size, "
                f"got {self._config.max_observation_chars}: what is cut from a page might be asked about"
            )
        return env

    def _check_sandbox(self, sandbox: BubblewrapSandbox) -> None:
        timeout_s = self._config.call_timeout_s
        if timeout_s < sandbox.max_call_s:
            raise EnvironmentSetupError(
                f"env.call_timeout_s must be at least {sandbox.max_call_s:g} for python, got {timeout_s:g}: "
                "a program's own limits come first"
            )
        sandbox.check()

    def _make_registered(self) -> ToolEnv:
        config = self._config
        module, has_module, _ = config.id.partition(":")
        if has_module:
            if not is_module_name(module):
                raise EnvironmentSetupError(
                    "env.id must be an id of gymnasium's, behind the dotted name of the module that registers it and "
                    f"a colon (my_package:MyEnv-v0), got {config.id}"
                )
            import_user_module(module, config.import_folder, named_by=f"env.id={config.id}")
        try:
            env = gymnasium.make(config.id, disable_env_checker=True, **config.kwargs)
        except UnregisteredEnv as error:
            reason = f"{type(error).__name__}: {error}".rstrip(".")
            raise EnvironmentSetupError(f"env.id={config.id} cannot be built: {reason}{_remedy(config.id)}") from error
        except TypeError as error:
            missing = _missing_arguments(config)
            if not missing:
                raise
            keys = " and ".join(f"env.kwargs.{name}" for name in missing)
            raise EnvironmentSetupError(f"{keys} must be given for env.id={config.id}, got none") from error
        if not isinstance(env.unwrapped, ToolEnv):
            return GymToolEnv(
                env, success_return=config.success_return, max_observation_chars=config.max_observation_chars
            )
        self._refuse_success_return()
        tool_env: ToolEnv = env.unwrapped
        if env.spec is not None and env.spec.max_episode_steps is not None:
            tool_env.max_calls = env.spec.max_episode_steps
        return tool_env

    def _refuse_success_return(self) -> None:
        if self._config.success_return is not None:
            raise EnvironmentSetupError(
                f"env.success_return must be null for {self._config.id}, got {self._config.success_return}: "
                "a ToolEnv says itself what success is"
            )


def known_ids() -> list[str]:
    """Ours, and what is registered so far."""
    return [*OWN_ENV_IDS, *gymnasium.registry]


def _missing_arguments(config: EnvConfig) -> list[str]:
    """Names of the arguments that an id's constructor needs and nobody gives."""
    spec = gymnasium.registry.get(config.id.rpartition(":")[2])
    if spec is None or spec.entry_point is None:
        return []
    creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    given = {*spec.kwargs, *config.kwargs}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [
        parameter.name
        for parameter in inspect.signature(creator).parameters.values()
        if parameter.kind in by_name and parameter.default is parameter.empty and parameter.name not in given
    ]


def _remedy(env_id: str) -> str:
    """What to do about an id that nothing has registered."""
    module, _, name = env_id.rpartition(":")
    # a version in common makes short ids alike
    close = difflib.get_close_matches(name, known_ids(), n=1, cutoff=0.75)
    nearest = f"; nearest: {close[0]}" if close else ""
    if module:
        return f"; importing {module} does not register it{nearest}"
    return f"{nearest}; one that a module of yours, or of an installed package, registers is env.id=<module>:{name}"
