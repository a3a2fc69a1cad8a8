"""Create a response and read its text."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
question = "Say hello."
response = client.responses.create(model="scripted", input=question)
print("you:  ", question)
print("model:", response.output_text)
print(f"{response.id} is {response.status} and took {response.usage.total_tokens} tokens")
