"""Decisions with the official SDK, which has them since its version 3.57."""

from __future__ import annotations

import openai
import pytest
from openai import OpenAI

pytestmark = pytest.mark.clients

types = pytest.importorskip("openai.types.decision")


@pytest.mark.parametrize("model", ["scripted-chat", "scripted-harmony"])
def test_a_decision_fits_its_declared_type(client: OpenAI, model: str) -> None:
    decision = client.decisions.create(  # type: ignore[attr-defined, unused-ignore]
        model=model,
        input=[{"role": "user", "content": "true true, and an invoice"}],
        questions=[
            {"type": "predicate", "name": "sure", "instructions": "It is sure."},
            {
                "type": "choice",
                "instructions": "Which team?",
                "choices": [{"value": True}, {"value": "billing", "description": "invoice"}],
            },
            {"type": "score", "instructions": "?", "levels": [{"label": "l"}, {"label": "h"}]},
        ],
    )
    types.Decision.model_validate(decision.to_dict(mode="json"), strict=True)
    kinds = [(answer.type, answer.name) for answer in decision.answers]
    assert kinds == [("predicate", "sure"), ("choice", None), ("score", None)]
    with pytest.raises(openai.BadRequestError) as refused:
        client.decisions.create(  # type: ignore[attr-defined, unused-ignore]
            model=model, input="a", questions=[]
        )
    assert refused.value.param == "questions"
