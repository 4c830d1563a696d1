"""Chat with a server through the `openai` package: a whole answer, a streamed one, and one of a given form.

pip install openai
smelt serve chat=MODEL.gguf
python examples/serve/with_openai.py [--model chat] [--url http://127.0.0.1:8000]
"""

import argparse
from typing import Any

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}


def main() -> None:
    import openai

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="chat")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    given = parser.parse_args()

    client = openai.OpenAI(base_url=f"{given.url}/v1", api_key="none")
    messages: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
    whole = client.chat.completions.create(model=given.model, messages=messages, max_tokens=32, temperature=0)
    print(whole.choices[0].message.content)

    for chunk in client.chat.completions.create(model=given.model, messages=messages, max_tokens=32, stream=True):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()

    schema = {"name": "city", "schema": {**CITY, "additionalProperties": False}}
    form: Any = {"type": "json_schema", "json_schema": schema}
    formed = client.chat.completions.create(model=given.model, messages=messages, max_tokens=64, response_format=form)
    print(formed.choices[0].message.content)


if __name__ == "__main__":
    main()
