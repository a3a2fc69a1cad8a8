-- A PostgreSQL schema, written by the version before migration 0009: every kind of row. Triggers count what is stored.
INSERT INTO agreed VALUES ('seal_key', 'fingerprint');
INSERT INTO api_keys OVERRIDING SYSTEM VALUE VALUES (1, 'key_1', 'first', 'us', 'hash of the first', 1, NULL);
INSERT INTO api_keys OVERRIDING SYSTEM VALUE VALUES (2, 'key_2', 'second', 'them', 'hash of the second', 2, '{"limits":{"requests/min":60}}');
INSERT INTO conversations OVERRIDING SYSTEM VALUE VALUES (1, 'us', 'conv_c', 7, '{"topic":"birds"}', NULL, NULL, 5, 190);
INSERT INTO conversations OVERRIDING SYSTEM VALUE VALUES (2, 'us', 'conv_claimed', 7, '{"k":"é"}', 'resp_owned', 'srv_a', 1, 70);
INSERT INTO events VALUES (4, 0, 2, 'events 0+2
');
INSERT INTO events VALUES (4, 2, 1, 'events 2+1
');
INSERT INTO events VALUES (4, 3, 1, 'events 3+1
');
INSERT INTO events VALUES (6, 0, 2, 'events 0+2
');
INSERT INTO events VALUES (7, 0, 2, 'events 0+2
');
INSERT INTO items OVERRIDING SYSTEM VALUE VALUES (1, 'us', 2, 0, 0, NULL, NULL, 'msg_gone_in', '{"type":"message","id":"msg_gone_in","role":"user","content":"hi"}');
INSERT INTO items OVERRIDING SYSTEM VALUE VALUES (2, 'us', 2, 1, 0, NULL, NULL, 'msg_gone_out', '{"type":"message","id":"msg_gone_out","role":"assistant","content":"hello"}');
INSERT INTO items OVERRIDING SYSTEM VALUE VALUES (3, 'us', 3, 0, 0, NULL, NULL, 'msg_child_in', '{"type":"message","id":"msg_child_in","role":"user","content":"hi"}');
INSERT INTO items OVERRIDING SYSTEM VALUE VALUES (4, 'us', 3, 1, 0, NULL, NULL, 'msg_child_out', '{"type":"message","id":"msg_child_out","role":"assistant","content":"hello"}');
INSERT INTO items OVERRIDING SYSTEM VALUE VALUES (5, 'us', 4, 0, 0, NULL, NULL, 'msg_log_in', '{"type":"message","id":"msg_log_in","role":"user","content":"hi"}');
INSERT INTO items OVERRIDING SYSTEM VALUE VALUES (6, 'us', 4, 1, 0, NULL, NULL, 'msg_log_out', '{"type":"message","id":"msg_log_out","role":"assistant","content":"hello"}');
INSERT INTO items OVERRIDING SYSTEM VALUE VALUES (7, 'us', NULL, NULL, NULL, 1, 0, 'msg_x', '{"type":"message","id":"msg_x","role":"user","content":"hi"}');
INSERT INTO items OVERRIDING SYSTEM VALUE VALUES (8, 'us', NULL, NULL, NULL, 1, 1, 'msg_y', '{"type":"message","id":"msg_y","role":"user","content":"hi"}');
INSERT INTO items OVERRIDING SYSTEM VALUE VALUES (9, 'us', 5, 0, 0, 1, 2, 'msg_in_in', '{"type":"message","id":"msg_in_in","role":"user","content":"hi"}');
INSERT INTO items OVERRIDING SYSTEM VALUE VALUES (10, 'us', 5, 1, 0, 1, 3, 'msg_in_out', '{"type":"message","id":"msg_in_out","role":"assistant","content":"hello"}');
INSERT INTO items OVERRIDING SYSTEM VALUE VALUES (11, 'us', NULL, NULL, NULL, 1, 4, 'msg_z', '{"type":"message","id":"msg_z","role":"user","content":"hi"}');
INSERT INTO items OVERRIDING SYSTEM VALUE VALUES (12, 'us', NULL, NULL, NULL, 2, 0, 'msg_w', '{"type":"message","id":"msg_w","role":"user","content":"hi"}');
INSERT INTO items OVERRIDING SYSTEM VALUE VALUES (13, 'us', 6, 0, 0, NULL, NULL, 'msg_owned_in', '{"type":"message","id":"msg_owned_in","role":"user","content":"hi"}');
INSERT INTO items OVERRIDING SYSTEM VALUE VALUES (14, 'us', 7, 0, 0, NULL, NULL, 'msg_waits_in', '{"type":"message","id":"msg_waits_in","role":"user","content":"hi"}');
INSERT INTO items OVERRIDING SYSTEM VALUE VALUES (15, 'them', 8, 0, 0, NULL, NULL, 'msg_theirs_in', '{"type":"message","id":"msg_theirs_in","role":"user","content":"hi"}');
INSERT INTO items OVERRIDING SYSTEM VALUE VALUES (16, 'them', 8, 1, 0, NULL, NULL, 'msg_theirs_out', '{"type":"message","id":"msg_theirs_out","role":"assistant","content":"hello"}');
INSERT INTO key_counters VALUES ('key_2', 'requests/min', 60, 7, 4000000000);
INSERT INTO key_slots VALUES ('key_2', 'us', 'resp_owned', 'srv_a');
INSERT INTO notices VALUES ('evt_2', 'us', 'other', '{"n":2}', 0, '2026-11-28 01:24:48.07244+00');
INSERT INTO notices VALUES ('evt_1', 'us', 'main', '{"n":1}', 1, '2026-11-28 01:24:48.083783+00');
INSERT INTO repeats VALUES ('us', 'kept key', 'resp_log', 'fingerprint of the request', 'srv_a', 4000000000);
INSERT INTO repeats VALUES ('us', 'reserved key', 'resp_never', 'other', 'srv_a', 4000000000);
INSERT INTO responses OVERRIDING SYSTEM VALUE VALUES (3, 'us', 'resp_child', 2, 'completed', 0, NULL, '2026-11-28 01:24:48.04761+00', NULL, NULL, NULL, 843, NULL, '{"id":"resp_child","object":"response","created_at":0,"completed_at":null,"status":"completed","background":false,"error":null,"incomplete_details":null,"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"model":"m","output":[],"parallel_tool_calls":true,"previous_response_id":"resp_gone","conversation":null,"reasoning":{"effort":null,"summary":null},"service_tier":"default","store":true,"temperature":1.0,"text":{"format":{"type":"text"},"verbosity":"medium"},"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"truncation":"disabled","usage":null,"user":null,"safety_identifier":null,"prompt_cache_key":null,"metadata":{}}');
INSERT INTO responses OVERRIDING SYSTEM VALUE VALUES (2, 'us', 'resp_gone', NULL, 'deleted', 0, 4000000000, '2026-11-28 01:24:48.040295+00', NULL, NULL, NULL, 833, NULL, NULL);
INSERT INTO responses OVERRIDING SYSTEM VALUE VALUES (4, 'us', 'resp_log', NULL, 'completed', 0, 4000000000, '2026-11-28 01:24:48.071882+00', NULL, NULL, 4, 868, NULL, '{"id":"resp_log","object":"response","created_at":0,"completed_at":null,"status":"completed","background":false,"error":null,"incomplete_details":null,"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"model":"m","output":[],"parallel_tool_calls":true,"previous_response_id":null,"conversation":null,"reasoning":{"effort":null,"summary":null},"service_tier":"default","store":true,"temperature":1.0,"text":{"format":{"type":"text"},"verbosity":"medium"},"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"truncation":"disabled","usage":null,"user":null,"safety_identifier":null,"prompt_cache_key":null,"metadata":{}}');
INSERT INTO responses OVERRIDING SYSTEM VALUE VALUES (5, 'us', 'resp_in', NULL, 'completed', 0, NULL, '2026-11-28 01:24:48.098374+00', 1, 2, NULL, 838, NULL, '{"id":"resp_in","object":"response","created_at":0,"completed_at":null,"status":"completed","background":false,"error":null,"incomplete_details":null,"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"model":"m","output":[],"parallel_tool_calls":true,"previous_response_id":null,"conversation":{"id":"conv_c"},"reasoning":{"effort":null,"summary":null},"service_tier":"default","store":true,"temperature":1.0,"text":{"format":{"type":"text"},"verbosity":"medium"},"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"truncation":"disabled","usage":null,"user":null,"safety_identifier":null,"prompt_cache_key":null,"metadata":{}}');
INSERT INTO responses OVERRIDING SYSTEM VALUE VALUES (6, 'us', 'resp_owned', NULL, 'in_progress', 0, NULL, NULL, 2, 1, 0, 779, 'job of owned', '{"id":"resp_owned","object":"response","created_at":0,"completed_at":null,"status":"in_progress","background":false,"error":null,"incomplete_details":null,"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"model":"m","output":[],"parallel_tool_calls":true,"previous_response_id":null,"conversation":{"id":"conv_claimed"},"reasoning":{"effort":null,"summary":null},"service_tier":"default","store":true,"temperature":1.0,"text":{"format":{"type":"text"},"verbosity":"medium"},"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"truncation":"disabled","usage":null,"user":null,"safety_identifier":null,"prompt_cache_key":null,"metadata":{}}');
INSERT INTO responses OVERRIDING SYSTEM VALUE VALUES (7, 'us', 'resp_waits', NULL, 'in_progress', 0, NULL, NULL, NULL, NULL, 0, 762, 'job', '{"id":"resp_waits","object":"response","created_at":0,"completed_at":null,"status":"in_progress","background":false,"error":null,"incomplete_details":null,"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"model":"m","output":[],"parallel_tool_calls":true,"previous_response_id":null,"conversation":null,"reasoning":{"effort":null,"summary":null},"service_tier":"default","store":true,"temperature":1.0,"text":{"format":{"type":"text"},"verbosity":"medium"},"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"truncation":"disabled","usage":null,"user":null,"safety_identifier":null,"prompt_cache_key":null,"metadata":{}}');
INSERT INTO responses OVERRIDING SYSTEM VALUE VALUES (8, 'them', 'resp_theirs', NULL, 'completed', 0, NULL, '2026-11-28 01:24:48.146221+00', NULL, NULL, NULL, 839, NULL, '{"id":"resp_theirs","object":"response","created_at":0,"completed_at":null,"status":"completed","background":false,"error":null,"incomplete_details":null,"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"model":"m","output":[],"parallel_tool_calls":true,"previous_response_id":null,"conversation":null,"reasoning":{"effort":null,"summary":null},"service_tier":"default","store":true,"temperature":1.0,"text":{"format":{"type":"text"},"verbosity":"medium"},"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"truncation":"disabled","usage":null,"user":null,"safety_identifier":null,"prompt_cache_key":null,"metadata":{}}');
INSERT INTO runs VALUES (6, 'us', 'resp_owned', 'srv_a', 1, 2, 11);
INSERT INTO runs VALUES (7, 'us', 'resp_waits', NULL, 0, 2, 11);
INSERT INTO traces VALUES (4, 'trace');
SELECT setval('api_keys_number_seq', 2, true);
SELECT setval('conversations_number_seq', 2, true);
SELECT setval('items_number_seq', 16, true);
SELECT setval('responses_number_seq', 8, true);
