-- For lists of a tenant's responses and conversations, by when they were created.
CREATE INDEX responses_listed ON responses (tenant, number) WHERE body IS NOT NULL;
CREATE INDEX conversations_listed ON conversations (tenant, number);
