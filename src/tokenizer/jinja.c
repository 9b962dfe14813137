#include "tokenizer/jinja.h"

#include "base/memory.h"

typedef struct {
    const char *in;
    int64_t length;
    int64_t at;
    char *out;
    int64_t count;
} translator;

static int is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || (c & 0x80) != 0;
}

static int is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static int starts(const translator *t, int64_t at, const char *text)
{
    const int64_t length = (int64_t)strlen(text);
    return length <= t->length - at && memcmp(t->in + at, text, (size_t)length) == 0;
}

static void put(translator *t, char c)
{
    t->out[t->count++] = c;
}

static int ends(const translator *t, const char *text)
{
    const int64_t length = (int64_t)strlen(text);
    return length <= t->count && memcmp(t->out + t->count - length, text, (size_t)length) == 0;
}

/* ---- inside a tag ---- */

/* The string that begins with the quote at t->at. An escape that is none of Python's common ones stays as it is. 0: no end. */
static int read_string(translator *t)
{
    static const char names[] = "ntr\\'\"";
    static const char values[] = "\n\t\r\\'\"";
    const char quote = t->in[t->at++];
    if (ends(t, "\2+"))
        t->count -= 2; /* goes on with the string in front */
    else
        put(t, '\1');
    while (t->at < t->length && t->in[t->at] != quote) {
        const char *name = t->in[t->at] == '\\' && t->at + 1 < t->length ? strchr(names, t->in[t->at + 1]) : NULL;
        put(t, name != NULL ? values[name - names] : t->in[t->at]);
        t->at += name != NULL ? 2 : 1;
    }
    if (t->at == t->length) return 0;
    t->at++;
    put(t, '\2');
    return 1;
}

/* x['y'] just read: makes it x.y where y is a word. */
static void dot_index(translator *t)
{
    int64_t from = t->count - 2; /* the end of y, in front of \2 ] */
    if (!ends(t, "\2]")) return;
    while (from > 0 && is_word(t->out[from - 1])) from--;
    if (from == t->count - 2 || from < 2 || t->out[from - 1] != '\1' || t->out[from - 2] != '[') return;
    t->out[from - 2] = '.';
    memmove(t->out + from - 1, t->out + from, (size_t)(t->count - 2 - from));
    t->count -= 3;
}

/* The inside of a tag up to its end (two characters). 0: it has none. */
static int read_inside(translator *t, const char *end)
{
    int braces = 0;
    int spaced = 0;
    while (t->at < t->length) {
        const char c = t->in[t->at];
        if (braces == 0 && (starts(t, t->at, end) || ((c == '-' || c == '+') && starts(t, t->at + 1, end)))) return 1;
        if (c == '\'' || c == '"') {
            if (!read_string(t)) return 0;
            spaced = 0;
            continue;
        }
        t->at++;
        if (is_space(c)) {
            spaced = 1;
            continue;
        }
        if (spaced && is_word(c) && t->count > 0 && is_word(t->out[t->count - 1])) put(t, ' ');
        spaced = 0;
        braces += (c == '{') - (c == '}' && braces > 0);
        put(t, c == '~' ? '+' : c);
        if (c == ']') dot_index(t);
    }
    return 0;
}

/* ---- between tags ---- */

/* Where the next tag begins; the length of the template if there is none. */
static int64_t next_tag(const translator *t)
{
    int64_t at = t->at;
    while (at < t->length && !(t->in[at] == '{' && at + 1 < t->length && strchr("{%#", t->in[at + 1]) != NULL)) at++;
    return at;
}

/* Puts the text from t->at up to the tag at `tag`. line_start: in front of t->at a line ends. */
static void put_text(translator *t, int64_t tag, int strips_left, int line_start)
{
    const int is_tag = tag < t->length;
    const char sign = is_tag && tag + 2 < t->length ? t->in[tag + 2] : ' ';
    int64_t from = t->at;
    int64_t to = tag;
    while (strips_left && from < to && is_space(t->in[from])) from++;
    if (is_tag && sign == '-') {
        while (to > from && is_space(t->in[to - 1])) to--;
    } else if (is_tag && t->in[tag + 1] != '{' && sign != '+') { /* lstrip_blocks: what indents a statement */
        int64_t line = to;
        while (line > from && is_space(t->in[line - 1]) && t->in[line - 1] != '\n') line--;
        if (line > from ? t->in[line - 1] == '\n' : line_start && !strips_left) to = line;
    }
    if (from == to) return;
    put(t, '\3');
    memcpy(t->out + t->count, t->in + from, (size_t)(to - from));
    t->count += to - from;
    put(t, '\4');
}

/* Passes over the comment at t->at. 0: it has no end. */
static int skip_comment(translator *t)
{
    t->at += 2;
    while (t->at < t->length && !starts(t, t->at, "#}")) t->at++;
    return t->at < t->length;
}

/* The tag at t->at, up to its closing characters. 0: it has no end. */
static int read_tag(translator *t, char kind)
{
    static const char *const ends_of[] = {"}}", "%}"};
    if (kind == '#') return skip_comment(t);
    put(t, '{');
    put(t, kind);
    t->at += 2;
    if (t->at < t->length && (t->in[t->at] == '-' || t->in[t->at] == '+')) t->at++;
    if (!read_inside(t, ends_of[kind == '%'])) return 0;
    put(t, kind == '{' ? '}' : '%');
    put(t, '}');
    return 1;
}

/* 0: no template. */
static int translate(translator *t)
{
    int strips_left = 0;
    int line_start = 1;
    while (t->at < t->length) {
        const int64_t tag = next_tag(t);
        char kind;
        char sign;
        put_text(t, tag, strips_left, line_start);
        t->at = tag;
        if (tag == t->length) return 1;
        kind = t->in[tag + 1];
        if (!read_tag(t, kind)) return 0;
        sign = t->in[t->at];
        if (kind == '#') sign = t->in[t->at - 1];
        t->at += kind != '#' && (sign == '-' || sign == '+') ? 3 : 2;
        strips_left = sign == '-';
        line_start = 0;
        if (kind == '{' || sign == '+') continue;
        if (starts(t, t->at, "\r\n")) t->at++;
        line_start = starts(t, t->at, "\n"); /* trim_blocks: the line end behind a statement */
        t->at += line_start;
    }
    return 1;
}

dw_status dw_jinja_plain(char **plain, dw_string jinja, dw_error *err)
{
    translator t = {.in = jinja.data, .length = jinja.length};
    *plain = NULL;
    for (int64_t i = 0; i < jinja.length; i++) {
        if ((unsigned char)jinja.data[i] <= 4) return DW_OK;
    }
    if (t.length > 0 && t.in[t.length - 1] == '\n') t.length--; /* Jinja drops one line end at the end */
    if (t.length > INT64_MAX / 4) return DW_OK;
    /* Nothing grows but a text between tags, by two marks, and a tag has four characters or more. */
    DW_TRY(DW_ALLOC(&t.out, 2 * t.length + 4, "chat template", err));
    if (translate(&t)) {
        put(&t, '\0');
        *plain = t.out;
        return DW_OK;
    }
    dw_free(t.out);
    return DW_OK;
}
