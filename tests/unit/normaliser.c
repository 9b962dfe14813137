/* The paper's claim that the selection does not depend on the normaliser: the best k by softmax weight, by score / n and by squared ReLU of
   the score, each under the order (value descending, position ascending), against the best k by score. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { N = 700, K = 97 };

typedef struct {
    double value;
    int position;
} key;

static int better_first(const void *a, const void *b)
{
    const key *x = a;
    const key *y = b;
    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    return x->position - y->position;
}

static void best(const double *value, int *positions)
{
    key keys[N];
    for (int i = 0; i < N; i++) keys[i] = (key){value[i], i};
    qsort(keys, N, sizeof *keys, better_first);
    for (int i = 0; i < K; i++) positions[i] = keys[i].position;
}

static double softmax(double score, double largest)
{
    return exp(score - largest);
}

static double over_n(double score, double largest)
{
    (void)largest;
    return score / N;
}

static double squared_relu(double score, double largest)
{
    (void)largest;
    return score > 0 ? score * score : 0;
}

/* Whether the same K are the best by score and by the normaliser. */
static int selects_the_same(const double *score, double (*normaliser)(double, double))
{
    int by_score[K], by_value[K];
    double value[N];
    double largest = score[0];
    for (int i = 1; i < N; i++) largest = fmax(largest, score[i]);
    for (int i = 0; i < N; i++) value[i] = normaliser(score[i], largest);
    best(score, by_score);
    best(value, by_value);
    return memcmp(by_score, by_value, sizeof by_score) == 0;
}

/* Scores of `spread` nats around `middle`, all different. */
static void make_scores(double *score, double middle, double spread, uint64_t seed)
{
    uint64_t state = seed;
    for (int i = 0; i < N; i++) {
        uint64_t z = (state += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        score[i] = middle + spread * ((double)((z ^ (z >> 31)) >> 11) * 0x1p-53 + i * 1e-9 - 0.5);
    }
}

Test(normaliser, increasing_ones_select_what_scores_select)
{
    double score[N];
    for (uint64_t seed = 1; seed <= 50; seed++) {
        make_scores(score, (double)seed - 25, 20, seed);
        cr_assert(selects_the_same(score, softmax), "softmax, seed %llu", (unsigned long long)seed);
        cr_assert(selects_the_same(score, over_n), "1/n, seed %llu", (unsigned long long)seed);
    }
}

/* Softmax in double rounds weights to 0 below e^-745: then positions decide. */
Test(normaliser, a_softmax_that_underflows_ties)
{
    double score[N];
    make_scores(score, 0, 20000, 3);
    cr_assert(!selects_the_same(score, softmax));
    cr_assert(selects_the_same(score, over_n));
}

Test(normaliser, squared_relu_selects_the_same_only_where_k_scores_are_positive)
{
    double score[N];
    make_scores(score, 0, 20, 1);
    cr_assert(selects_the_same(score, squared_relu), "half of the scores are positive");
    make_scores(score, -9, 20, 1);
    cr_assert(!selects_the_same(score, squared_relu), "5 % of the scores are positive");
}
