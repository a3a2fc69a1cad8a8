"""Chat templates like those of popular models, with the peculiarities of each.

`QWEN` drops reasoning before the last question, writes results as the user's and adds empty
reasoning to a last answer. `LLAMA` accepts one call per message. `MISTRAL` has no generation
prompt and requires ids of nine letters and alternating roles. `DEEPSEEK` only opens a turn after
the user's, and accepts arguments as text. `CARELESS` never ends a turn.
"""

# ruff: noqa: E501, RUF001 - lines of templates; DeepSeek's markers contain a full-width bar

from __future__ import annotations

QWEN = """
{%- set ns = namespace(asked=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.asked = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {%- if m.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
    {%- elif m.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.asked and (loop.last or m.reasoning_content) %}
            {{- '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- m.content }}
        {%- for call in m.tool_calls or [] %}
            {{- '\\n' if m.content or not loop.first }}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
"""

LLAMA = """
{{- bos_token }}
{%- for m in messages %}
    {%- if m.tool_calls %}
        {%- if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + m.tool_calls[0].function.name + '", "parameters": ' }}
        {{- m.tool_calls[0].function.arguments | tojson }}{{ '}<|eot_id|>' }}
    {%- elif m.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + m.content | tojson + '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
"""

MISTRAL = """
{%- set told = messages | rejectattr('role', 'equalto', 'tool') | selectattr('tool_calls', 'undefined') %}
{%- for m in told %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('take turns') }}{% endif %}
{%- endfor %}
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' }}
    {%- elif m.tool_calls %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in m.tool_calls %}
            {%- if call.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}
            {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}
            {{- ', ' if not loop.last else ']' + eos_token }}
        {%- endfor %}
    {%- elif m.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + m.content + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}{{ ' ' + m.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""

DEEPSEEK = """
{%- set ns = namespace(asked=false) %}
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'user' %}{% set ns.asked = true %}{{ '<｜User｜>' + m.content }}
    {%- elif m.role == 'tool' %}
        {%- set ns.asked = false %}
        {{- '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}
    {%- else %}
        {{- '<｜Assistant｜></think>' if ns.asked }}
        {%- set ns.asked = false %}
        {{- m.content }}
        {%- if m.tool_calls %}{{ '<｜tool▁calls▁begin｜>' }}{% endif %}
        {%- for call in m.tool_calls or [] %}
            {{- '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' }}
            {{- call.function.arguments + '<｜tool▁call▁end｜>' }}
        {%- endfor %}
        {%- if m.tool_calls %}{{ '<｜tool▁calls▁end｜>' }}{% endif %}
        {{- '<｜end▁of▁sentence｜>' }}
    {%- endif %}
{%- endfor %}
{%- if ns.asked %}{{ '<｜Assistant｜>' + ('<think>' if thinking else '</think>') }}{% endif %}
"""

CARELESS = """
{%- for m in messages %}
    {{- m.role + ': ' + m.content }}
    {%- for call in m.tool_calls or [] %}
        {{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments | tojson }}{{ '}</tool_call>' }}
    {%- endfor %}
    {{- '\\n' }}
{%- endfor %}
{{- 'assistant: ' }}
"""
