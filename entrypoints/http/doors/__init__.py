"""Doors: APIs beside Responses, whose requests take the same way through the server.

chat             Chat Completions
completions      Completions, which have a prompt in place of messages
messages         Anthropic's Messages
citations.py     the pages that an answer cites
places.py        the fields of the request that stands for the client's -> those that it sent
seeds.py         the seeds of several answers to one prompt
sent_items.py    the items of a conversation, each with its place
server_tools.py  the tools of Responses that all clients can offer
"""
