"""H4: what the ``openai`` and ``anthropic`` SDKs do, written once and run against any server.

A test module subclasses the case classes and gives them a ``target`` fixture. Answers of a random model are
nonsense, so the cases check the protocol: shapes, lengths, finish reasons, usage, errors.
"""

from tests.e2e.sdk_anthropic import AnthropicCases
from tests.e2e.sdk_chat import ChatCases, ChatErrorCases
from tests.e2e.sdk_chat_tools import ChatToolCases
from tests.e2e.sdk_openai import OpenAICases

__all__ = ["AnthropicCases", "ChatCases", "ChatErrorCases", "ChatToolCases", "OpenAICases"]
