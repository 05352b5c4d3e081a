"""A helper that dies before it is ready, and both of its ends are seen in one look."""

import socket

from xce_nodeagent.privileged import ops
from xce_nodeagent.privileged.channel import Channel, encode


def test_a_helper_that_is_dead_before_it_is_looked_at_takes_nobody_with_it(stage):
    # The one in its place gets the numbers of its descriptors, in the middle of that look.
    one = stage("--socket", "FOLDER/helpers.sock", "--broken", "witness", "--late")
    one.until(lambda: one.log.read_text().count("starting witness") > 2, "three have died")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        end.settimeout(10)
        end.connect(str(one.folder / "helpers.sock"))
        end.send(encode(ops.Next("prober")))
        packet = Channel(end).receive()
        assert packet is not None
        packet.close()
    assert one.process.poll() is None, one.log.read_text()
