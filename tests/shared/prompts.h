/* Prompts of tests as token ids. For Criterion tests: anything that goes wrong fails the test. */
#ifndef DW_TESTS_PROMPTS_H
#define DW_TESTS_PROMPTS_H

#include <stdint.h>

#include "tokenizer/tokenizer.h"

/* Pseudo-random ids below vocabulary, the same in every run. */
void prompt_random(int32_t *ids, int64_t count, int64_t vocabulary);

/* The first `count` ids (at most 3,000) of the King James text from Genesis 1:1 on, as Debian's bible-kjv prints it. */
void prompt_king_james(int32_t *ids, int64_t count, const dw_tokenizer *tokenizer);

/* A file with these ids for --prompt-ids, in the directory of fixture_path(name). Valid until the process ends. */
const char *prompt_file(const char *name, const int32_t *ids, int64_t count);

#endif
