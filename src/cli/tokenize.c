/* dewpoint tokenize: ids of a text, or with --decode the text of ids. Needs the vocabulary only, and one rank. */
#include <stdio.h>

#include "base/memory.h"
#include "cli/command.h"
#include "cli/report.h"
#include "cli/text_input.h"

static dw_status print_ids(const dw_rank *rank, const int32_t *ids, int64_t count, dw_error *err)
{
    const int json = rank->options->json;
    if (json) printf("{\"ids\": [");
    for (int64_t i = 0; i < count; i++) printf("%s%d", i == 0 ? "" : json ? ", " : " ", ids[i]);
    puts(json ? "]}" : "");
    return dw_flush_output(err);
}

static dw_status encode(const dw_rank *rank, dw_error *err)
{
    char *text;
    int64_t length;
    int32_t *ids = NULL;
    int64_t count = 0;
    dw_status status;
    DW_TRY(dw_read_text(rank->options, &text, &length, err));
    status = dw_tokenize(rank->tokenizer, text, length, rank->options->parse_special, &ids, &count, err);
    if (status == DW_OK) status = print_ids(rank, ids, count, err);
    dw_free(text);
    dw_free(ids);
    return status;
}

/* Control tokens appear as their markup, so that nothing is lost. *text is dw_grow'n. */
static dw_status join(const dw_tokenizer *tokenizer, const int32_t *ids, int64_t count, char **text, int64_t *length,
                      dw_error *err)
{
    dw_utf8_stream stream = {.held_count = 0};
    int64_t capacity = 0;
    for (int64_t i = 0; i < count; i++) {
        const dw_string bytes = dw_token_bytes(tokenizer, ids[i], 1);
        DW_TRY(dw_utf8_feed(&stream, bytes.data, bytes.length, 0, text, length, &capacity, err));
    }
    return dw_utf8_feed(&stream, "", 0, 1, text, length, &capacity, err);
}

static dw_status decode(const dw_rank *rank, dw_error *err)
{
    int32_t *ids;
    int64_t count;
    char *text = NULL;
    int64_t length = 0;
    int64_t from;
    dw_status status;
    DW_TRY(dw_read_ids(rank->options, dw_tokenizer_size(rank->tokenizer), &ids, &count, err));
    status = join(rank->tokenizer, ids, count, &text, &length, err);
    from = length > 0 && text[0] == ' ' && dw_tokenizer_drops_space(rank->tokenizer);
    if (status == DW_OK && rank->options->json) {
        status = dw_print_json(json_pack("{s:o}", "text", dw_json_text(text == NULL ? "" : text + from, length - from)), err);
    } else if (status == DW_OK) {
        if (length > 0) fwrite(text + from, 1, (size_t)(length - from), stdout);
        status = dw_flush_output(err);
    }
    dw_free(ids);
    dw_free(text);
    return status;
}

dw_status dw_tokenize_command(dw_rank *rank, dw_error *err)
{
    rank->alone = 1;
    if (rank->transport->rank != 0) return DW_OK;
    if (rank->tokenizer == NULL) return dw_fail(err, DW_INPUT, "%s: the model has no tokenizer", rank->options->model);
    return rank->options->decode ? decode(rank, err) : encode(rank, err);
}
