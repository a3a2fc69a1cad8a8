"""`/v1/chat/completions`: the Chat Completions API (docs/guides/chat_completions.md).

request.py     the types of a request's body
reading.py     a request -> the CreateResponse that stands for it
input.py       its messages -> items
tools.py       its tools and its choice of them
completion.py  a finished Response -> a completion
chunks.py      events -> chunks
routes.py      the handler
"""
