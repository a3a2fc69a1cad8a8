"""Compact a long conversation, and continue from the result."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
conversation = [
    {"role": "user", "content": "My cat is called Mina."},
    {"role": "assistant", "content": "A fine name."},
]
compacted = client.responses.compact(model="scripted", input=conversation)
window = [item.to_dict(warnings=False) for item in compacted.output]
print("kept:", *(item["type"] for item in window))

question = "What is my cat called?"
script = ' @@script [{"say": "Mina."}]'  # a real model knows it from the summary
answer = client.responses.create(
    model="scripted", input=[*window, {"role": "user", "content": question + script}]
)
print("you:  ", question)
print("model:", answer.output_text)
