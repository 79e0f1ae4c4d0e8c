"""Demonstrations: the environment's own demonstrator writes the turns, and a scripted engine plays them."""

from segue.conf.schema import Skill
from segue.rollout.chat import AssistantCall, AssistantTurn, Chat
from segue.rollout.engine.scripted import Script
from segue.rollout.environments import Environments
from segue.rollout.session import Session
from segue.rollout.trajectory import Int32Array


def demonstration_script(environments: Environments, chat: Chat, skill: Skill) -> Script:
    """A script that asks a session's environment for its demonstrator's next turn."""

    async def script(session: Session) -> Int32Array:
        turn = await environments.expert(session.id.episode_id, skill.value)
        calls = tuple(AssistantCall(tool=call["name"], arguments=call["arguments"]) for call in turn["calls"])
        return chat.render_assistant(AssistantTurn(response=turn["response"], calls=calls))

    return script
