"""Sub-agents: the responses that the model of a response starts, and the tree that they are.

runs       AgentRuns: what the tree needs of the services that run responses
registry   AgentRegistry: the sub-agents of each tree, counted for all servers
requests   the request of a sub-agent, made of the one of the agent that starts it
children   Children: the sub-agents of one response, and what is new of them
client_outputs ClientOutputs: what the client injects, and the sub-agents that go on with it
sub_agents SubAgents: runs the calls of one response, and reads its messages
"""
