"""Two responses on one WebSocket connection, without storing them."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
previous = None
with client.responses.connect() as connection:
    for question in ("Say hello.", "And again."):
        connection.response.create(
            model="scripted", input=question, previous_response_id=previous, store=False
        )
        for event in connection:
            if event.type == "response.completed":
                previous = event.response.id
                print("you:  ", question)
                print("model:", event.response.output_text)
                break
