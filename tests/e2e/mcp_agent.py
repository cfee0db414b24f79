"""An agent made with the official MCP SDK. The test decides what it does: a line of JSON in, one out."""

import asyncio
import json
import sys

from mcp import ClientSession, MCPError, StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client

BINARY, FOLDER, LIFECYCLE = sys.argv[1:4]


def say(value):
    print(json.dumps(value), flush=True)


def plain(model):
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def act(session, request):
    try:
        if request["do"] == "list":
            return plain(await session.list_tools())
        return plain(await session.call_tool(request["tool"], request.get("arguments")))
    except MCPError as error:
        return {"protocol_error": error.error.code, "message": error.error.message}


async def serve(session):
    while line := await asyncio.to_thread(sys.stdin.readline):
        say(await act(session, json.loads(line)))


async def main():
    # It gets PATH, HOME and the like, and nothing else of this environment.
    server = StdioServerParameters(
        command=BINARY, args=["mcp"], env={"SPACEPORT_CONFIG_DIR": FOLDER, "SPACEPORT_TOKEN": "not-for-agents"}
    )
    if LIFECYCLE == "initialize":
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            say(plain(await session.initialize()))
            await serve(session)
    else:
        async with Client(server) as client:
            say({"protocolVersion": client.protocol_version})
            await serve(client)


asyncio.run(main())
