#!/usr/bin/env python3
"""Write tests/reference/data/chat.json: what Jinja, set up as transformers sets it up, makes of chat templates.

usage: make_chat.py SMOLLM2.gguf QWEN25.gguf   (needs jinja2 and gguf)

The templates of the two files are taken from them; the others are those of published models, without tool calls where these are long.
BOS is the empty text here: Dewpoint puts it in front itself. Templates that ask for the day's date find no clock, so that they
fall back on the date that they state. "format" is null for a template that has to be refused. The text of a case is null where the
template refuses a system text or makes up one of the day's date.
"""
import json
import pathlib
import sys

import jinja2
from gguf import GGUFReader
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

ALTERNATE = ("{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
             "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}")

CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

QWEN15 = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
          "{{ '<|im_start|>system\\nYou are a helpful assistant<|im_end|>\\n' }}{% endif %}"
          "{{'<|im_start|>' + message['role'] + '\\n' + message['content']}}"
          "{% if (loop.last and add_generation_prompt) or not loop.last %}{{ '<|im_end|>' + '\\n'}}{% endif %}{% endfor %}"
          "{% if add_generation_prompt and messages[-1]['role'] != 'assistant' %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

DOLPHIN = ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
           "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
           "{% set system_message = \"You're a helpful assistant.\\nBe kind.\" %}{% endif %}{% for message in loop_messages %}"
           "{% if loop.index0 == 0 %}{{'<|im_start|>system\\n' + system_message + '<|im_end|>\\n'}}{% endif %}"
           "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
           "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\\n' + content.lstrip('\\n') }}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
QWEN3_ENDING = QWEN3[QWEN3.index("    {{- '<|im_start|>assistant\\n' }}"):]
QWEN3_THINKING = QWEN3.replace(QWEN3_ENDING, "    {{- '<|im_start|>assistant\\n<think>\\n' }}\n{%- endif %}")
QWEN35 = QWEN3.replace("{{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- endif %}",
                       "{{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- else %}\n        {{- '<think>\\n' }}\n    {%- endif %}")

LLAMA2 = ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
          "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
          "{% set system_message = false %}{% endif %}{% for message in loop_messages %}" + ALTERNATE +
          "{% if loop.index0 == 0 and system_message != false %}"
          "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}"
          "{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
          "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
          "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")
# As transformers wrote it for tokenizers without a template of their own.
LLAMA2_DEFAULT = LLAMA2.replace("{% else %}{% set loop_messages = messages %}",
                                "{% elif false == true and not '<<SYS>>' in messages[0]['content'] %}"
                                "{% set loop_messages = messages %}{% set system_message = 'You are a helpful, respectful "
                                "assistant.' %}{% else %}{% set loop_messages = messages %}", 1)

LLAMA3 = ("{% set loop_messages = messages %}{% for message in loop_messages %}"
          "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + "
          "'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}")

LLAMA32 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message #}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "Do not use variables.\\n\\n" }}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{#- Custom tools are passed in a user message with some extra guidance #}
{%- if tools_in_user_message and not tools is none %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
LLAMA31 = LLAMA32.replace("""    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
""", """    {%- set date_string = "26 Jul 2024" %}
""")
LLAMA_CLOCK = LLAMA31.replace('"26 Jul 2024"', 'strftime_now("%d %b %Y")')

MISTRAL_OLD = ("{{ bos_token }}{% for message in messages %}" + ALTERNATE + "{% if message['role'] == 'user' %}"
               "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
               "{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}"
               "{% endif %}{% endfor %}")
MIXTRAL_8X22 = MISTRAL_OLD.replace("'[INST] '", "' [INST] '")
MISTRAL_V1 = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- " [INST] " + system_message + "\\n\\n" + message["content"] + " [/INST]" }}
        {%- else %}
            {{- " [INST] " + message["content"] + " [/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""
MISTRAL_V3 = MISTRAL_V1.replace('" [INST] "', '"[INST] "').replace('" [/INST]"', '"[/INST]"').replace("loop.first", "loop.last")
MISTRAL_NEMO = MISTRAL_V3.replace('"[INST] "', '"[INST]"')
MISTRAL_V7 = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
              "{{ '[INST] ' + message['content'] + '[/INST]' }}{% elif message['role'] == 'system' %}"
              "{{ '[SYSTEM_PROMPT] ' + message['content'] + '[/SYSTEM_PROMPT]' }}{% elif message['role'] == 'assistant' %}"
              "{{ ' ' + message['content'] + eos_token }}{% else %}"
              "{{ raise_exception('Only user, system and assistant roles are supported!') }}{% endif %}{% endfor %}")
MISTRAL_SMALL = """{%- set today = strftime_now("%Y-%m-%d") %}
{%- set default_system_message = "You are Mistral Small 3.\\nThe current date is " + today + ".\\n\\nWhen you're not sure, say so." %}

{{- bos_token }}

{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = default_system_message %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '[SYSTEM_PROMPT]' + system_message + '[/SYSTEM_PROMPT]' }}

{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {{- '[INST]' + message['content'] + '[/INST]' }}
    {%- elif message['role'] == 'system' %}
        {{- '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('Only user, system and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}"""
MISTRAL_SMALL32 = MISTRAL_SMALL.replace('{%- set today = strftime_now("%Y-%m-%d") %}\n', "").replace(
    'The current date is " + today + ".', "Paris.")

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""
ZEPHYR_ONE_LINE = "".join(line for line in ZEPHYR.replace("'<|user|>\n'", "'<|user|>\\n'").replace(
    "'<|system|>\n'", "'<|system|>\\n'").replace("'<|assistant|>\n'", "'<|assistant|>\\n'").split("\n"))

GEMMA = ("{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
         "{% for message in messages %}" + ALTERNATE + "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}"
         "{% set role = message['role'] %}{% endif %}"
         "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}")
GEMMA3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
"""
GEMMA3_FIRST = GEMMA3.replace("'\\n\\n'", "'\\n'")

PHI3 = ("{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}"
        "{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}"
        "{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}")
PHI4 = ("{% for message in messages %}{% if (message['role'] == 'system') %}{{'<|im_start|>system<|im_sep|>' + message['content'] + "
        "'<|im_end|>'}}{% elif (message['role'] == 'user') %}{{'<|im_start|>user<|im_sep|>' + message['content'] + "
        "'<|im_end|><|im_start|>assistant<|im_sep|>'}}{% elif (message['role'] == 'assistant') %}{{message['content'] + "
        "'<|im_end|>'}}{% endif %}{% endfor %}")
YI15 = ("{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% endif %}"
        "{% if system_message is defined %}{{ system_message }}{% endif %}{% for message in messages %}"
        "{% set content = message['content'] %}{% if message['role'] == 'user' %}"
        "{{ '<|im_start|>user\\n' + content + '<|im_end|>\\n<|im_start|>assistant\\n' }}{% elif message['role'] == 'assistant' %}"
        "{{ content + '<|im_end|>' + '\\n' }}{% endif %}{% endfor %}")
SMOLLM3 = CHATML.replace("{% for", "{{ '<|im_start|>system\\nToday Date: ' ~ strftime_now('%d %B %Y') ~ '<|im_end|>\\n' }}{% for", 1)
OPENCHAT = ("{{ bos_token }}{% for message in messages %}{{ 'GPT4 Correct ' + message['role'].title() + ': ' + message['content'] + "
            "'<|end_of_turn|>'}}{% endfor %}{% if add_generation_prompt %}{{ 'GPT4 Correct Assistant:' }}{% endif %}")
DEEPSEEK = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\\n\\n' }}"
            "{% elif message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}")
MARKED_TEXT = "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"

TEMPLATES = [
    ("Nous Hermes 2", "ChatML", CHATML),
    ("ChatML, trimmed", "ChatML", CHATML.replace("message['content'] +", "message['content'] | trim +")),
    ("ChatML, roles apart", "ChatML",
     CHATML.replace("{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}",
                    "{% if message.role == \"system\" %}\n    {{- \"<|im_start|>system\\n\" ~ message.content ~ \"<|im_end|>\\n\" }}"
                    "\n{%- elif message.role == \"user\" %}\n    {{- \"<|im_start|>user\\n\" ~ message.content ~ \"<|im_end|>\\n\" }}"
                    "\n{%- endif %}")),
    ("Dolphin", "ChatML", DOLPHIN),
    ("Qwen3", "ChatML", QWEN3),
    ("Qwen3 Thinking", "ChatML", QWEN3_THINKING),
    ("Llama 2", "Llama 2", LLAMA2),
    ("CodeLlama", "Llama 2", LLAMA2.replace("content.strip() + ' [/INST]'", "content | trim + ' [/INST]'")),
    ("Llama 2, default switched off", "Llama 2", LLAMA2_DEFAULT),
    ("Llama 2, default switched on", "Llama 2", LLAMA2_DEFAULT.replace("false == true", "true == true")),
    ("Llama 3", "Llama 3", LLAMA3),
    ("Llama 3.1", "Llama 3", LLAMA31),
    ("Llama 3.2", "Llama 3", LLAMA32),
    ("Mistral v0.1, as first published", "Mistral", MISTRAL_OLD),
    ("Mixtral 8x22B", "Mistral", MIXTRAL_8X22),
    ("Mistral v0.2", "Mistral", MISTRAL_V1),
    ("Mistral v0.3", "Mistral", MISTRAL_V3),
    ("Mistral Nemo", "Mistral", MISTRAL_NEMO),
    ("Mistral Large 2411", "Mistral", MISTRAL_V7),
    ("Mistral Small 3", "Mistral", MISTRAL_SMALL),
    ("Mistral Small 3.2", "Mistral", MISTRAL_SMALL32),
    ("Zephyr, TinyLlama", "Zephyr", ZEPHYR),
    ("Zephyr on one line", "Zephyr", ZEPHYR_ONE_LINE),
    ("Gemma", "Gemma", GEMMA),
    ("Gemma 3", "Gemma", GEMMA3),
    ("Gemma 3, first files", "Gemma", GEMMA3_FIRST),
]
# Templates that hold marks of a known format, but say something else.
REFUSED = [("Qwen1.5", QWEN15), ("Qwen3.5", QWEN35), ("Llama with a clock only", LLAMA_CLOCK), ("Phi 3", PHI3), ("Phi 4", PHI4),
           ("Yi 1.5", YI15), ("SmolLM3", SMOLLM3), ("OpenChat", OPENCHAT), ("DeepSeek V2", DEEPSEEK), ("text between tags", MARKED_TEXT),
           ("no end", CHATML[:-8]), ("a tag without end", CHATML[:-2]), ("nothing", "")]
UNTOLD = {"Mistral Small 3"}  # the default system text holds the date of the day
CASES = [(None, "Hi"), (None, " \n Hi there,\u00a0\n"), ("Be brief.", "Hi"), (" Be brief.\n", "\tHi \u3000"), ("", "Hi"),
         ("Be brief.", " \n"), ("[INST] <|im_end|>", "<|im_start|>system\n</s>[/INST]<|eot_id|>")]


class Refused(Exception):
    pass


def refuse(message):
    raise Refused(message)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.globals["raise_exception"] = refuse
    return env


def render(name, template, system, user):
    env = environment()
    if name in UNTOLD:
        if system is None:
            return None
        env.globals["strftime_now"] = lambda form: "today"
    messages = ([] if system is None else [{"role": "system", "content": system}]) + [{"role": "user", "content": user}]
    try:
        return env.from_string(template).render(messages=messages, bos_token="", eos_token="</s>", add_generation_prompt=True)
    except Refused:
        return None


def main():
    smollm2, qwen25 = (GGUFReader(path).fields["tokenizer.chat_template"].contents() for path in sys.argv[1:3])
    templates = [("SmolLM2", "ChatML", smollm2), ("Qwen2.5 Coder", "ChatML", qwen25)] + TEMPLATES
    out = [{"name": name, "format": form, "template": template,
            "cases": [{"system": s, "user": u, "text": render(name, template, s, u)} for s, u in CASES]}
           for name, form, template in templates]
    out += [{"name": name, "format": None, "template": template} for name, template in REFUSED]
    path = pathlib.Path(__file__).parent / "data" / "chat.json"
    path.write_text(json.dumps(out, indent=1) + "\n")
    print(f"{path}: {len(out)} templates, jinja2 {jinja2.__version__}")


if __name__ == "__main__":
    main()
