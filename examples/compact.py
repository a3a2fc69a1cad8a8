"""Shorten a long conversation, and go on from what is left of it."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000/v1"), api_key="none")
talk = [
    {"role": "user", "content": "My cat is called Mina."},
    {"role": "assistant", "content": "A fine name."},
]
window = client.responses.compact(model="scripted", input=talk).output
print([item.type for item in window])

answer = client.responses.create(
    model="scripted", input=[*window, {"role": "user", "content": "What is my cat called?"}]
)
print(answer.output_text)
