"""Store a conversation on the server, and list its items."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
conversation = client.conversations.create(metadata={"topic": "greetings"})
for text in ("Say hello.", "Now say goodbye."):
    response = client.responses.create(model="scripted", conversation=conversation.id, input=text)
    print("model:", response.output_text)
print(f"{conversation.id} holds:")
for item in client.conversations.items.list(conversation.id, order="asc"):
    print(f"  {item.role}: {item.content[0].text}")
