/* dewpoint needle: whether the model finds sentences in a long text. "The secret number of CITY is NUMBER." stands somewhere in a
   haystack; behind it the model is asked for the number. A needle is found if every token of the number is the best one, the right ones
   before it given. Dense attention is asked first, then each way of the command line, from the same dense prefill. */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "cli/command.h"
#include "cli/generation.h"
#include "cli/report.h"
#include "cli/text_input.h"
#include "decode/sampler.h"

enum { MAX_ANSWER = 32, CITIES = 16, NEAR = 48 };
static const char *const cities[CITIES] = {"Oslo",   "Quito", "Lagos", "Hanoi", "Turin",  "Perth", "Cairo",  "Lima",
                                           "Prague", "Kyoto", "Dakar", "Sofia", "Boston", "Delhi", "Zurich", "Porto"};

/* One needle and the question for it. */
typedef struct {
    int32_t *needle;
    int64_t needle_count;
    int32_t *question; /* question_count ids, then the answer_count of the number */
    int64_t question_count, answer_count;
} item;

typedef struct {
    int64_t length;
    double depth;  /* per cent of the haystack before the needle; of several needles they stand evenly */
    double *found; /* [1 + choices] share of the needles: dense, then the ways of the command line */
} cell;

/* What rank 0 holds. */
typedef struct {
    dw_rank *rank;
    dw_session *session;
    int32_t *hay; /* the text, BOS in front if the model wants one */
    int64_t hay_count;
    int64_t context;
    int32_t *ids;  /* [context] of the cell at work */
    float *logits; /* [MAX_ANSWER][vocabulary] */
    item items[CITIES];
    int64_t item_count;
    cell *cells;
    int64_t cell_count;
    int64_t choices;
    dw_rank_memory *memory;
} run;

/* ---- needles ---- */

/* splitmix64 of the seed, the length, the depth in thousandths of a per cent and the needle's number. */
static uint64_t hash_of(uint64_t seed, int64_t length, double depth, int64_t needle)
{
    const uint64_t words[] = {seed, (uint64_t)length, (uint64_t)(depth * 1000), (uint64_t)needle};
    uint64_t z = 0;
    for (int i = 0; i < 4; i++) z = dw_mix(z + words[i] + DW_GOLDEN);
    return z;
}

static void free_items(run *r)
{
    for (int64_t i = 0; i < r->item_count; i++) {
        dw_free(r->items[i].needle);
        dw_free(r->items[i].question);
    }
    r->item_count = 0;
}

static dw_status tokenize(const run *r, const char *text, int32_t **ids, int64_t *count, dw_error *err)
{
    return dw_tokenize(r->rank->tokenizer, text, (int64_t)strlen(text), 0, ids, count, err);
}

/* The answer is what the number adds to the ids of the question; a tokenizer that joins both would leave nothing to ask. */
static dw_status make_item(run *r, item *out, const char *city, int number, dw_error *err)
{
    char text[200];
    int32_t *question;
    int64_t same = 0;
    int64_t count;
    int64_t all;
    dw_status status;
    snprintf(text, sizeof text, "\nThe secret number of %s is %d.\n", city, number);
    DW_TRY(tokenize(r, text, &out->needle, &out->needle_count, err));
    snprintf(text, sizeof text, "\nQuestion: What is the secret number of %s? Answer: The secret number of %s is", city, city);
    DW_TRY(tokenize(r, text, &question, &count, err));
    snprintf(text + strlen(text), sizeof text - strlen(text), " %d", number);
    status = tokenize(r, text, &out->question, &all, err);
    while (status == DW_OK && same < count && same < all && question[same] == out->question[same]) same++;
    dw_free(question);
    if (status != DW_OK) return status;
    out->question_count = same;
    out->answer_count = all - same;
    if (same > 0 && out->answer_count > 0 && out->answer_count <= MAX_ANSWER) return DW_OK;
    return dw_fail(err, DW_INPUT, "%s: its tokenizer joins question and answer, so that needle has nothing to ask",
                   r->rank->model->checkpoint->path);
}

static dw_status make_items(run *r, const cell *c, dw_error *err)
{
    const dw_options *options = r->rank->options;
    const uint64_t seed = options->sampling.seed;
    const uint64_t city = hash_of(seed, c->length, c->depth, -1);
    free_items(r);
    for (int64_t i = 0; i < options->needles; i++) {
        const int number = (int)(10000 + hash_of(seed, c->length, c->depth, i) % 90000);
        r->items[i] = (item){0};
        r->item_count = i + 1;
        DW_TRY(make_item(r, &r->items[i], cities[(city + (uint64_t)i) % CITIES], number, err));
    }
    return DW_OK;
}

/* ---- the text of a cell ---- */

/* A place near `at` where a line or a sentence ends, else `at`. */
static int64_t place_of(const run *r, int64_t at)
{
    for (int64_t i = at; i > 0 && i > at - NEAR; i--) {
        const dw_string bytes = dw_token_bytes(r->rank->tokenizer, r->hay[i - 1], 0);
        if (bytes.length > 0 && (bytes.data[bytes.length - 1] == '\n' || bytes.data[bytes.length - 1] == '.')) return i;
    }
    return at;
}

static void add_ids(run *r, int64_t *count, const int32_t *ids, int64_t n)
{
    memcpy(r->ids + *count, ids, (size_t)n * sizeof *ids);
    *count += n;
}

/* Tokens of the haystack that a cell has room for beside its needles, its longest question and the answer. */
static int64_t room_of(const run *r, const cell *c)
{
    int64_t question = 0;
    int64_t needles = 0;
    for (int64_t i = 0; i < r->item_count; i++) {
        const int64_t size = r->items[i].question_count + r->items[i].answer_count;
        question = size > question ? size : question;
        needles += r->items[i].needle_count;
    }
    return c->length - question - needles;
}

/* The haystack with its needles into r->ids; returns their number. */
static int64_t make_text(run *r, const cell *c)
{
    const int64_t room = room_of(r, c);
    int64_t used = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < r->item_count; i++) {
        const double depth = r->item_count == 1 ? c->depth / 100 : ((double)i + 0.5) / (double)r->item_count;
        int64_t at = place_of(r, (int64_t)(depth * (double)room));
        if (at < used) at = used;
        if (at == 0 && dw_tokenizer_bos(r->rank->tokenizer) >= 0) at = 1; /* behind BOS */
        add_ids(r, &count, r->hay + used, at - used);
        add_ids(r, &count, r->items[i].needle, r->items[i].needle_count);
        used = at;
    }
    add_ids(r, &count, r->hay + used, room - used);
    return count;
}

/* ---- asking ---- */

/* Whether the answer is found by rows behind what is in the cache, which ends before the question's last id. */
static dw_status ask(run *r, const item *it, int sparse, int *found, dw_error *err)
{
    const int64_t vocabulary = r->rank->model->vocabulary;
    const int64_t rows = it->answer_count;
    const int32_t *ids = it->question + it->question_count - 1;
    const int64_t start = dw_session_positions(r->session);
    DW_TRY(dw_session_append(r->session, ids, rows, sparse ? rows : 0, r->logits, rows, err));
    *found = 1;
    for (int64_t i = 0; i < rows; i++) *found &= dw_greedy(r->logits + i * vocabulary, vocabulary) == ids[i + 1];
    return dw_session_truncate(r->session, start, err);
}

/* One question, densely and each way. */
static dw_status ask_all(run *r, const cell *c, const item *it, dw_error *err)
{
    const double share = 1.0 / (double)r->item_count;
    int found;
    DW_TRY(dw_prefill(r->rank, r->session, it->question, it->question_count - 1, NULL, err));
    DW_TRY(ask(r, it, 0, &found, err));
    c->found[0] += found * share;
    for (int64_t i = 0; i < r->choices; i++) {
        if (dw_interrupted()) return DW_INTERRUPTED;
        dw_session_use_plan(r->session, i);
        DW_TRY(ask(r, it, !dw_plan_is_dense(&r->rank->plans->plans[i]), &found, err));
        c->found[1 + i] += found * share;
    }
    return DW_OK;
}

static dw_status run_cell(run *r, const cell *c, dw_error *err)
{
    int64_t count;
    DW_TRY(make_items(r, c, err));
    if (room_of(r, c) < 2 || room_of(r, c) > r->hay_count) {
        return dw_fail(err, DW_INPUT, "%s has %lld tokens, a text of %lld with its needles and question needs %lld of them",
                       dw_prompt_source(r->rank->options), (long long)r->hay_count, (long long)c->length,
                       (long long)(room_of(r, c) < 2 ? c->length - room_of(r, c) + 2 : room_of(r, c)));
    }
    count = make_text(r, c);
    DW_TRY(dw_session_truncate(r->session, 0, err));
    DW_TRY(dw_prefill(r->rank, r->session, r->ids, count, NULL, err));
    for (int64_t i = 0; i < r->item_count; i++) {
        if (dw_interrupted()) return DW_INTERRUPTED;
        DW_TRY(ask_all(r, c, &r->items[i], err));
        DW_TRY(dw_session_truncate(r->session, count, err));
    }
    return DW_OK;
}

/* ---- output ---- */

static json_t *cell_json(const run *r, const cell *c)
{
    json_t *found = json_array();
    for (int64_t i = 0; i < r->choices; i++) json_array_append_new(found, json_real(c->found[1 + i]));
    return json_pack("{s:I, s:o, s:I, s:f, s:o}", "length", (json_int_t)c->length, "depth",
                     r->rank->options->needles > 1 ? json_null() : json_real(c->depth), "needles",
                     (json_int_t)r->rank->options->needles, "dense", c->found[0], "found", found);
}

static dw_status print_json(const run *r, dw_error *err)
{
    const dw_omitted nothing = {0};
    const char *path = r->rank->model->checkpoint->path;
    json_t *ways = json_array();
    json_t *results = json_array();
    for (int64_t i = 0; i < r->choices; i++) json_array_append_new(ways, dw_choice_json(r->rank->options, (int)i, &nothing));
    for (int64_t i = 0; i < r->cell_count; i++) json_array_append_new(results, cell_json(r, &r->cells[i]));
    return dw_print_json(json_pack("{s:s, s:o, s:s, s:i, s:o, s:o}", "dewpoint", DW_VERSION, "model",
                                   dw_json_text(path, (int64_t)strlen(path)), "family", r->rank->model->config.family->name,
                                   "ranks", r->rank->transport->size, "attention", ways, "results", results),
                         err);
}

static dw_status print_table(const run *r, dw_error *err)
{
    for (int64_t i = 0; i < r->choices; i++) {
        char text[DW_CHOICE_TEXT];
        dw_choice_text(r->rank->options, (int)i, text);
        printf("way %lld: %s\n", (long long)i + 1, text);
    }
    printf("%8s %8s %8s %8s", "length", "depth", "needles", "dense");
    for (int64_t i = 0; i < r->choices; i++) printf("    way %lld", (long long)i + 1);
    printf("\n");
    for (int64_t n = 0; n < r->cell_count; n++) {
        const cell *c = &r->cells[n];
        char depth[16] = "even";
        if (r->rank->options->needles == 1) snprintf(depth, sizeof depth, "%.0f %%", c->depth);
        printf("%8lld %8s %8lld", (long long)c->length, depth, (long long)r->rank->options->needles);
        for (int64_t i = 0; i <= r->choices; i++) printf(" %6.0f %%", 100 * c->found[i]);
        printf("\n");
    }
    return dw_flush_output(err);
}

/* ---- the run ---- */

static dw_status make_cells(run *r, dw_error *err)
{
    const dw_options *options = r->rank->options;
    const int depths = options->needles > 1 ? 1 : options->needle_depth_count;
    r->choices = r->rank->plans->count;
    r->cell_count = (int64_t)options->length_count * depths;
    DW_TRY(DW_ALLOC(&r->cells, r->cell_count, "results", err));
    for (int64_t i = 0; i < r->cell_count; i++) {
        r->cells[i].length = options->lengths[i / depths];
        r->cells[i].depth = (double)options->needle_depths[i % depths];
        DW_TRY(DW_ALLOC(&r->cells[i].found, 1 + r->choices, "results", err));
    }
    return DW_OK;
}

static dw_status prepare(void *context, dw_error *err)
{
    run *r = context;
    const dw_rank *rank = r->rank;
    int64_t longest = 0;
    if (rank->tokenizer == NULL) {
        return dw_fail(err, DW_INPUT, "%s: needle needs a tokenizer, and the model has none", rank->model->checkpoint->path);
    }
    DW_TRY(dw_read_prompt(rank->options, rank->model, rank->tokenizer, &r->hay, &r->hay_count, err));
    DW_TRY(make_cells(r, err));
    for (int64_t i = 0; i < r->cell_count; i++) longest = r->cells[i].length > longest ? r->cells[i].length : longest;
    DW_TRY(dw_choose_context(rank, longest, 0, &r->context, err));
    DW_TRY(DW_ALLOC(&r->ids, longest, "tokens", err));
    DW_TRY(DW_ALLOC(&r->memory, rank->transport->size, "memory report", err));
    return dw_alloc_bytes((void **)&r->logits, MAX_ANSWER, rank->model->vocabulary * (int64_t)sizeof *r->logits, "logits", err);
}

static void release(run *r)
{
    dw_session_destroy(r->session);
    free_items(r);
    for (int64_t i = 0; r->cells != NULL && i < r->cell_count; i++) dw_free(r->cells[i].found);
    dw_free(r->cells);
    dw_free(r->hay);
    dw_free(r->ids);
    dw_free(r->logits);
    dw_free(r->memory);
}

static dw_status drive(void *context, dw_error *err)
{
    run *r = context;
    dw_status status = DW_OK;
    for (int64_t i = 0; i < r->cell_count && status == DW_OK; i++) {
        status = dw_interrupted() ? DW_INTERRUPTED : run_cell(r, &r->cells[i], err);
    }
    DW_TRY(dw_end_session(r->rank, r->session, r->memory, status, err));
    return r->rank->options->json ? print_json(r, err) : print_table(r, err);
}

dw_status dw_needle(dw_rank *rank, dw_error *err)
{
    run r = {.rank = rank};
    const dw_session_work work = {&r, prepare, drive, &r.context, &r.session};
    const dw_status status = dw_run_session(rank, &work, err);
    release(&r);
    return status;
}
