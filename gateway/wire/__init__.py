"""SANS-IO: bytes to values and back. Nothing here waits, reads a clock or opens anything.

endpoints   exact paths of the model endpoints     body       what the gateway must know of a request body
multipart   the same for audio uploads             textsize   how much text a prompt is
headers     request heads up, response heads down  vllm       what a replica tells of itself
watch       the observer of one answer: sse (streams), document (whole JSON)
openai, anthropic   what events, bodies and errors of each family say
errors_out  a refusal in the shape its client expects
"""
