"""Completions (`POST /v1/completions`): the model goes on from a prompt as it is.

request.py     the body
reading.py     the body -> the CreateResponses that stand for it, one for each answer
completion.py  events and responses -> chunks and the completion
routes.py      the route
"""
