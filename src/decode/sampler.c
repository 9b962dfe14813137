#include "decode/sampler.h"

#include <math.h>
#include <stddef.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/precise.h"

typedef struct {
    float logit;
    int32_t id;
} candidate;

struct dw_sampler {
    dw_sampling sampling;
    int64_t vocabulary;
    candidate *heap;   /* [vocabulary]: what is not taken yet, best on top */
    candidate *chosen; /* [vocabulary]: what is taken, best first */
};

dw_status dw_sampler_create(dw_sampler **out, const dw_sampling *sampling, int64_t vocabulary, dw_error *err)
{
    dw_sampler *sampler;
    dw_status status;
    *out = NULL;
    if (!isfinite(sampling->temperature) || sampling->temperature < 0) {
        return dw_fail(err, DW_USAGE, "--temperature %g is out of range (0 or more)", sampling->temperature);
    }
    if (sampling->top_k < 0) {
        return dw_fail(err, DW_USAGE, "--top-k %lld is out of range (0 or more)", (long long)sampling->top_k);
    }
    if (!(sampling->top_p >= 0 && sampling->top_p <= 1)) {
        return dw_fail(err, DW_USAGE, "--top-p %g is out of range (0..1)", sampling->top_p);
    }
    if (!(sampling->min_p >= 0 && sampling->min_p <= 1)) {
        return dw_fail(err, DW_USAGE, "--min-p %g is out of range (0..1)", sampling->min_p);
    }
    DW_TRY(DW_ALLOC(&sampler, 1, "sampler", err));
    sampler->sampling = *sampling;
    sampler->vocabulary = vocabulary;
    DW_TRY_GOTO(status, DW_ALLOC(&sampler->heap, vocabulary, "sampler", err), fail);
    DW_TRY_GOTO(status, DW_ALLOC(&sampler->chosen, vocabulary, "sampler", err), fail);
    *out = sampler;
    return DW_OK;
fail:
    dw_sampler_destroy(sampler);
    return status;
}

void dw_sampler_destroy(dw_sampler *sampler)
{
    if (sampler == NULL) return;
    dw_free(sampler->heap);
    dw_free(sampler->chosen);
    dw_free(sampler);
}

/* The total order of candidates. */
static int better(candidate a, candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift_down(candidate *heap, int64_t count, int64_t at)
{
    const candidate moved = heap[at];
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= count) break;
        if (child + 1 < count && better(heap[child + 1], heap[child])) child++;
        if (!better(heap[child], moved)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

static candidate take_best(candidate *heap, int64_t *count)
{
    const candidate best = heap[0];
    heap[0] = heap[--*count];
    if (*count > 0) sift_down(heap, *count, 0);
    return best;
}

/* e^x for x <= 0. */
static double weight(double x)
{
    return x < -700 ? 0 : dw_exp(x);
}

/* Fills sampler->chosen, best first, with the candidates that the cuts leave. Returns how many, at least 1. A heap, since a cut
   usually takes a few hundred of the vocabulary. */
static int64_t cut(dw_sampler *sampler, const float *logits)
{
    const dw_sampling *sampling = &sampler->sampling;
    candidate *chosen = sampler->chosen;
    int64_t waiting = sampler->vocabulary;
    int64_t limit = sampler->vocabulary;
    int64_t count = 0;
    const double floor_below_best = sampling->min_p > 0 ? dw_log(sampling->min_p) : -INFINITY;
    double best, total = 0, sum = 0;
    for (int64_t i = 0; i < waiting; i++) sampler->heap[i] = (candidate){logits[i], (int32_t)i};
    for (int64_t i = waiting / 2 - 1; i >= 0; i--) sift_down(sampler->heap, waiting, i);
    best = sampler->heap[0].logit;

    if (sampling->top_k > 0 && sampling->top_k < limit) limit = sampling->top_k;
    if (sampling->top_p < 1 && limit < sampler->vocabulary) {
        while (count < limit) chosen[count++] = take_best(sampler->heap, &waiting);
        for (int64_t i = 0; i < count; i++) total += weight(chosen[i].logit - best);
    } else if (sampling->top_p < 1) {
        for (int64_t i = 0; i < limit; i++) total += weight(logits[i] - best);
    }
    for (int64_t i = 0; i < limit; i++) {
        if (i == count) chosen[count++] = take_best(sampler->heap, &waiting);
        if (chosen[i].logit - best < floor_below_best) return i;
        if (sampling->top_p >= 1) continue;
        sum += weight(chosen[i].logit - best);
        if (sum >= sampling->top_p * total) return i + 1;
    }
    return limit;
}

static uint64_t mix(uint64_t state, uint64_t part)
{
    return dw_mix(state + part + DW_GOLDEN);
}

/* A number in (0, 1): 52 bits of three rounds, which mix in seed, position and id in turn; state: after the first two. */
static double uniform(uint64_t state, int32_t id)
{
    return ((double)(mix(state, (uint64_t)id) >> 12) + 0.5) * 0x1p-52;
}

int32_t dw_greedy(const float *logits, int64_t vocabulary)
{
    int64_t best = 0;
    for (int64_t i = 1; i < vocabulary; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return (int32_t)best;
}

/* The value of a candidate in the race: part of its logit and noise. The best logit is subtracted first (below <= 0): it changes no
   comparison of exact values, and a tiny temperature can not overflow. */
static double score(double below, double u)
{
    return below - dw_log(-dw_log(u));
}

/* Whether a candidate may beat the value `winning`, without a logarithm: since -log(u) >= 1 - u, it needs 1 - u <= e^-(winning - below),
   which is at most the power of 2 above it. (A thousandth of a bit for rounding.) */
static int may_win(double below, double u, double winning)
{
    const double bits = (winning - below) * 1.4426950408889634 - 0.001;
    if (bits < 1) return 1;
    return bits < 64 && (1 - u) * (double)((uint64_t)1 << (int)bits) <= 1;
}

int32_t dw_sample(dw_sampler *sampler, const float *logits, int64_t position)
{
    const dw_sampling *sampling = &sampler->sampling;
    const int32_t first = dw_greedy(logits, sampler->vocabulary);
    int64_t count = sampler->vocabulary;
    uint64_t state;
    double winning;
    int32_t winner = first;
    const int uncut = sampling->top_k == 0 && sampling->top_p >= 1 && sampling->min_p <= 0;
    if (sampling->temperature == 0) return first;
    if (!uncut) count = cut(sampler, logits);
    state = mix(mix(0, sampling->seed), (uint64_t)position);
    winning = score(0, uniform(state, first));
    for (int64_t i = 0; i < count; i++) {
        const candidate c = uncut ? (candidate){logits[i], (int32_t)i} : sampler->chosen[i];
        const double below = ((double)c.logit - logits[first]) / sampling->temperature;
        const double u = uniform(state, c.id);
        double value;
        if (!may_win(below, u, winning)) continue;
        value = score(below, u);
        if (value > winning || (value == winning && c.id < winner)) {
            winning = value;
            winner = c.id;
        }
    }
    return winner;
}
