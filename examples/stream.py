"""Stream a response while the model writes it."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
with client.responses.stream(model="scripted", input="Count with me: one two three.") as stream:
    for event in stream:
        if event.type == "response.output_text.delta":
            print(event.delta, end="|", flush=True)  # one delta after the other
    final = stream.get_final_response()
print(f"\n{final.status} after {final.usage.output_tokens} tokens")
