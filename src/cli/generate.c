/* dewpoint generate: rank 0 reads the prompt, prefills it and decodes token by token; the other ranks serve it. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "cli/command.h"
#include "cli/generation.h"
#include "cli/report.h"
#include "cli/text_input.h"
#include "cli/text_output.h"
#include "decode/drafters.h"
#include "decode/sampler.h"
#include "mpi/drafting.h"

/* What rank 0 holds. */
typedef struct {
    dw_rank *rank;
    dw_session *session;
    int32_t *prompt;
    int64_t prompt_count;
    int64_t context;
    float *logits; /* [1 + drafts][vocabulary], the first of the next token */
    dw_sampler *sampler;
    int32_t *tokens;
    int64_t count;
    int64_t capacity;
    dw_text_output text;
    int32_t *history;       /* [context + 1] prompt and tokens; lossless */
    dw_rank_memory *memory; /* [ranks] */
    const char *stop_reason;
} run;

/* Everything that can fail because of what the user gave, before the ranks start to work together. */
static dw_status prepare(void *context, dw_error *err)
{
    run *r = context;
    const dw_rank *rank = r->rank;
    const dw_options *options = rank->options;
    DW_TRY(dw_read_prompt(options, rank->model, rank->tokenizer, &r->prompt, &r->prompt_count, err));
    DW_TRY(dw_choose_context(rank, r->prompt_count, options->tokens, &r->context, err));
    if (options->stop_count > 0 && rank->tokenizer == NULL) {
        return dw_fail(err, DW_INPUT, "%s: --stop needs a tokenizer, and the model has none", rank->model->checkpoint->path);
    }
    r->text = (dw_text_output){.stops = options->stops, .stop_count = options->stop_count, .print = !options->json};
    DW_TRY(dw_sampler_create(&r->sampler, &options->sampling, rank->model->vocabulary, err));
    if (dw_is_lossless(options, 0)) {
        DW_TRY(DW_ALLOC(&r->history, r->context + 1, "tokens", err));
        memcpy(r->history, r->prompt, (size_t)r->prompt_count * sizeof *r->prompt);
    }
    DW_TRY(dw_alloc_bytes((void **)&r->logits, 1 + (dw_is_lossless(options, 0) ? dw_longest_draft(options) : 0),
                          rank->model->vocabulary * (int64_t)sizeof *r->logits, "logits", err));
    return DW_ALLOC(&r->memory, rank->transport->size, "memory report", err);
}

static void release(run *r)
{
    dw_session_destroy(r->session);
    dw_sampler_destroy(r->sampler);
    dw_text_output_free(&r->text);
    dw_free(r->prompt);
    dw_free(r->logits);
    dw_free(r->history);
    dw_free(r->tokens);
    dw_free(r->memory);
}

/* Keeps a token and shows it. */
static dw_status accept(run *r, int32_t id, dw_error *err)
{
    DW_TRY(DW_GROW(&r->tokens, &r->capacity, r->count + 1, "generated tokens", err));
    if (r->history != NULL) r->history[r->prompt_count + r->count] = id;
    r->tokens[r->count++] = id;
    if (r->rank->tokenizer != NULL) {
        return dw_text_output_add(&r->text, dw_token_bytes(r->rank->tokenizer, id, 0), 0, err);
    }
    if (!r->text.print) return DW_OK;
    printf("%s%d", r->count > 1 ? " " : "", id);
    return dw_flush_output(err);
}

/* Why no further token may be made, or NULL. */
static const char *limit_reached(const run *r)
{
    if (dw_interrupted()) return "interrupted";
    if (r->count == r->rank->options->tokens) return "length";
    if (r->prompt_count + r->count >= r->context) return "context";
    return NULL;
}

static int is_end(const run *r, int32_t id)
{
    const dw_tokenizer *tokenizer = r->rank->tokenizer;
    return tokenizer != NULL && !r->rank->options->ignore_eos && dw_tokenizer_is_end(tokenizer, id);
}

/* Takes a token that was chosen, unless it ends the text. Sets stop_reason when nothing may follow it. */
static dw_status take(run *r, int32_t id, dw_error *err)
{
    if (is_end(r, id)) {
        r->stop_reason = "eos";
        return DW_OK;
    }
    DW_TRY(accept(r, id, err));
    if (r->text.stopped) r->stop_reason = "stop";
    return DW_OK;
}

/* The logits of the first token came with the prefill; the last token needs no pass. */
static dw_status decode(run *r, dw_generation *done, dw_error *err)
{
    const int sparse = !dw_plan_is_dense(&r->rank->plans->plans[0]);
    while (r->stop_reason == NULL && (r->stop_reason = limit_reached(r)) == NULL) {
        if (r->count > 0) {
            DW_TRY(dw_session_append(r->session, &r->tokens[r->count - 1], 1, sparse, r->logits, 1, err));
            done->passes++;
            done->decoded++;
        }
        DW_TRY(take(r, dw_sample(r->sampler, r->logits, r->prompt_count + r->count), err));
    }
    return DW_OK;
}

/* Drafts that can be of use: tokens and positions are left for them and for the token behind. */
static int64_t most_drafts(const run *r)
{
    const int64_t tokens = r->rank->options->tokens;
    const int64_t positions = r->context - dw_session_positions(r->session) - 2; /* the last token is not appended */
    int64_t most = dw_longest_draft(r->rank->options);
    if (tokens >= 0 && tokens - r->count - 1 < most) most = tokens - r->count - 1;
    return positions < most ? positions : most;
}

/* Rows of tokens that were chosen behind the end are forgotten: the sequence ends as dense decoding leaves it. */
static dw_status drop_surplus(run *r, dw_error *err)
{
    const int64_t pending = strcmp(r->stop_reason, "eos") != 0; /* the last token was not appended */
    const int64_t positions = r->prompt_count + r->count - pending;
    return dw_session_positions(r->session) > positions ? dw_session_truncate(r->session, positions, err) : DW_OK;
}

static dw_status decode_lossless(run *r, dw_lossless *lossless, dw_generation *done, dw_error *err)
{
    int32_t ids[DW_MAX_DRAFT + 1];
    if ((r->stop_reason = limit_reached(r)) == NULL) {
        DW_TRY(take(r, dw_sample(r->sampler, r->logits, r->prompt_count), err));
    }
    while (r->stop_reason == NULL && (r->stop_reason = limit_reached(r)) == NULL) {
        const dw_history history = {r->history, r->prompt_count + r->count};
        int64_t count;
        DW_TRY(dw_lossless_step(lossless, &history, most_drafts(r), ids, &count, err));
        for (int64_t i = 0; i < count && r->stop_reason == NULL; i++) {
            done->decoded++;
            DW_TRY(take(r, ids[i], err));
        }
    }
    done->passes = lossless->passes;
    done->drafted = lossless->drafted;
    done->accepted = lossless->accepted;
    return drop_surplus(r, err);
}

static dw_status draft_and_decode(run *r, dw_generation *done, dw_error *err)
{
    const int64_t vocabulary = r->rank->model->vocabulary;
    dw_drafts drafts;
    dw_lossless lossless = {.session = r->session,
                            .sampler = r->sampler,
                            .vocabulary = vocabulary,
                            .logits = r->logits,
                            .draft = dw_draft,
                            .outcome = dw_drafts_outcome,
                            .context = &drafts};
    dw_status status;
    DW_TRY(dw_drafts_create(&drafts, r->session, r->sampler, vocabulary, dw_longest_draft(r->rank->options),
                            DW_DRAFT_BY_TEXT | (dw_drafts_by_model(r->rank) ? DW_DRAFT_BY_MODEL : 0), err));
    status = decode_lossless(r, &lossless, done, err);
    dw_drafts_free(&drafts);
    return status;
}

static dw_status decode_all(run *r, dw_generation *done, dw_error *err)
{
    DW_TRY(dw_is_lossless(r->rank->options, 0) ? draft_and_decode(r, done, err) : decode(r, done, err));
    return dw_text_output_add(&r->text, (dw_string){.data = "", .length = 0}, 1, err);
}

static dw_status report(const run *r, const dw_generation *done, dw_error *err)
{
    const dw_options *options = r->rank->options;
    if (options->json) DW_TRY(dw_generation_json(r->rank, done, err));
    if (r->rank->tokenizer == NULL && !options->json) puts("");
    if (!options->quiet) dw_generation_statistics(r->rank, done);
    if (options->verbose) dw_print_machine(r->rank, done->memory);
    DW_TRY(dw_flush_output(err));
    return dw_interrupted() ? DW_INTERRUPTED : DW_OK;
}

static dw_status drive(void *context, dw_error *err)
{
    run *r = context;
    dw_generation done = {.prompt_tokens = r->prompt_count};
    dw_traffic before, all;
    dw_times start, end;
    double clock = dw_now();
    DW_TRY(dw_prefill(r->rank, r->session, r->prompt, r->prompt_count, r->logits, err));
    done.prefill_seconds = dw_now() - clock;

    dw_session_times(r->session, &start);
    DW_TRY(dw_session_traffic(r->session, &before, err));
    clock = dw_now();
    DW_TRY(decode_all(r, &done, err));
    done.decode_seconds = dw_now() - clock;
    dw_session_times(r->session, &end);
    dw_session_omitted(r->session, &done.omitted);
    DW_TRY(dw_session_finish(r->session, r->memory, &all, err));
    r->rank->alone = 1;

    done.is_split = dw_session_is_split(r->session);
    done.tokens = r->tokens;
    done.count = r->count;
    done.text = r->rank->tokenizer == NULL ? NULL : r->text.text == NULL ? "" : r->text.text;
    done.text_length = r->text.length;
    done.stop_reason = r->stop_reason;
    done.times = dw_times_since(&start, &end);
    done.traffic.bytes_sent = all.bytes_sent - before.bytes_sent;
    done.traffic.messages_sent = all.messages_sent - before.messages_sent;
    done.memory = r->memory;
    return report(r, &done, err);
}

dw_status dw_generate(dw_rank *rank, dw_error *err)
{
    run r = {.rank = rank};
    const dw_session_work work = {&r, prepare, drive, &r.context, &r.session};
    const dw_status status = dw_run_session(rank, &work, err);
    release(&r);
    return status;
}
