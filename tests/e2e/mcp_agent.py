"""An agent made with the official MCP SDK. The test decides what it does: a line of JSON in, one out."""

import asyncio
import json
import sys

import anyio
from mcp import ClientSession, MCPError, StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import ElicitResult

# With `+person`, it runs in a program whose user can be asked.
BINARY, FOLDER, LIFECYCLE, *ENDPOINT = sys.argv[1:]
LIFECYCLE, _, PERSON = LIFECYCLE.partition("+")

# What the user was asked in a call, and what they do when they are.
ASKED, ANSWERS = [], []


def say(value):
    print(json.dumps(value), flush=True)


def plain(model):
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def ask_person(context, params):
    ASKED.append(plain(params))
    return ElicitResult(**ANSWERS.pop(0))


async def call(session, request):
    told = []
    ASKED.clear()
    ANSWERS[:] = request.get("person", [])

    async def progress(moved, total, message):
        told.append([moved, total])

    callback = progress if request.get("progress") else None
    result = await session.call_tool(request["tool"], request.get("arguments"), progress_callback=callback)
    more = {"progress": told} if callback else {}
    return plain(result) | more | ({"asked": ASKED} if PERSON else {})


async def take_back(session, request):
    moving = anyio.Event()

    async def progress(moved, total, message):
        if moved > 0:
            moving.set()

    async def ask():
        await session.call_tool(request["tool"], request["arguments"], progress_callback=progress)
        moving.set()

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await moving.wait()
        group.cancel_scope.cancel()
    return {"taken_back": group.cancel_scope.cancelled_caught}


async def act(session, request):
    try:
        match request["do"]:
            case "list":
                return plain(await session.list_tools())
            case "take_back":
                return await take_back(session, request)
            case _:
                return await call(session, request)
    except MCPError as error:
        return {"protocol_error": error.error.code, "message": error.error.message}


async def serve(session):
    while line := await asyncio.to_thread(sys.stdin.readline):
        say(await act(session, json.loads(line)))


def server():
    if ENDPOINT:
        url, token = ENDPOINT
        client = create_mcp_http_client(headers={"Authorization": f"Bearer {token}"})
        return streamable_http_client(url, http_client=client)
    # It gets PATH, HOME and the like, and nothing else of this environment.
    environment = {"SPACEPORT_CONFIG_DIR": FOLDER, "SPACEPORT_TOKEN": "not-for-agents"}
    return stdio_client(StdioServerParameters(command=BINARY, args=["mcp"], env=environment))


async def main():
    person = ask_person if PERSON else None
    if LIFECYCLE == "initialize":
        async with server() as (read, write), ClientSession(read, write, elicitation_callback=person) as session:
            say(plain(await session.initialize()))
            await serve(session)
    else:
        async with Client(server(), elicitation_callback=person) as client:
            say({"protocolVersion": client.protocol_version})
            await serve(client)


asyncio.run(main())
