"""`/v1/messages`: Anthropic's Messages API (docs/guides/messages.md).

request.py   the types of a request's body
reading.py   a request -> the CreateResponse that stands for it
thinking.py  what it says of thinking -> reasoning
input.py     its messages -> items
content.py   its blocks -> parts
tools.py     its tools, MCP servers and choice of them
message.py   a finished Response -> a message
stream.py    events -> the events of a stream
models.py    the models, and which one answers
routes.py    the handlers
"""
