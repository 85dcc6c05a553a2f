"""Arrays to the sites and back, a number of times; each site adds its number."""

import time

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()


@client.query()
def answer(message, context):
    numbers = message.content["arrays"].to_numpy_ndarrays()[0]
    numbers = numbers + int(context.node_config["partition-id"])
    return Message(RecordDict({"arrays": ArrayRecord([numbers])}), reply_to=message)


@server.main()
def main(grid, context):
    deadline = time.monotonic() + 240
    wanted = int(context.run_config["sites"])
    for number in range(int(context.run_config["rounds"])):
        total = 0.0
        while len(nodes := list(grid.get_node_ids())) < wanted:
            pause(deadline)
        waiting = ask(grid, nodes, number)
        while waiting:
            for reply in grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    print("lost a site, asking again", flush=True)
                    time.sleep(1)
                    waiting |= ask(grid, [node], number)
                else:
                    total += float(reply.content["arrays"].to_numpy_ndarrays()[0].sum())
            pause(deadline)
        print(f"round {number} total {total}", flush=True)


def ask(grid, nodes, number):
    content = RecordDict({"arrays": ArrayRecord([np.full(3, float(number))])})
    messages = [Message(content, node, "query", ttl=25.0) for node in nodes]
    return dict(zip(grid.push_messages(messages), nodes, strict=True))


def pause(deadline):
    if time.monotonic() > deadline:
        raise TimeoutError
    time.sleep(0.1)
