#include "cli/generation.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/report.h"

static double per(double total, double count)
{
    return count > 0 ? total / count : 0;
}

static json_t *tokens_json(const dw_generation *done)
{
    json_t *array = json_array();
    for (int64_t i = 0; array != NULL && i < done->count; i++) {
        if (json_array_append_new(array, json_integer(done->tokens[i])) != 0) {
            json_decref(array);
            array = NULL;
        }
    }
    return array;
}

static json_t *attention_json(const dw_rank *rank, const dw_generation *done)
{
    const int dense = dw_plan_is_dense(&rank->plans->plans[0]);
    json_t *object = dw_choice_json(rank->options, 0, &done->omitted);
    json_t *drafts = json_pack("{s:I, s:I, s:I, s:o}", "drafted", (json_int_t)done->drafted, "accepted",
                               (json_int_t)done->accepted, "dense_passes", (json_int_t)(dense ? done->passes : 0), "discovery",
                               dw_discovery_json(&done->omitted));
    if (json_object_update(object, drafts) != 0) {
        json_decref(object);
        object = NULL;
    }
    json_decref(drafts);
    return object;
}

static json_t *timings_json(const dw_rank *rank, const dw_generation *done)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:o}", "load", rank->load_seconds, "prefill", done->prefill_seconds, "decode",
                     done->decode_seconds, "tokens_per_second", per((double)done->decoded, done->decode_seconds), "per_token",
                     dw_json_times(&done->times, done->decoded));
}

static json_t *memory_json(const dw_rank *rank, const dw_rank_memory *memory)
{
    json_t *array = json_array();
    for (int r = 0; array != NULL && r < rank->transport->size; r++) {
        const dw_rank_memory *m = &memory[r];
        json_t *host = dw_json_text(m->host, (int64_t)strlen(m->host));
        json_t *entry = json_pack("{s:i, s:o, s:I, s:I, s:I, s:I, s:I}", "rank", m->rank, "host", host, "weights",
                                  (json_int_t)m->weights, "kv", (json_int_t)m->kv, "screen", (json_int_t)m->screen, "buffers",
                                  (json_int_t)m->buffers, "peak_rss", (json_int_t)m->peak_rss);
        if (json_array_append_new(array, entry) != 0) {
            json_decref(array);
            array = NULL;
        }
    }
    return array;
}

static const char *linear_way(const dw_generation *done)
{
    return dw_linear_name(done->is_split ? DW_LINEAR_SPLIT : DW_LINEAR_REPLICATED);
}

/* A round is a question of rank 0 to all others and their answer: ranks - 1 messages each way. */
static json_t *traffic_json(const dw_rank *rank, const dw_generation *done)
{
    const double tokens = (double)done->decoded;
    const double round = 2.0 * (rank->transport->size - 1);
    return json_pack("{s:f, s:f, s:s}", "bytes_per_token", per((double)done->traffic.bytes_sent, tokens), "rounds_per_token",
                     per((double)done->traffic.messages_sent, tokens * round), "linear", linear_way(done));
}

dw_status dw_generation_json(const dw_rank *rank, const dw_generation *done, dw_error *err)
{
    const char *path = rank->model->checkpoint->path;
    json_t *text = done->text == NULL ? json_null() : json_stringn(done->text, (size_t)done->text_length);
    return dw_print_json(
        json_pack("{s:s, s:o, s:s, s:i, s:i, s:I, s:i, s:o, s:o, s:s, s:o, s:o, s:o, s:o}", "dewpoint", DW_VERSION, "model",
                  dw_json_text(path, (int64_t)strlen(path)), "family", rank->model->config.family->name, "ranks",
                  rank->transport->size, "threads", dw_pool_threads(rank->pool), "prompt_tokens",
                  (json_int_t)done->prompt_tokens, "restored_tokens", 0, "tokens", tokens_json(done), "text", text,
                  "stop_reason", done->stop_reason, "attention", attention_json(rank, done), "timings",
                  timings_json(rank, done), "memory", memory_json(rank, done->memory), "traffic", traffic_json(rank, done)),
        err);
}

/* The interval in per cent; the ends are rounded outwards, so that it still contains the mass. */
static void print_interval(const char *name, dw_interval mass)
{
    fprintf(stderr, "%s %.2f-%.2f %%", name, floor(mass.low * 1e4) / 100, ceil(mass.high * 1e4) / 100);
}

static void print_attention(const dw_rank *rank, const dw_generation *done)
{
    const dw_omitted *omitted = &done->omitted;
    char text[DW_CHOICE_TEXT];
    dw_choice_text(rank->options, 0, text);
    fprintf(stderr, "attention: %s", text);
    if (dw_plan_is_dense(&rank->plans->plans[0])) fprintf(stderr, ", exact");
    if (done->drafted > 0) {
        fprintf(stderr, ": %lld of %lld drafted tokens accepted, %.2f tokens a dense pass", (long long)done->accepted,
                (long long)done->drafted, per((double)done->decoded, (double)done->passes));
    }
    if (omitted->selected > 0) {
        fprintf(stderr, ", %.0f keys a head on average (%.1f %% of what it sees)",
                per((double)omitted->selected, (double)omitted->count),
                per(100 * (double)omitted->selected, (double)omitted->visible));
    }
    if (omitted->count > 0) {
        print_interval(", omitted attention mass: mean", dw_omitted_mean(omitted));
        print_interval(", worst", (dw_interval){omitted->max_low, omitted->max_high});
        fprintf(stderr, " at position %lld, layer %lld, head %lld", (long long)omitted->max_position,
                (long long)omitted->max_layer, (long long)omitted->max_head);
    }
    if (omitted->survivors > 0) {
        fprintf(stderr, "; the screen read %.2f bytes a key element and left %.0f keys a head",
                (double)omitted->key_bytes / (double)omitted->key_elements,
                per((double)omitted->survivors, (double)omitted->count));
    }
    fprintf(stderr, "\n");
}

void dw_generation_statistics(const dw_rank *rank, const dw_generation *done)
{
    const dw_times *t = &done->times;
    const double ms = per(1000, (double)done->decoded);
    fprintf(stderr, "\nprefill: %lld tokens in %.2f s, %.1f tokens/s\n", (long long)done->prompt_tokens, done->prefill_seconds,
            per((double)done->prompt_tokens, done->prefill_seconds));
    fprintf(stderr, "decode: %lld tokens (%s) in %.2f s, %.1f tokens/s", (long long)done->count, done->stop_reason,
            done->decode_seconds, per((double)done->decoded, done->decode_seconds));
    if (done->passes > 0) {
        fprintf(stderr, "; ms a token: linear %.2f, score %.2f, attend %.2f, reduce %.2f (of it wait %.2f)", t->linear * ms,
                t->score * ms, t->attend * ms, t->reduce * ms, t->wait * ms);
    }
    fprintf(stderr, "\n");
    print_attention(rank, done);
}

void dw_print_machine(const dw_rank *rank, const dw_rank_memory *memory)
{
    int hosts = 0;
    for (int r = 0; r < rank->transport->size; r++) {
        int seen = 0;
        for (int q = 0; q < r; q++) seen |= strcmp(memory[q].host, memory[r].host) == 0;
        hosts += !seen;
    }
    fprintf(stderr, "dewpoint %s (gcc %s), ranks %d on hosts %d\n", DW_VERSION, __VERSION__, rank->transport->size, hosts);
    fprintf(stderr, "%5s %-20s %7s %-7s %10s %10s %10s %10s\n", "rank", "host", "threads", "kernels", "weights", "kv",
            "buffers", "peak rss");
    for (int r = 0; r < rank->transport->size; r++) {
        const dw_rank_memory *m = &memory[r];
        fprintf(stderr, "%5d %-20s %7d %-7s %10s %10s %10s %10s\n", m->rank, m->host, m->threads, m->kernels,
                dw_size_of(m->weights).text, dw_size_of(m->kv).text, dw_size_of(m->buffers).text, dw_size_of(m->peak_rss).text);
    }
}
