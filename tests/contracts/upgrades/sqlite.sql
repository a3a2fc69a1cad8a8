-- A SQLite file, written by the version before migration 0009: every kind of row. Triggers count what is stored.
INSERT INTO responses VALUES (1, 'us', 'resp_gone', NULL, 'deleted', 0, CAST('' AS BLOB), NULL, NULL, 'srv_a', 1, 0, 1795829087.5082598, NULL);
INSERT INTO responses VALUES (2, 'us', 'resp_child', 'resp_gone', 'completed', 0, CAST('{"id":"resp_child","object":"response","created_at":0,"completed_at":null,"status":"completed","background":false,"error":null,"incomplete_details":null,"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"model":"m","output":[],"parallel_tool_calls":true,"previous_response_id":"resp_gone","conversation":null,"reasoning":{"effort":null,"summary":null},"service_tier":"default","store":true,"temperature":1.0,"text":{"format":{"type":"text"},"verbosity":"medium"},"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"truncation":"disabled","usage":null,"user":null,"safety_identifier":null,"prompt_cache_key":null,"metadata":{}}' AS BLOB), NULL, NULL, 'srv_a', 1, 0, 1795829087.5086086, NULL);
INSERT INTO responses VALUES (3, 'us', 'resp_log', NULL, 'completed', 0, CAST('{"id":"resp_log","object":"response","created_at":0,"completed_at":null,"status":"completed","background":false,"error":null,"incomplete_details":null,"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"model":"m","output":[],"parallel_tool_calls":true,"previous_response_id":null,"conversation":null,"reasoning":{"effort":null,"summary":null},"service_tier":"default","store":true,"temperature":1.0,"text":{"format":{"type":"text"},"verbosity":"medium"},"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"truncation":"disabled","usage":null,"user":null,"safety_identifier":null,"prompt_cache_key":null,"metadata":{}}' AS BLOB), NULL, NULL, 'srv_a', 1, 1, 1795829087.5202227, 4000000000.0);
INSERT INTO responses VALUES (4, 'us', 'resp_in', NULL, 'completed', 0, CAST('{"id":"resp_in","object":"response","created_at":0,"completed_at":null,"status":"completed","background":false,"error":null,"incomplete_details":null,"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"model":"m","output":[],"parallel_tool_calls":true,"previous_response_id":null,"conversation":{"id":"conv_c"},"reasoning":{"effort":null,"summary":null},"service_tier":"default","store":true,"temperature":1.0,"text":{"format":{"type":"text"},"verbosity":"medium"},"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"truncation":"disabled","usage":null,"user":null,"safety_identifier":null,"prompt_cache_key":null,"metadata":{}}' AS BLOB), 'conv_c', 2, 'srv_a', 1, 0, 1795829087.5216289, NULL);
INSERT INTO responses VALUES (5, 'us', 'resp_owned', NULL, 'in_progress', 0, CAST('{"id":"resp_owned","object":"response","created_at":0,"completed_at":null,"status":"in_progress","background":false,"error":null,"incomplete_details":null,"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"model":"m","output":[],"parallel_tool_calls":true,"previous_response_id":null,"conversation":{"id":"conv_claimed"},"reasoning":{"effort":null,"summary":null},"service_tier":"default","store":true,"temperature":1.0,"text":{"format":{"type":"text"},"verbosity":"medium"},"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"truncation":"disabled","usage":null,"user":null,"safety_identifier":null,"prompt_cache_key":null,"metadata":{}}' AS BLOB), 'conv_claimed', 1, 'srv_a', 1, 1, NULL, NULL);
INSERT INTO responses VALUES (6, 'us', 'resp_waits', NULL, 'in_progress', 0, CAST('{"id":"resp_waits","object":"response","created_at":0,"completed_at":null,"status":"in_progress","background":false,"error":null,"incomplete_details":null,"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"model":"m","output":[],"parallel_tool_calls":true,"previous_response_id":null,"conversation":null,"reasoning":{"effort":null,"summary":null},"service_tier":"default","store":true,"temperature":1.0,"text":{"format":{"type":"text"},"verbosity":"medium"},"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"truncation":"disabled","usage":null,"user":null,"safety_identifier":null,"prompt_cache_key":null,"metadata":{}}' AS BLOB), NULL, NULL, NULL, 0, 1, NULL, NULL);
INSERT INTO responses VALUES (7, 'them', 'resp_theirs', NULL, 'completed', 0, CAST('{"id":"resp_theirs","object":"response","created_at":0,"completed_at":null,"status":"completed","background":false,"error":null,"incomplete_details":null,"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"model":"m","output":[],"parallel_tool_calls":true,"previous_response_id":null,"conversation":null,"reasoning":{"effort":null,"summary":null},"service_tier":"default","store":true,"temperature":1.0,"text":{"format":{"type":"text"},"verbosity":"medium"},"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"truncation":"disabled","usage":null,"user":null,"safety_identifier":null,"prompt_cache_key":null,"metadata":{}}' AS BLOB), NULL, NULL, 'srv_a', 1, 0, 1795829087.5231073, NULL);
INSERT INTO items VALUES (1, 'us', 'resp_gone', 0, 0, 'msg_gone_in', CAST('{"type":"message","id":"msg_gone_in","role":"user","content":"hi"}' AS BLOB), NULL, NULL);
INSERT INTO items VALUES (2, 'us', 'resp_gone', 1, 0, 'msg_gone_out', CAST('{"type":"message","id":"msg_gone_out","role":"assistant","content":"hello"}' AS BLOB), NULL, NULL);
INSERT INTO items VALUES (3, 'us', 'resp_child', 0, 0, 'msg_child_in', CAST('{"type":"message","id":"msg_child_in","role":"user","content":"hi"}' AS BLOB), NULL, NULL);
INSERT INTO items VALUES (4, 'us', 'resp_child', 1, 0, 'msg_child_out', CAST('{"type":"message","id":"msg_child_out","role":"assistant","content":"hello"}' AS BLOB), NULL, NULL);
INSERT INTO items VALUES (5, 'us', 'resp_log', 0, 0, 'msg_log_in', CAST('{"type":"message","id":"msg_log_in","role":"user","content":"hi"}' AS BLOB), NULL, NULL);
INSERT INTO items VALUES (6, 'us', 'resp_log', 1, 0, 'msg_log_out', CAST('{"type":"message","id":"msg_log_out","role":"assistant","content":"hello"}' AS BLOB), NULL, NULL);
INSERT INTO items VALUES (7, 'us', 'conv_c', 2, 0, 'msg_x', CAST('{"type":"message","id":"msg_x","role":"user","content":"hi"}' AS BLOB), 'conv_c', 0);
INSERT INTO items VALUES (8, 'us', 'conv_c', 2, 1, 'msg_y', CAST('{"type":"message","id":"msg_y","role":"user","content":"hi"}' AS BLOB), 'conv_c', 1);
INSERT INTO items VALUES (9, 'us', 'resp_in', 0, 0, 'msg_in_in', CAST('{"type":"message","id":"msg_in_in","role":"user","content":"hi"}' AS BLOB), 'conv_c', 2);
INSERT INTO items VALUES (10, 'us', 'resp_in', 1, 0, 'msg_in_out', CAST('{"type":"message","id":"msg_in_out","role":"assistant","content":"hello"}' AS BLOB), 'conv_c', 3);
INSERT INTO items VALUES (11, 'us', 'conv_c', 2, 4, 'msg_z', CAST('{"type":"message","id":"msg_z","role":"user","content":"hi"}' AS BLOB), 'conv_c', 4);
INSERT INTO items VALUES (12, 'us', 'conv_claimed', 2, 0, 'msg_w', CAST('{"type":"message","id":"msg_w","role":"user","content":"hi"}' AS BLOB), 'conv_claimed', 0);
INSERT INTO items VALUES (13, 'us', 'resp_owned', 0, 0, 'msg_owned_in', CAST('{"type":"message","id":"msg_owned_in","role":"user","content":"hi"}' AS BLOB), NULL, NULL);
INSERT INTO items VALUES (14, 'us', 'resp_waits', 0, 0, 'msg_waits_in', CAST('{"type":"message","id":"msg_waits_in","role":"user","content":"hi"}' AS BLOB), NULL, NULL);
INSERT INTO items VALUES (15, 'them', 'resp_theirs', 0, 0, 'msg_theirs_in', CAST('{"type":"message","id":"msg_theirs_in","role":"user","content":"hi"}' AS BLOB), NULL, NULL);
INSERT INTO items VALUES (16, 'them', 'resp_theirs', 1, 0, 'msg_theirs_out', CAST('{"type":"message","id":"msg_theirs_out","role":"assistant","content":"hello"}' AS BLOB), NULL, NULL);
INSERT INTO conversations VALUES (1, 'us', 'conv_c', 7, CAST('{"topic":"birds"}' AS BLOB), NULL, 5, 'srv_a');
INSERT INTO conversations VALUES (2, 'us', 'conv_claimed', 7, CAST('{"k":"é"}' AS BLOB), 'resp_owned', 1, 'srv_a');
INSERT INTO jobs VALUES (5, CAST('job of owned' AS BLOB));
INSERT INTO jobs VALUES (6, CAST('job' AS BLOB));
INSERT INTO events VALUES (3, 0, 2, CAST('events 0+2
' AS BLOB));
INSERT INTO events VALUES (3, 2, 1, CAST('events 2+1
' AS BLOB));
INSERT INTO events VALUES (3, 3, 1, CAST('events 3+1
' AS BLOB));
INSERT INTO events VALUES (5, 0, 2, CAST('events 0+2
' AS BLOB));
INSERT INTO events VALUES (6, 0, 2, CAST('events 0+2
' AS BLOB));
INSERT INTO repeats VALUES ('us', 'kept key', 'resp_log', CAST('fingerprint of the request' AS BLOB), 'srv_a', 4000000000.0);
INSERT INTO repeats VALUES ('us', 'reserved key', 'resp_never', CAST('other' AS BLOB), 'srv_a', 4000000000.0);
INSERT INTO notices VALUES ('evt_1', 'us', 'main', CAST('{"n":1}' AS BLOB), 1, 1795829087.5208075);
INSERT INTO notices VALUES ('evt_2', 'us', 'other', CAST('{"n":2}' AS BLOB), 0, 1795829087.5202227);
INSERT INTO api_keys VALUES (1, 'key_1', 'first', 'us', CAST('hash of the first' AS BLOB), 1, NULL);
INSERT INTO api_keys VALUES (2, 'key_2', 'second', 'them', CAST('hash of the second' AS BLOB), 2, CAST('{"limits":{"requests/min":60}}' AS BLOB));
INSERT INTO agreed VALUES ('seal_key', CAST('fingerprint' AS BLOB));
INSERT INTO key_counters VALUES ('key_2', 'requests/min', 60, 7, 4000000000);
INSERT INTO key_slots VALUES ('key_2', 'us', 'resp_owned', 'srv_a');
INSERT INTO traces VALUES (3, CAST('trace' AS BLOB));
UPDATE responses SET body = NULL WHERE id = 'resp_gone';
