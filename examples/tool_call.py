"""Let the model call your function, and send it the result."""

import json
import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
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
question = "What is the weather in Bonn?"
# The scripted model plays this script; a real model needs only the question.
turns = [{"call": "get_weather", "args": {"city": "Bonn"}}, {"say": "It is 21 degrees in Bonn."}]
first = client.responses.create(
    model="scripted", input=f"{question} @@script {json.dumps(turns)}", tools=[weather]
)
call = next(item for item in first.output if item.type == "function_call")
print("you:            ", question)
print("the model calls:", call.name, json.loads(call.arguments))
print("we answer:       21 degrees")
second = client.responses.create(
    model="scripted",
    previous_response_id=first.id,
    tools=[weather],
    input=[{"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}],
)
print("the model says: ", second.output_text)
