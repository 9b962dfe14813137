#include "tokenizer/chat.h"

#include "base/memory.h"
#include "tokenizer/jinja.h"

#define S DW_JINJA_STRING
#define LINE DW_JINJA_TEXT("\n")

/* What a template does to white space at the ends of what is said. */
typedef enum { TRIM_NOTHING, TRIM_BOTH, TRIM_USER, TRIM_TURN /* of user and system text as one (Llama 2) */ } trimming;

/* The first row whose marks all occur in the plain form of a template is its format. Marks are whole statements: a template
   that says anything else about what user or model say is another one. */
typedef struct {
    const char *name;
    const char *marks[4];
    const char *text;        /* all that stands between tags; NULL: nothing */
    const char *system_mark; /* must occur, else there is no place for a system text; NULL: there is none */
    const char *system_open, *system_close;
    const char *user_open, *user_close;
    const char *answer; /* what the string that makes the model answer begins with; NULL: none, it is the end of the turn */
    int is_joint;       /* the system text stands in the user's turn: system_open instead of user_open */
    int has_dates;      /* Llama 3.1 and later: dates in front of the system text, which is always there */
    trimming trims;
} row;

#define CHATML(...)                                                                                                            \
    .name = "ChatML", .marks = {__VA_ARGS__}, .system_mark = "", .system_open = "<|im_start|>system\n",                        \
    .system_close = "<|im_end|>\n", .user_open = "<|im_start|>user\n", .user_close = "<|im_end|>\n",                           \
    .answer = "<|im_start|>assistant\n"
#define CHATML_TURN(content) "{{" S("<|im_start|>") "+message.role+" S("\n") "+" content "+" S("<|im_end|>\n") "}}"
#define CHATML_ROLE(role) "{{" S("<|im_start|>" role "\n") "+message.content+" S("<|im_end|>\n") "}}"

#define LLAMA3_HEAD(role) "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define LLAMA3_TURN(content)                                                                                                   \
    S("<|start_header_id|>") "+message.role+" S("<|end_header_id|>\n\n") "+" content "+" S("<|eot_id|>")
#define LLAMA3(...)                                                                                                            \
    .name = "Llama 3", .marks = {__VA_ARGS__}, .system_mark = "", .system_open = LLAMA3_HEAD("system"),                        \
    .system_close = "<|eot_id|>", .user_open = LLAMA3_HEAD("user"), .user_close = "<|eot_id|>",                                \
    .answer = LLAMA3_HEAD("assistant")

#define GEMMA(...)                                                                                                             \
    .name = "Gemma", .marks = {__VA_ARGS__}, .user_open = "<start_of_turn>user\n", .user_close = "<end_of_turn>\n",            \
    .answer = "<start_of_turn>model\n", .trims = TRIM_USER
#define GEMMA3(close)                                                                                                          \
    GEMMA("{{" S("<start_of_turn>") "+role+" S("\n") "+(first_user_prefix if loop.first else" S("") ")}}",                     \
          "{{message.content|trim}}", "{{" S("<end_of_turn>\n") "}}",                                                          \
          "{%set first_user_prefix=messages[0].content+" S(close) "%}"),                                                       \
        .system_mark = "", .system_open = "<start_of_turn>user\n", .system_close = (close), .is_joint = 1

#define LLAMA2(content)                                                                                                        \
    .name = "Llama 2",                                                                                                         \
    .marks = {S("[INST] ") "+" content "+" S(" [/INST]"),                                                                      \
              S("<<SYS>>\n") "+system_message+" S("\n<</SYS>>\n\n") "+message.content"},                                       \
    .system_mark = "", .system_open = "[INST] <<SYS>>\n", .system_close = "\n<</SYS>>\n\n", .user_open = "[INST] ",            \
    .user_close = " [/INST]", .is_joint = 1, .trims = TRIM_TURN

/* Spaces differ between the versions of Mistral's own templates. */
#define MISTRAL(open, close)                                                                                                   \
    .name = "Mistral", .marks = {S(open) "+message.content+" S(close)},                                                        \
    .system_mark = S(open) "+system_message+" S("\n\n") "+message.content+" S(close), .system_open = (open),                   \
    .system_close = "\n\n", .user_open = (open), .user_close = (close), .is_joint = 1
#define MISTRAL7(space, system)                                                                                                \
    .name = "Mistral",                                                                                                         \
    .marks = {S("[INST]" space) "+message.content+" S("[/INST]"),                                                              \
              "{{" S("[SYSTEM_PROMPT]" space) "+" system "+" S("[/SYSTEM_PROMPT]") "}}"},                                      \
    .system_mark = "", .system_open = "[SYSTEM_PROMPT]" space, .system_close = "[/SYSTEM_PROMPT]",                             \
    .user_open = "[INST]" space, .user_close = "[/INST]"

/* The token that ends a text is </s> in the vocabularies of Llama 2 and Mistral, on which these models stand. */
#define ZEPHYR(line, behind)                                                                                                   \
    .name = "Zephyr",                                                                                                          \
    .marks = {"{{" S("<|user|>\n") "+message.content+eos_token}}" behind,                                                      \
              "{{" S("<|system|>\n") "+message.content+eos_token}}" behind, "{{" S("<|assistant|>") "}}" behind "{%endif%}"},  \
    .system_mark = "", .system_open = "<|system|>\n", .system_close = "</s>" line, .user_open = "<|user|>\n",                  \
    .user_close = "</s>" line, .answer = "<|assistant|>"

static const row rows[] = {
    {CHATML(CHATML_TURN("message.content"))},
    {CHATML(CHATML_TURN("message.content|trim")), .trims = TRIM_BOTH},
    {CHATML(CHATML_TURN("content"), "{%set content=message.content%}")},
    {CHATML(CHATML_ROLE("user"), CHATML_ROLE("system"))},
    {LLAMA3("{{" LLAMA3_TURN("message.content|trim") "}}", "{{" S(LLAMA3_HEAD("system")) "}}",
            "{{system_message}}{{" S("<|eot_id|>") "}}", "{{" S("Today Date: ") "+date_string+" S("\n\n") "}}"),
     .has_dates = 1, .trims = TRIM_BOTH},
    {LLAMA3("{%set content=" LLAMA3_TURN("message.content|trim") "%}"), .trims = TRIM_BOTH},
    {LLAMA3("{%set content=" LLAMA3_TURN("message.content") "%}")},
    {GEMMA("{{" S("<start_of_turn>") "+role+" S("\n") "+message.content|trim+" S("<end_of_turn>\n") "}}")},
    {GEMMA3("\n\n")},
    {GEMMA3("\n")}, /* as first published */
    {LLAMA2("content.strip()")},
    {LLAMA2("content|trim")},
    {MISTRAL7("", "message.content")},
    {MISTRAL7(" ", "message.content")},
    {MISTRAL7("", "system_message")},
    {MISTRAL7(" ", "system_message")},
    {MISTRAL(" [INST] ", " [/INST]")}, /* v1 and v2 */
    {MISTRAL("[INST] ", " [/INST]")},  /* v1 as first published */
    {MISTRAL("[INST] ", "[/INST]")},   /* v3 */
    {MISTRAL("[INST]", "[/INST]")},    /* v3 with the Tekken tokenizer */
    {ZEPHYR("\n", LINE), .text = "\n"},
    {ZEPHYR("", "")},
};

struct dw_chat_format {
    const row *row;
    char *plain;              /* of the template; the strings below lie in it */
    dw_string default_system; /* NULL, 0: none */
    int is_default_unknown;   /* there is one, but it can not be told */
    dw_string cutoff, date;   /* has_dates */
    dw_string answer;
    dw_string answer_text; /* between the tags behind answer */
};

/* ---- what a template states ---- */

static dw_string string_at(const char *text)
{
    const char *end = strchr(text, '\2');
    return end == NULL ? (dw_string){NULL, 0} : (dw_string){text, end - text};
}

static int begins(dw_string s, const char *with)
{
    return s.data != NULL && s.length >= (int64_t)strlen(with) && memcmp(s.data, with, strlen(with)) == 0;
}

static int ends(dw_string s, const char *with)
{
    const int64_t length = (int64_t)strlen(with);
    return s.data != NULL && s.length >= length && memcmp(s.data + s.length - length, with, (size_t)length) == 0;
}

/* Notes a default system text; of two different ones none can be told. */
static void put_default(dw_chat_format *f, dw_string text)
{
    if (f->default_system.data != NULL && dw_string_compare(&f->default_system, &text) != 0) f->is_default_unknown = 1;
    f->default_system = text;
}

/* "{% set NAME = 'TEXT' %}" */
static void find_assigned(dw_chat_format *f, const char *assignment)
{
    const char *at = f->plain;
    while ((at = strstr(at, assignment)) != NULL) {
        const dw_string text = string_at(at += strlen(assignment));
        if (text.length > 0 && strncmp(text.data + text.length, "\2%}", 3) == 0)
            put_default(f, text);
        else
            f->is_default_unknown = 1;
    }
}

/* A default system text is printed by one string with its markup, or assigned. Assignments that are never reached (the defaults
   of Llama 2's templates, switched off by "false == true") count as none. */
static void find_default_system(dw_chat_format *f)
{
    const row *r = f->row;
    for (const char *at = f->plain; !r->is_joint && !r->has_dates && (at = strchr(at, '\1')) != NULL; at++) {
        dw_string text = string_at(at + 1);
        if (r->system_open == NULL || !begins(text, r->system_open) || dw_string_is(text, r->system_open)) continue;
        if (ends(text, r->system_close)) {
            text.data += strlen(r->system_open);
            text.length -= (int64_t)(strlen(r->system_open) + strlen(r->system_close));
            put_default(f, text);
        } else {
            f->is_default_unknown = 1;
        }
    }
    if (r->has_dates || strstr(f->plain, "elif false==true") != NULL) return;
    find_assigned(f, "{%set system_message=\1");
    find_assigned(f, "{%set default_system_message=\1");
}

/* Behind the string that makes the model answer the template ends: blocks are closed, or a switch that nobody sets is asked. */
static int is_end(const char *at)
{
    static const char *const passed[] = {
        "{%endif%}", "{%endfor%}",
        "{%if enable_thinking is defined and enable_thinking is false%}{{" S("<think>\n\n</think>\n\n") "}}{%endif%}"};
    size_t i = 0;
    while (*at != '\0' && i < sizeof passed / sizeof passed[0]) {
        const size_t length = strlen(passed[i]);
        if (strncmp(at, passed[i], length) == 0) {
            at += length;
            i = 0;
        } else {
            i++;
        }
    }
    return *at == '\0';
}

/* The last string that begins as answers do, and the text behind it. 0: the template goes on in another way. */
static int find_answer(dw_chat_format *f)
{
    const char *last = NULL;
    const char *after;
    if (f->row->answer == NULL) return 1;
    for (const char *at = f->plain; (at = strstr(at, "{{\1")) != NULL; at += 3) {
        if (begins(string_at(at + 3), f->row->answer)) last = at + 3;
    }
    if (last == NULL) return 0;
    f->answer = string_at(last);
    after = last + f->answer.length + 1;
    if (strncmp(after, "}}", 2) != 0) return 0;
    after += 2;
    if (*after == '\3') {
        const char *end = strchr(++after, '\4');
        if (end == NULL) return 0;
        f->answer_text = (dw_string){after, end - after};
        after = end + 1;
    }
    return is_end(after);
}

/* Lines of dates; the date is the one assigned as a string. 0: there is none. */
static int find_dates(dw_chat_format *f)
{
    static const char cutoff[] = "{{\1Cutting Knowledge Date: ";
    static const char date[] = "{%set date_string=\1";
    const char *line = strstr(f->plain, cutoff);
    const char *day = strstr(f->plain, date);
    if (line == NULL || day == NULL) return 0;
    f->cutoff = string_at(line + 3);
    f->date = string_at(day + sizeof date - 1);
    return f->cutoff.data != NULL && f->date.data != NULL && strncmp(f->cutoff.data + f->cutoff.length, "\2}}", 3) == 0;
}

/* Whether all text between tags is that of the row. */
static int has_no_other_text(const dw_chat_format *f)
{
    for (const char *at = f->plain; (at = strchr(at, '\3')) != NULL; at++) {
        const char *end = strchr(at, '\4');
        if (end == NULL || f->row->text == NULL || !dw_string_is((dw_string){at + 1, end - at - 1}, f->row->text)) return 0;
    }
    return 1;
}

static int matches(dw_chat_format *f)
{
    const row *r = f->row;
    for (int i = 0; i < 4 && r->marks[i] != NULL; i++) {
        if (strstr(f->plain, r->marks[i]) == NULL) return 0;
    }
    if (!has_no_other_text(f) || !find_answer(f)) return 0;
    if (r->has_dates) return find_dates(f);
    /* The date of the day can only stand in a default system text, which then is not told. */
    return strstr(f->plain, "strftime_now") == NULL || strstr(f->plain, "{%set default_system_message=\1") != NULL;
}

dw_status dw_chat_recognise(dw_chat_format **format, dw_string jinja, dw_error *err)
{
    dw_chat_format *f;
    dw_status status;
    *format = NULL;
    DW_TRY(DW_ALLOC(&f, 1, "chat format", err));
    status = dw_jinja_plain(&f->plain, jinja, err);
    if (status != DW_OK) {
        dw_chat_free(f);
        return status;
    }
    for (size_t i = 0; f->plain != NULL && i < sizeof rows / sizeof rows[0]; i++) {
        f->row = &rows[i];
        if (!matches(f)) continue;
        find_default_system(f);
        *format = f;
        return DW_OK;
    }
    dw_chat_free(f);
    return dw_fail(
        err, DW_INPUT,
        "the model's chat template is none of ChatML, Llama 2, Llama 3, Mistral, Zephyr and Gemma; write the prompt as "
        "the model wants it and leave out --chat (--parse-special turns markup into control tokens)");
}

void dw_chat_free(dw_chat_format *format)
{
    if (format == NULL) return;
    dw_free(format->plain);
    dw_free(format);
}

const char *dw_chat_name(const dw_chat_format *format)
{
    return format->row->name;
}

/* ---- a turn ---- */

/* Bytes of the white space (as Python's str.strip and Jinja's trim have it) at the start of s, 0: none. */
static int64_t space_at(dw_string s)
{
    static const char *const wide[] = {"\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\xA8",
                                       "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};
    if (s.length == 0) return 0;
    if (s.data[0] == ' ' || (s.data[0] >= '\t' && s.data[0] <= '\r') || (s.data[0] >= 0x1C && s.data[0] <= 0x1F)) return 1;
    if (s.length >= 3 && begins(s, "\xE2\x80") && (unsigned char)s.data[2] >= 0x80 && (unsigned char)s.data[2] <= 0x8A)
        return 3;
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++) {
        if (begins(s, wide[i])) return (int64_t)strlen(wide[i]);
    }
    return 0;
}

static dw_string trim_left(dw_string s)
{
    int64_t bytes;
    while ((bytes = space_at(s)) > 0) s = (dw_string){s.data + bytes, s.length - bytes};
    return s;
}

static dw_string trim_right(dw_string s)
{
    for (int64_t bytes = 1; bytes <= 3 && bytes <= s.length; bytes++) {
        if (space_at((dw_string){s.data + s.length - bytes, bytes}) != bytes) continue;
        s.length -= bytes;
        bytes = 0;
    }
    return s;
}

static dw_string trim(dw_string s)
{
    return trim_right(trim_left(s));
}

typedef struct {
    dw_chat_piece *pieces;
    int64_t *count;
} turn;

static void put(turn *t, dw_string text, int is_markup)
{
    if (text.length > 0) t->pieces[(*t->count)++] = (dw_chat_piece){text, is_markup};
}

static void put_markup(turn *t, const char *text)
{
    put(t, dw_string_of(text), 1);
}

static void put_system(turn *t, const dw_chat_format *f, dw_string said, int is_default, dw_string user)
{
    const row *r = f->row;
    dw_string close = dw_string_of(r->system_close);
    put_markup(t, r->system_open);
    if (r->has_dates) {
        put(t, f->cutoff, 1);
        put_markup(t, "Today Date: ");
        put(t, f->date, 1);
        put_markup(t, "\n\n");
    }
    put(t, said, is_default);
    if (r->trims == TRIM_TURN && user.length == 0) close = trim_right(close);
    put(t, close, 1);
}

static dw_status check_system(const dw_chat_format *f, const char *system, dw_error *err)
{
    const row *r = f->row;
    if (system == NULL && f->is_default_unknown) {
        return dw_fail(err, DW_INPUT,
                       "the model's chat template (%s) makes up a system text (of the day's date, say) that can not be told; "
                       "give one by --system",
                       r->name);
    }
    if (system == NULL || (r->system_mark != NULL && strstr(f->plain, r->system_mark) != NULL)) return DW_OK;
    return dw_fail(err, DW_INPUT, "the model's chat format (%s) has no place for a system text; leave out --system", r->name);
}

dw_status dw_chat_render(const dw_chat_format *f, const char *system, dw_string user, dw_chat_piece pieces[DW_CHAT_PIECES],
                         int64_t *count, dw_error *err)
{
    const row *r = f->row;
    dw_string said = system != NULL ? dw_string_of(system) : f->default_system;
    const int has_system = system != NULL || said.data != NULL || r->has_dates;
    turn t = {pieces, count};
    *count = 0;
    DW_TRY(check_system(f, system, err));
    if (system != NULL && r->trims == TRIM_BOTH) said = trim(said);
    if (r->trims != TRIM_NOTHING) user = r->trims == TRIM_TURN && has_system ? trim_right(user) : trim(user);
    if (has_system) put_system(&t, f, said, system == NULL, user);
    if (!has_system || !r->is_joint) put_markup(&t, r->user_open);
    put(&t, user, 0);
    put_markup(&t, r->user_close);
    put(&t, f->answer, 1);
    put(&t, f->answer_text, 1);
    return DW_OK;
}
