"""Two turns over one connection, of which nothing is stored."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000/v1"), api_key="none")
previous = None
with client.responses.connect() as connection:
    for question in ("Say hello.", "And again."):
        connection.response.create(
            model="scripted", input=question, previous_response_id=previous, store=False
        )
        for event in connection:
            if event.type == "response.completed":
                previous = event.response.id
                print(event.response.output_text)
                break
