"""Create a response and read its text."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000/v1"), api_key="none")
response = client.responses.create(model="scripted", input="Say hello.")
print(response.output_text)
