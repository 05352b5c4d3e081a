"""Where things are unless somebody says otherwise.

The units, the hooks and the documentation name the same places.
"""

CONFIG = "/etc/xce-nodeagent/config.toml"
RUNTIME = "/run/xce-nodeagent"
STATE = "/var/lib/xce-nodeagent"
SOCKET_NAME = "agent.sock"
"""Of the agent's socket, in the runtime folder."""
