# mypy: ignore-errors
"""A tour of the OpenAI side with `langchain-openai`, unmodified; run with a Python that has it.

    python langchain_tour.py BASE_URL

The server has `tiny`, a chat model, and `encoder`, which makes embeddings. Any difference ends the tour.
"""

import asyncio
import sys

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

URL = sys.argv[1]
shared = {"base_url": URL, "api_key": "none", "temperature": 0, "max_retries": 0}
chat = ChatOpenAI(model="tiny", max_tokens=8, stream_usage=True, **shared)
messages = [SystemMessage("w1"), HumanMessage("w7 w8 w9")]

answer = chat.invoke(messages)
assert isinstance(answer, AIMessage)
assert answer.content
assert answer.usage_metadata["output_tokens"] == 8, answer.usage_metadata
assert answer.response_metadata["finish_reason"] == "length"

chunks = list(chat.stream(messages))
assert "".join(chunk.content for chunk in chunks) == answer.content
assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) == 8

assert [each.content for each in chat.batch([messages] * 3)] == [answer.content] * 3


async def again():
    assert (await chat.ainvoke(messages)).content == answer.content
    return "".join([chunk.content async for chunk in chat.astream(messages)])


assert asyncio.run(again()) == answer.content

chain = ChatPromptTemplate.from_messages([("system", "w1"), ("human", "{said}")]) | chat
assert chain.invoke({"said": "w7 w8 w9"}).content == answer.content

probed = chat.bind(logprobs=True, top_logprobs=2).invoke(messages)
assert len(probed.response_metadata["logprobs"]["content"]) == 8

assert OpenAI(model="tiny", max_tokens=4, **shared).invoke("w1 w2")

embeddings = OpenAIEmbeddings(model="encoder", base_url=URL, api_key="none", check_embedding_ctx_length=False)
first, second = embeddings.embed_documents(["w1 w2", "w3"])
assert len(first) == len(second) == 48
assert all(abs(a - b) < 1e-6 for a, b in zip(embeddings.embed_query("w1 w2"), first, strict=True))

refused = ""
try:
    ChatOpenAI(model="nothing", **shared).invoke(messages)
except Exception as error:
    refused = type(error).__name__
assert refused.endswith("NotFoundError"), refused
print("the tour is over")
