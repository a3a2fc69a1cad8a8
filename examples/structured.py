"""Get an answer as an object of your own."""

import os

from openai import OpenAI
from pydantic import BaseModel


class Place(BaseModel):
    city: str
    population: int


client = OpenAI(base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000/v1"), api_key="none")
response = client.responses.parse(model="scripted", input="Name a place.", text_format=Place)
print(response.output_parsed)
