#define _GNU_SOURCE /* memmem */
#include "cli/text_input.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cli/report.h"
#include "tokenizer/chat.h"
#include "tokenizer/chat_template.h"

const char *dw_prompt_source(const dw_options *options)
{
    const char *file = options->prompt_file != NULL ? options->prompt_file : options->prompt_ids;
    if (file == NULL) return "--prompt";
    return strcmp(file, "-") == 0 ? "stdin" : file;
}

static dw_status read_stream(FILE *file, const char *name, char **data, int64_t *length, dw_error *err)
{
    enum { PIECE = 1 << 16 };
    int64_t capacity = 0;
    size_t got;
    do {
        DW_TRY(DW_GROW(data, &capacity, *length + PIECE, name, err));
        errno = 0;
        got = fread(*data + *length, 1, PIECE, file);
        *length += (int64_t)got;
    } while (got > 0);
    if (ferror(file)) return dw_fail(err, DW_INPUT, "%s: can not be read: %s", name, strerror(errno));
    return DW_OK;
}

/* Any bytes. path "-" is stdin. */
static dw_status read_file(const char *path, const char *name, char **data, int64_t *length, dw_error *err)
{
    const int is_stdin = strcmp(path, "-") == 0;
    FILE *file = is_stdin ? stdin : fopen(path, "re");
    dw_status status;
    *data = NULL;
    *length = 0;
    if (file == NULL) return dw_fail(err, DW_INPUT, "%s: can not be opened: %s", name, strerror(errno));
    status = read_stream(file, name, data, length, err);
    if (!is_stdin) fclose(file);
    if (status == DW_OK) return DW_OK;
    dw_free(*data);
    *data = NULL;
    return status;
}

static dw_status copy_argument(const char *argument, char **text, int64_t *length, dw_error *err)
{
    *length = (int64_t)strlen(argument);
    DW_TRY(DW_ALLOC(text, *length, "prompt", err));
    memcpy(*text, argument, (size_t)*length);
    return DW_OK;
}

static dw_status make_valid(char **text, int64_t *length, dw_error *err)
{
    dw_utf8_stream stream = {.held_count = 0};
    char *valid = NULL;
    int64_t valid_length = 0;
    int64_t capacity = 0;
    const dw_status status = dw_utf8_feed(&stream, *text, *length, 1, &valid, &valid_length, &capacity, err);
    dw_free(*text);
    *text = valid;
    *length = valid_length;
    return status;
}

/* Carriage returns are tokens that models rarely saw; a text from another system may hold them unnoticed. */
static void warn_of_crlf(const dw_options *options, const char *text, int64_t length)
{
    char warning[512];
    if (options->quiet || length == 0 || memmem(text, (size_t)length, "\r\n", 2) == NULL) return;
    snprintf(warning, sizeof warning, "%s has lines that end with CR LF; the CR are kept", dw_prompt_source(options));
    dw_report_error("warning: ", warning);
}

dw_status dw_read_text(const dw_options *options, char **text, int64_t *length, dw_error *err)
{
    const char *name = dw_prompt_source(options);
    int64_t bad;
    dw_status status = DW_OK;
    *text = NULL;
    if (options->prompt != NULL) {
        DW_TRY(copy_argument(options->prompt, text, length, err));
    } else {
        DW_TRY(read_file(options->prompt_file, name, text, length, err));
    }
    bad = dw_utf8_check(*text, *length);
    if (bad >= 0 && options->lossy) {
        status = make_valid(text, length, err);
    } else if (bad >= 0) {
        status = dw_fail(err, DW_INPUT, "%s: invalid UTF-8 at byte %lld; --lossy replaces it", name, (long long)bad);
    }
    if (status == DW_OK) {
        warn_of_crlf(options, *text, *length);
        return DW_OK;
    }
    dw_free(*text);
    *text = NULL;
    return status;
}

/* ---- ids ---- */

static int is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

static dw_status bad_ids(const char *name, int64_t at, const char *why, dw_error *err)
{
    return dw_fail(err, DW_INPUT, "%s: byte %lld: %s", name, (long long)at, why);
}

/* Reads the number at text[*at]; anything above 2^31 stays there, which no vocabulary holds. */
static int64_t read_number(const char *text, int64_t length, int64_t *at)
{
    const int64_t most = (int64_t)1 << 31;
    int64_t value = 0;
    const int negative = text[*at] == '-';
    for (*at += negative; *at < length && text[*at] >= '0' && text[*at] <= '9'; ++*at) {
        value = value * 10 + (text[*at] - '0');
        if (value > most) value = most;
    }
    return negative ? -value : value;
}

typedef struct {
    const char *name;
    const char *text;
    int64_t length;
    int64_t vocabulary;
    int32_t *ids;
    int64_t count;
    int64_t capacity;
} id_list;

/* One id that starts at *at; a separator, "]" or the end must follow. */
static dw_status read_id(id_list *list, int64_t *at, dw_error *err)
{
    const int64_t start = *at;
    const int64_t digits = start + (list->text[start] == '-');
    const int64_t id = read_number(list->text, list->length, at);
    const char next = *at < list->length ? list->text[*at] : ' ';
    if (*at == digits || (!is_space(next) && next != ',' && next != ']')) {
        return bad_ids(list->name, start, "this is not a token id", err);
    }
    if (id < 0 || id >= list->vocabulary) {
        return dw_fail(err, DW_INPUT, "%s: the id at index %lld is outside the vocabulary (0..%lld)", list->name,
                       (long long)list->count, (long long)list->vocabulary - 1);
    }
    DW_TRY(DW_GROW(&list->ids, &list->capacity, list->count + 1, "token ids", err));
    list->ids[list->count++] = (int32_t)id;
    return DW_OK;
}

/* Numbers between white space or commas; all of it may stand in [ ]. */
static dw_status parse_ids(id_list *list, dw_error *err)
{
    int open = 0;
    int closed = 0;
    int64_t at = 0;
    while (at < list->length) {
        const char c = list->text[at];
        if (is_space(c) || (c == ',' && !closed)) {
            at++;
        } else if (c == '[' && !open && list->count == 0) {
            open = 1;
            at++;
        } else if (c == ']' && open && !closed) {
            closed = 1;
            at++;
        } else if (closed) {
            return bad_ids(list->name, at, "nothing may follow the array", err);
        } else {
            DW_TRY(read_id(list, &at, err));
        }
    }
    if (open && !closed) return bad_ids(list->name, at, "the array is not closed", err);
    return DW_OK;
}

dw_status dw_read_ids(const dw_options *options, int64_t vocabulary, int32_t **ids, int64_t *count, dw_error *err)
{
    id_list list = {.name = dw_prompt_source(options), .vocabulary = vocabulary};
    char *text;
    dw_status status;
    *ids = NULL;
    *count = 0;
    DW_TRY(read_file(options->prompt_ids, list.name, &text, &list.length, err));
    list.text = text;
    status = parse_ids(&list, err);
    dw_free(text);
    if (status != DW_OK) {
        dw_free(list.ids);
        return status;
    }
    *ids = list.ids;
    *count = list.count;
    return DW_OK;
}

/* ---- the prompt of a model ---- */

/* Puts the model's BOS in front, unless the text already began with it. */
static dw_status add_bos(const dw_tokenizer *tokenizer, int32_t **ids, int64_t *count, dw_error *err)
{
    const int32_t bos = dw_tokenizer_bos(tokenizer);
    int32_t *longer;
    if (bos < 0 || (*count > 0 && (*ids)[0] == bos)) return DW_OK;
    DW_TRY(DW_ALLOC(&longer, *count + 1, "token ids", err));
    longer[0] = bos;
    if (*count > 0) memcpy(longer + 1, *ids, (size_t)*count * sizeof **ids);
    dw_free(*ids);
    *ids = longer;
    ++*count;
    return DW_OK;
}

/* Joins pieces and notes which bytes are markup. *text and *spans are dw_free'd by the caller, also on failure. */
static dw_status join_pieces(const dw_chat_piece *pieces, int64_t count, char **text, int64_t *length, dw_span **spans,
                             int64_t *span_count, dw_error *err)
{
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++) total += pieces[i].text.length; /* they lie in memory: no overflow */
    DW_TRY(DW_ALLOC(text, total, "prompt", err));
    DW_TRY(DW_ALLOC(spans, count, "prompt", err));
    for (int64_t i = 0; i < count; i++) {
        const dw_string piece = pieces[i].text;
        if (piece.length > 0) memcpy(*text + *length, piece.data, (size_t)piece.length);
        if (pieces[i].is_markup) (*spans)[(*span_count)++] = (dw_span){*length, *length + piece.length};
        *length += piece.length;
    }
    return DW_OK;
}

static dw_status tokenize_pieces(const dw_tokenizer *tokenizer, const dw_chat_piece *pieces, int64_t count, int32_t **ids,
                                 int64_t *id_count, dw_error *err)
{
    char *text = NULL;
    int64_t length = 0;
    dw_span *spans = NULL;
    int64_t span_count = 0;
    dw_status status = join_pieces(pieces, count, &text, &length, &spans, &span_count, err);
    if (status == DW_OK) status = dw_tokenize_marked(tokenizer, text, length, spans, span_count, ids, id_count, err);
    dw_free(text);
    dw_free(spans);
    return status;
}

/* What the user says, written as the model's chat template has it. */
static dw_status read_chat_ids(const dw_options *options, const dw_model *model, const dw_tokenizer *tokenizer, dw_string user,
                               int32_t **ids, int64_t *count, dw_error *err)
{
    const char *path = model->checkpoint->path;
    dw_chat_format *format;
    dw_chat_piece pieces[DW_CHAT_PIECES];
    int64_t piece_count = 0;
    char *jinja;
    int64_t length;
    dw_status status;
    DW_TRY(dw_chat_template(model->checkpoint, &jinja, &length, err));
    if (jinja == NULL) {
        return dw_fail(err, DW_INPUT, "%s: the model has no chat template; give a raw prompt, without --chat", path);
    }
    status = dw_chat_recognise(&format, (dw_string){jinja, length}, err);
    if (status == DW_OK) {
        status = dw_chat_render(format, options->system, user, pieces, &piece_count, err);
    }
    if (status != DW_OK) dw_fail_context(err, "%s", path);
    if (status == DW_OK) status = tokenize_pieces(tokenizer, pieces, piece_count, ids, count, err);
    if (status == DW_OK && !options->quiet) fprintf(stderr, "chat format: %s\n", dw_chat_name(format));
    dw_chat_free(format);
    dw_free(jinja);
    return status;
}

static dw_status read_text_ids(const dw_options *options, const dw_model *model, const dw_tokenizer *tokenizer, int32_t **ids,
                               int64_t *count, dw_error *err)
{
    char *text;
    int64_t length;
    dw_status status = DW_OK;
    DW_TRY(dw_read_text(options, &text, &length, err));
    if (length > 0 && options->chat) {
        status = read_chat_ids(options, model, tokenizer, (dw_string){text, length}, ids, count, err);
    } else if (length > 0) { /* BOS alone is no prompt */
        status = dw_tokenize(tokenizer, text, length, options->parse_special, ids, count, err);
    }
    if (status == DW_OK && *count > 0) status = add_bos(tokenizer, ids, count, err);
    dw_free(text);
    return status;
}

static dw_status check_prompt(const dw_options *options, const dw_model *model, const int32_t *ids, int64_t count,
                              dw_error *err)
{
    if (count == 0) return dw_fail(err, DW_INPUT, "%s: the prompt is empty", dw_prompt_source(options));
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] >= model->vocabulary) {
            return dw_fail(err, DW_INPUT, "%s: the tokenizer gives the id %d, but the model has only %lld tokens",
                           model->checkpoint->path, ids[i], (long long)model->vocabulary);
        }
    }
    return DW_OK;
}

dw_status dw_read_prompt(const dw_options *options, const dw_model *model, const dw_tokenizer *tokenizer, int32_t **ids,
                         int64_t *count, dw_error *err)
{
    dw_status status;
    *ids = NULL;
    *count = 0;
    if (options->prompt_ids != NULL) {
        status = dw_read_ids(options, model->vocabulary, ids, count, err);
    } else if (tokenizer == NULL) {
        status = dw_fail(err, DW_INPUT, "%s: the model has no tokenizer; give the prompt by --prompt-ids",
                         model->checkpoint->path);
    } else {
        status = read_text_ids(options, model, tokenizer, ids, count, err);
    }
    if (status == DW_OK) status = check_prompt(options, model, *ids, *count, err);
    if (status == DW_OK) return DW_OK;
    dw_free(*ids);
    *ids = NULL;
    return status;
}
