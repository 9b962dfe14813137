#include "tokenizer/split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "base/memory.h"

/* White space is Unicode's White_Space as in the regex engines that the models were trained with; PCRE2's \s also matches
   U+180E. What is a letter or a number depends on the Unicode version of the PCRE2 at hand (10.42: Unicode 14); characters
   assigned later count as symbols there. */
#define SPACE "\\p{White_Space}"

/* One row a pre-tokenizer. Where the original pipeline cuts in several steps, the pattern does so in one: what follows the end
   of a step's piece must not be looked at. A pattern matches something at every character. */
static const struct {
    const char *name;
    const char *pattern;
} table[] = {
    {"gpt-2", "'(?:s|t|re|ve|m|ll|d)| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|" SPACE "+(?![^" SPACE "])|" SPACE "+"},
    /* Digits(individual), then GPT-2's on what lies between digits. White space before a digit thus stands at the end of its
       text. */
    {"smollm",
     "\\p{N}|'(?:s|t|re|ve|m|ll|d)| ?\\p{L}+| ?[^" SPACE "\\p{L}\\p{N}]+|" SPACE "+(?![^" SPACE "\\p{N}])|" SPACE "+"},
    {"qwen2", "'(?i:s|t|re|ve|m|ll|d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n]*|" SPACE
              "*[\\r\\n]+|" SPACE "+(?![^" SPACE "])|" SPACE "+"},
    {"llama-bpe", "'(?i:s|t|re|ve|m|ll|d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n]*|" SPACE
                  "*[\\r\\n]+|" SPACE "+(?![^" SPACE "])|" SPACE "+"},
    /* SentencePiece's words, each behind its U+2581 (Metaspace with "split"). */
    {"metaspace", "\\x{2581}[^\\x{2581}]*|[^\\x{2581}]+"},
};

struct dw_splitter {
    pcre2_general_context *memory;
    pcre2_match_context *limits;
    pcre2_code *code;
};

static void *allocate(size_t size, void *unused)
{
    void *block;
    (void)unused;
    return dw_alloc_bytes(&block, (int64_t)size, 1, "split pattern", NULL) == DW_OK ? block : NULL;
}

static void release(void *block, void *unused)
{
    (void)unused;
    dw_free(block);
}

static dw_status regex_error(int code, dw_error *err)
{
    PCRE2_UCHAR8 message[128] = "unknown error";
    if (code == PCRE2_ERROR_HEAP_FAILED || code == PCRE2_ERROR_NOMEMORY) {
        return dw_fail(err, DW_RESOURCE, "not enough memory for the split pattern");
    }
    pcre2_get_error_message(code, message, sizeof message);
    return dw_fail(err, DW_RUNTIME, "splitting text: PCRE2 says: %s", (const char *)message);
}

static dw_status compile(dw_splitter *splitter, const char *pattern, dw_error *err)
{
    int code = PCRE2_ERROR_NOMEMORY;
    PCRE2_SIZE offset;
    splitter->memory = pcre2_general_context_create(allocate, release, NULL);
    if (splitter->memory != NULL) {
        pcre2_compile_context *context = pcre2_compile_context_create(splitter->memory);
        if (context != NULL) {
            splitter->code = pcre2_compile((PCRE2_SPTR8)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &offset,
                                           context);
        }
        pcre2_compile_context_free(context);
        splitter->limits = pcre2_match_context_create(splitter->memory);
    }
    if (splitter->code == NULL) return regex_error(code, err);
    if (splitter->limits == NULL) return regex_error(PCRE2_ERROR_NOMEMORY, err);
    pcre2_set_match_limit(splitter->limits, UINT32_MAX);
    /* Where machine code is not to be had the interpreter gives the same pieces, slower. */
    (void)pcre2_jit_compile(splitter->code, PCRE2_JIT_COMPLETE);
    return DW_OK;
}

dw_status dw_splitter_create(dw_splitter **out, const char *name, dw_error *err)
{
    *out = NULL;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        dw_splitter *splitter;
        dw_status status;
        if (strcmp(name, table[i].name) != 0) continue;
        DW_TRY(DW_ALLOC(&splitter, 1, "split pattern", err));
        status = compile(splitter, table[i].pattern, err);
        if (status != DW_OK) {
            dw_splitter_free(splitter);
            return status;
        }
        *out = splitter;
        return DW_OK;
    }
    return dw_fail(err, DW_INPUT, "pre-tokenizer \"%s\" is not known", dw_printable(dw_string_of(name)).text);
}

void dw_splitter_free(dw_splitter *splitter)
{
    if (splitter == NULL) return;
    pcre2_code_free(splitter->code);
    pcre2_match_context_free(splitter->limits);
    pcre2_general_context_free(splitter->memory);
    dw_free(splitter);
}

/* All that a pattern gives back is white space, one character after the other and each a few times at most. (Without machine
   code PCRE2 counts those steps; hence the limit.) NO_UTF_CHECK: the caller has checked; PCRE2 would check all of the text
   again at each piece. */
dw_status dw_split(const dw_splitter *splitter, const char *text, int64_t length, dw_piece_function *each, void *context,
                   dw_error *err)
{
    dw_status status = DW_OK;
    int64_t at = 0;
    pcre2_match_data *match = pcre2_match_data_create(1, splitter->memory);
    if (match == NULL) return regex_error(PCRE2_ERROR_NOMEMORY, err);
    while (at < length && status == DW_OK) {
        const int code = pcre2_match(splitter->code, (PCRE2_SPTR8)text, (PCRE2_SIZE)length, (PCRE2_SIZE)at, PCRE2_NO_UTF_CHECK,
                                     match, splitter->limits);
        if (code > 0) {
            const int64_t end = (int64_t)pcre2_get_ovector_pointer(match)[1];
            status = each(context, text + at, end - at, err);
            at = end;
        } else {
            status = regex_error(code, err);
        }
    }
    pcre2_match_data_free(match);
    return status;
}
