"""Streams as vLLM 0.32 writes them, for the watcher tests."""

from __future__ import annotations

CHAT_ID = "chatcmpl-7f3a"
_HEAD = '{"id":"chatcmpl-7f3a","object":"chat.completion.chunk","created":1780000000,"model":"qwen","choices":['


def chat_chunk(delta: str, finish: str = "null") -> bytes:
    choice = f'{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{finish},"token_ids":null}}'
    return f"data: {_HEAD}{choice}]}}\n\n".encode()


ROLE = chat_chunk('{"role":"assistant","content":""}')
HELLO = chat_chunk('{"content":"Hello"}')
CHINESE = chat_chunk('{"content":"你好 🦊"}')
REASONING = chat_chunk('{"reasoning":"Let me think"}')
TOOL = chat_chunk(
    '{"tool_calls":[{"id":"call_1","type":"function","index":0,"function":{"name":"f","arguments":"{}"}}]}'
)
STOP = chat_chunk('{"content":""}', '"stop"')
USAGE = (
    f'data: {_HEAD}],"usage":{{"prompt_tokens":11,"total_tokens":14,"completion_tokens":3,'
    '"prompt_tokens_details":{"cached_tokens":8},"completion_tokens_details":{"reasoning_tokens":1}}}\n\n'
).encode()
DONE = b"data: [DONE]\n\n"
PING = b": keep-alive\n\n"
ERROR = b'data: {"error":{"message":"boom","type":"InternalServerError","param":null,"code":500}}\n\n'

CHAT = PING + ROLE + REASONING + HELLO + CHINESE + TOOL + STOP
CHAT_FULL = CHAT + USAGE + DONE

COMPLETIONS = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"q",'
    b'"choices":[{"index":0,"text":" there","logprobs":null,"finish_reason":"length","stop_reason":null}],"usage":null}'
    b"\n\n"
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"q","choices":[],'
    b'"usage":{"prompt_tokens":4,"total_tokens":5,"completion_tokens":1}}\n\n'
    b"data: [DONE]\n\n"
)


def named(event: str, data: str) -> bytes:
    return f"event: {event}\ndata: {data}\n\n".encode()


MESSAGES = b"".join(
    (
        named(
            "message_start",
            '{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],'
            '"model":"q","stop_reason":null,"usage":{"input_tokens":20,"output_tokens":0}}}',
        ),
        named("ping", '{"type":"ping"}'),
        named(
            "content_block_start",
            '{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}',
        ),
        named(
            "content_block_delta",
            '{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}',
        ),
        named("content_block_stop", '{"type":"content_block_stop","index":0}'),
        named(
            "content_block_delta",
            '{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"你好"}}',
        ),
        named(
            "message_delta",
            '{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":20,"output_tokens":5,'
            '"cache_read_input_tokens":16}}',
        ),
        named("message_stop", '{"type":"message_stop"}'),
    )
)

RESPONSES = b"".join(
    (
        named(
            "response.created",
            '{"response":{"id":"resp_1","object":"response","status":"in_progress","output":[],"usage":null},'
            '"sequence_number":0,"type":"response.created"}',
        ),
        named(
            "response.reasoning_text.delta",
            '{"content_index":0,"delta":"hm","item_id":"r","output_index":0,"sequence_number":3,'
            '"type":"response.reasoning_text.delta"}',
        ),
        named(
            "response.output_text.delta",
            '{"content_index":0,"delta":"你好","item_id":"m","output_index":1,"sequence_number":4,'
            '"type":"response.output_text.delta"}',
        ),
        named(
            "response.completed",
            '{"response":{"id":"resp_1","object":"response","status":"completed","output":[{"type":"message"}],'
            '"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":2,'
            '"output_tokens_details":{"reasoning_tokens":1},"total_tokens":11}},'
            '"sequence_number":9,"type":"response.completed"}',
        ),
    )
)
