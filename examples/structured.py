"""Get an answer as an object of your own class."""

import json
import os

from openai import OpenAI
from pydantic import BaseModel


class Place(BaseModel):
    city: str
    population: int


client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
question = "Which city do you know, and how many live there?"
# The scripted model plays this script; a real model needs only the question.
turns = [{"say": json.dumps({"city": "Bonn", "population": 336000})}]
response = client.responses.parse(
    model="scripted", input=f"{question} @@script {json.dumps(turns)}", text_format=Place
)
place = response.output_parsed
print("the model wrote:", response.output_text)
print("which is:       ", repr(place))
