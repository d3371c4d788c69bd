"""A grid in this process: the apps meet without Ray, without a SuperLink, without a network."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


class LocalGrid(Grid):
    """Nodes that do their work at once, one after another, when a message is pushed to them."""

    def __init__(self, app: ClientApp, node_configs: Sequence[Mapping[str, Any]]) -> None:
        # A message asks this class where it comes from.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SUPERLINK_NODE_ID, 1
        self._app, self._run = app, Run.create_empty(run_id=1)
        self._contexts = {
            node: Context(1, node, dict(config), RecordDict(), {})
            for node, config in enumerate(node_configs, start=2)
        }
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        """Take another run's description."""
        self._run = run

    @property
    def run(self) -> Run:
        """The description of the run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let nodes do what messages ask for; an error on their side is a reply too."""
        numbers = []
        for message in messages:
            number = str(uuid4())
            message.metadata.__dict__["_message_id"] = number
            try:
                reply = self._app(message, self._contexts[message.metadata.dst_node_id])
            except Exception as error:
                failed = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, repr(error))
                reply = Message(failed, reply_to=message)
            self._replies[number] = reply
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand replies over, once."""
        return [self._replies.pop(one) for one in list(message_ids) if one in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Do both."""
        return self.pull_messages(self.push_messages(messages))
