"""Let the model call a function of yours, and give it the result."""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000/v1"), api_key="none")
weather = {
    "type": "function",
    "name": "get_weather",
    "description": "Current weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
first = client.responses.create(model="scripted", input="Weather in Bonn?", tools=[weather])
call = next(item for item in first.output if item.type == "function_call")
print("the model calls", call.name, json.loads(call.arguments))
second = client.responses.create(
    model="scripted",
    previous_response_id=first.id,
    tools=[weather],
    input=[{"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}],
)
print(second.output_text)
