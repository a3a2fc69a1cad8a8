"""The persistent state: the parts of a store, one module each.

store           Store: one class that implements all parts, opens and closes
responses       ResponseStore: responses and their items; end and deletion write other parts too
conversations   ConversationStore: conversations, their items, and who may add to one
runs            RunStore: which server runs what, by leases
events          EventStore: the logs of runs that outlive their process
idempotency     IdempotencyStore: Idempotency-Keys and their responses
webhooks        Outbox: webhook deliveries that are due
api_keys        KeyStore: API keys, hashed
usage           UsageStore: how much each API key has used, counted exactly
shared_values   SharedValues: values that all servers of the store share
traces          TraceStore: what the models of ended responses read and wrote
items           how items are stored, and pages of lists
"""
