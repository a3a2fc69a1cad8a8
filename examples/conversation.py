"""Keep a conversation on the server, and show what it holds."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000/v1"), api_key="none")
conversation = client.conversations.create(metadata={"topic": "greetings"})
for text in ("Say hello.", "Now say goodbye."):
    response = client.responses.create(model="scripted", conversation=conversation.id, input=text)
    print(response.output_text)
print([item.role for item in client.conversations.items.list(conversation.id, order="asc")])
