/* Chat formats against what Jinja makes of the templates that models are published with. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tokenizer/chat.h"

/* Templates, shortened where nothing that renders depends on it. Expected texts: jinja2 with add_generation_prompt, BOS left out. */
static const char smollm2[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a "
    "helpful "
    "AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% "
    "endif %}";
static const char qwen25[] =
    "{%- if tools %}\n    {{- '<|im_start|>system\\n' }}\n    {%- if messages[0]['role'] == 'system' %}\n        {{- "
    "messages[0]['content'] }}\n    {%- else %}\n        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful "
    "assistant.' "
    "}}\n    {%- endif %}\n{%- else %}\n    {%- if messages[0]['role'] == 'system' %}\n        {{- '<|im_start|>system\\n' + "
    "messages[0]['content'] + '<|im_end|>\\n' }}\n    {%- else %}\n        {{- '<|im_start|>system\\nYou are Qwen, created by "
    "Alibaba "
    "Cloud. You are a helpful assistant.<|im_end|>\\n' }}\n    {%- endif %}\n{%- endif %}";
static const char chatml[] = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                             "'<|im_end|>' + '\\n'}}{% endfor %}";
static const char llama2[] = "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set "
                             "system_message = messages[0]['content'] "
                             "%}{% endif %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + "
                             "message['content'] %}{{ bos_token + '[INST] "
                             "' + content.strip() + ' [/INST]' }}";
static const char llama3[] = "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
                             "'<|start_header_id|>' + message['role'] + "
                             "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{{ content }}{% endfor %}";
static const char llama31[] = "{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}{{- \"Cutting Knowledge Date: "
                              "December 2023\\n\" }}{{- \"Today Date: \" + "
                              "date_string + \"\\n\\n\" }}{{- system_message }}{{- \"<|eot_id|>\" }}";
static const char mistral1[] = "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + "
                               "message['content'] + ' [/INST]' }}";
static const char mistral3[] =
    "{{- \"[AVAILABLE_TOOLS] [\" }}{{- \"[INST] \" + system_message + \"\\n\\n\" + message[\"content\"] + \"[/INST]\" }}";
static const char mistral_nemo[] =
    "{{- \"[AVAILABLE_TOOLS][\" }}{{- \"[INST]\" + system_message + \"\\n\\n\" + message[\"content\"] + \"[/INST]\" }}";
static const char mistral7[] =
    "{{ '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}{{ '[INST]' + message['content'] "
    "+ '[/INST]' }}";
static const char zephyr[] = "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\\n' + "
                             "message['content'] + eos_token }}\n{% elif "
                             "message['role'] == 'system' %}\n{{ '<|system|>\\n' + message['content'] + eos_token }}\n{% endif "
                             "%}\n{{ '<|assistant|>' }}";
static const char gemma[] = "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}";

static void expect(const char *jinja, const char *name, const char *system, const char *user, const char *expected)
{
    const dw_chat_format *format;
    dw_chat_piece pieces[DW_CHAT_PIECES];
    char text[1024] = "";
    int64_t count;
    dw_error err;
    cr_assert_eq(dw_chat_recognise(&format, dw_string_of(jinja), &err), DW_OK, "%s: %s", name, err.message);
    cr_assert_str_eq(dw_chat_name(format), name);
    cr_assert_eq(dw_chat_render(format, dw_string_of(jinja), system, dw_string_of(user), pieces, &count, &err), DW_OK, "%s",
                 err.message);
    for (int64_t i = 0; i < count; i++) {
        snprintf(text + strlen(text), sizeof text - strlen(text), "%.*s", (int)pieces[i].text.length, pieces[i].text.data);
        cr_assert_eq(pieces[i].is_markup, i % 2 == 0, "markup and data take turns");
    }
    cr_assert_str_eq(text, expected);
}

Test(chat, chatml)
{
    expect(chatml, "ChatML", NULL, "Hi", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    expect(chatml, "ChatML", "Be brief.", " Hi ",
           "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n");
}

Test(chat, chatml_with_the_system_text_of_the_template)
{
    expect(smollm2, "ChatML", NULL, "Hi",
           "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
           "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    expect(qwen25, "ChatML", NULL, "Hi",
           "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
           "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    expect(qwen25, "ChatML", "", "Hi",
           "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

Test(chat, llama_2_and_3_trim)
{
    expect(llama2, "Llama 2", NULL, " Hi\n", "[INST] Hi [/INST]");
    expect(llama2, "Llama 2", "Be brief.", "Hi", "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST]");
    expect(llama3, "Llama 3", NULL, " Hi\n",
           "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
    expect(llama3, "Llama 3", "Be brief.", "Hi",
           "<|start_header_id|>system<|end_header_id|>\n\nBe "
           "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
           "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

Test(chat, llama_3_1_has_dates_that_do_not_change)
{
    expect(llama31, "Llama 3", NULL, "Hi",
           "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul "
           "2024\n\n<|eot_id|>"
           "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
}

Test(chat, mistral_of_every_version_has_its_own_spaces)
{
    expect(mistral1, "Mistral", NULL, "Hi", "[INST] Hi [/INST]");
    expect(mistral3, "Mistral", NULL, "Hi", "[INST] Hi[/INST]");
    expect(mistral3, "Mistral", "Be brief.", "Hi", "[INST] Be brief.\n\nHi[/INST]");
    expect(mistral_nemo, "Mistral", NULL, "Hi", "[INST]Hi[/INST]");
    expect(mistral7, "Mistral", "Be brief.", "Hi", "[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]Hi[/INST]");
}

Test(chat, zephyr_and_gemma)
{
    expect(zephyr, "Zephyr", NULL, "Hi", "<|user|>\nHi</s>\n<|assistant|>\n");
    expect(zephyr, "Zephyr", "Be brief.", "Hi", "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\n");
    expect(gemma, "Gemma", NULL, " Hi ", "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n");
    expect(gemma, "Gemma", "Be brief.", "Hi", "<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n");
}

Test(chat, an_unknown_template_and_a_system_text_without_place_are_refused)
{
    const dw_chat_format *format;
    dw_chat_piece pieces[DW_CHAT_PIECES];
    int64_t count;
    dw_error err;
    cr_assert_eq(dw_chat_recognise(&format, dw_string_of("{{ messages }}"), &err), DW_INPUT);
    cr_assert(strstr(err.message, "none of ChatML") != NULL && strstr(err.message, "leave out --chat") != NULL);
    cr_assert_eq(dw_chat_recognise(&format, dw_string_of(""), &err), DW_INPUT);
    cr_assert_eq(dw_chat_recognise(&format, dw_string_of(mistral1), &err), DW_OK);
    cr_assert_eq(dw_chat_render(format, dw_string_of(mistral1), "Be brief.", dw_string_of("Hi"), pieces, &count, &err),
                 DW_INPUT);
    cr_assert_not_null(strstr(err.message, "no place for a system text"));
}
