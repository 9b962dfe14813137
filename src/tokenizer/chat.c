#define _GNU_SOURCE /* memmem */
#include "tokenizer/chat.h"

enum { MARKS = 3 };

/* The first row whose marks all occur in the template, and whose other mark does not, is its format. Texts stand in front of the
   system text, between it and the user's, and behind the latter; then those without a system text. NULL: it has no place for
   one. Templates that trim what is said do so at both ends. */
struct dw_chat_format {
    const char *name;
    const char *marks[MARKS];
    const char *not_mark;
    const char *with_system[3];
    const char *without_system[2];
    int trims;
};

#define LLAMA3_HEAD(role) "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define LLAMA3_TURN "<|eot_id|>" LLAMA3_HEAD("user")
#define LLAMA3_ANSWER "<|eot_id|>" LLAMA3_HEAD("assistant")
/* Llama 3.1 and later put dates in front. The date is the one that their templates have where no clock is at hand: the same text
   gives the same tokens every day. */
#define LLAMA31_DATES "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"

static const dw_chat_format formats[] = {
    {.name = "ChatML",
     .marks = {"<|im_start|>", "<|im_end|>"},
     .with_system = {"<|im_start|>system\n", "<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"},
     .without_system = {"<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"}},
    {.name = "Llama 3",
     .marks = {"<|start_header_id|>", "<|eot_id|>", "Cutting Knowledge Date: December 2023"},
     .with_system = {LLAMA3_HEAD("system") LLAMA31_DATES, LLAMA3_TURN, LLAMA3_ANSWER},
     .without_system = {LLAMA3_HEAD("system") LLAMA31_DATES LLAMA3_TURN, LLAMA3_ANSWER},
     .trims = 1},
    {.name = "Llama 3",
     .marks = {"<|start_header_id|>", "<|eot_id|>"},
     .with_system = {LLAMA3_HEAD("system"), LLAMA3_TURN, LLAMA3_ANSWER},
     .without_system = {LLAMA3_HEAD("user"), LLAMA3_ANSWER},
     .trims = 1},
    {.name = "Gemma",
     .marks = {"<start_of_turn>", "<end_of_turn>"},
     .with_system = {"<start_of_turn>user\n", "\n\n", "<end_of_turn>\n<start_of_turn>model\n"},
     .without_system = {"<start_of_turn>user\n", "<end_of_turn>\n<start_of_turn>model\n"},
     .trims = 1},
    {.name = "Mistral", /* v7 */
     .marks = {"[SYSTEM_PROMPT]", "[INST]"},
     .with_system = {"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT][INST]", "[/INST]"},
     .without_system = {"[INST]", "[/INST]"}},
    {.name = "Mistral", /* v1 and v2, as mistral-common writes them */
     .marks = {"[INST]", "' [INST] '"},
     .not_mark = "<<SYS>>",
     .with_system = {" [INST] ", "\n\n", " [/INST]"},
     .without_system = {" [INST] ", " [/INST]"}},
    {.name = "Mistral", /* v3 of the Tekken tokenizer: no spaces */
     .marks = {"[AVAILABLE_TOOLS]", "\"[INST]\""},
     .with_system = {"[INST]", "\n\n", "[/INST]"},
     .without_system = {"[INST]", "[/INST]"}},
    {.name = "Mistral", /* v3 */
     .marks = {"[AVAILABLE_TOOLS]", "[INST] "},
     .with_system = {"[INST] ", "\n\n", "[/INST]"},
     .without_system = {"[INST] ", "[/INST]"}},
    {.name = "Llama 2",
     .marks = {"[INST]", "<<SYS>>"},
     .with_system = {"[INST] <<SYS>>\n", "\n<</SYS>>\n\n", " [/INST]"},
     .without_system = {"[INST] ", " [/INST]"},
     .trims = 1},
    {.name = "Mistral", /* of the first checkpoints */
     .marks = {"[INST] ", " [/INST]"},
     .not_mark = "<<SYS>>",
     .without_system = {"[INST] ", " [/INST]"}},
    {.name = "Zephyr", /* TinyLlama, too */
     .marks = {"<|user|>", "<|assistant|>", "eos_token"},
     .with_system = {"<|system|>\n", "</s>\n<|user|>\n", "</s>\n<|assistant|>\n"},
     .without_system = {"<|user|>\n", "</s>\n<|assistant|>\n"}},
};

static const char *find(dw_string text, const char *part)
{
    return text.length == 0 ? NULL : memmem(text.data, (size_t)text.length, part, strlen(part));
}

static int matches(const dw_chat_format *format, dw_string jinja)
{
    for (int i = 0; i < MARKS && format->marks[i] != NULL; i++) {
        if (find(jinja, format->marks[i]) == NULL) return 0;
    }
    return format->not_mark == NULL || find(jinja, format->not_mark) == NULL;
}

dw_status dw_chat_recognise(const dw_chat_format **format, dw_string jinja, dw_error *err)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (!matches(&formats[i], jinja)) continue;
        *format = &formats[i];
        return DW_OK;
    }
    return dw_fail(
        err, DW_INPUT,
        "the model's chat template is none of ChatML, Llama 2, Llama 3, Mistral, Zephyr and Gemma; write the prompt as "
        "the model wants it and leave out --chat (--parse-special turns markup into control tokens)");
}

const char *dw_chat_name(const dw_chat_format *format)
{
    return format->name;
}

/* The system text that a ChatML template uses when there is none: "<|im_start|>system\nTEXT<|im_end|>" within one string of the
   template (the line end as such or as \n), TEXT without anything that would end the string or compute. Empty: it has none. */
static dw_string default_system(dw_string jinja)
{
    static const char head[] = "<|im_start|>system";
    const char *end = jinja.data + jinja.length;
    const char *at = find(jinja, head);
    while (at != NULL) {
        const char *text = at + sizeof head - 1;
        const int64_t line_end = end - text >= 2 && text[0] == '\\' && text[1] == 'n' ? 2 : text < end && *text == '\n';
        const char *close = find((dw_string){text, end - text}, "<|im_end|>");
        const int64_t length = close == NULL ? 0 : close - text - line_end;
        int is_plain = line_end > 0 && length > 0;
        for (int64_t i = 0; i < length; i++) is_plain &= strchr("'\"{}\\+", text[line_end + i]) == NULL;
        if (is_plain) return (dw_string){text + line_end, length};
        at = find((dw_string){text, end - text}, head);
    }
    return (dw_string){NULL, 0};
}

static int is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static dw_string trim(dw_string s)
{
    while (s.length > 0 && is_space(s.data[0])) {
        s.data++;
        s.length--;
    }
    while (s.length > 0 && is_space(s.data[s.length - 1])) s.length--;
    return s;
}

dw_status dw_chat_render(const dw_chat_format *format, dw_string jinja, const char *system, dw_string user,
                         dw_chat_piece pieces[DW_CHAT_PIECES], int64_t *count, dw_error *err)
{
    dw_string said = system != NULL ? dw_string_of(system) : default_system(jinja);
    const int has_system = system != NULL || said.length > 0;
    const char *const *markup = has_system ? format->with_system : format->without_system;
    if (has_system && markup[0] == NULL) {
        return dw_fail(err, DW_INPUT, "the model's chat format (%s) has no place for a system text; leave out --system",
                       format->name);
    }
    if (format->trims) {
        said = trim(said);
        user = trim(user);
    }
    *count = 0;
    pieces[(*count)++] = (dw_chat_piece){dw_string_of(markup[0]), 1};
    if (has_system) {
        pieces[(*count)++] = (dw_chat_piece){said, 0};
        pieces[(*count)++] = (dw_chat_piece){dw_string_of(markup[1]), 1};
    }
    pieces[(*count)++] = (dw_chat_piece){user, 0};
    pieces[(*count)++] = (dw_chat_piece){dw_string_of(markup[has_system ? 2 : 1]), 1};
    return DW_OK;
}
