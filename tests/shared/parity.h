/* A real model against a float32 program of others: the runs of ../shared/reference/gguf/ and real/ (README.md there). A run is
   a text, its ids, the greedy tokens that follow with the margins of the best two logits, and logits of some positions. For
   Criterion tests: anything that goes wrong fails the test. */
#ifndef DW_TESTS_PARITY_H
#define DW_TESTS_PARITY_H

#include <jansson.h>

#include "model/model.h"
#include "tokenizer/tokenizer.h"

typedef struct {
    dw_model *model;
    dw_tokenizer *tokenizer;
} parity_model;

void parity_load(parity_model *m, const char *path);
void parity_unload(parity_model *m);

/* The runs of a reference file, of which there must be `count`. Free with json_decref. */
json_t *parity_runs(const char *name, size_t count);

/* The tokenizer gives the ids of every run's text. */
void parity_expect_ids(const parity_model *m, const char *name, size_t count);

/* Decodes every run densely with two threads and a cache of this type: prompt in one prefill, then token by token. No logit
   that the reference lists is off by more than tolerance, and the greedy tokens are the reference's, but where its best two
   logits are closer than twice the tolerance: a token may be the other one there, and what follows is not compared.
   A build with the address sanitizer leaves out prompts of more than 100 tokens, and all but the first tokens. */
void parity_expect_runs(const parity_model *m, const char *name, size_t count, dw_type cache, double tolerance);

#endif
