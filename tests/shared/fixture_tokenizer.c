/* The vocabulary of fixture models: byte-level BPE small enough to check by hand. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/shared/fixtures.h"

enum { CONTROLS = 3, BYTES = 256, MAX_TOKENS = 4096, MAX_TOKEN = 32, NORMAL = 1, CONTROL = 3, UNUSED = 5 };

/* "\xC4\xA0" is U+0120, the stand-in of a space; "\xC4\x8A" is U+010A, that of a line feed. Rank is the order. */
#define SPACE "\xC4\xA0"
#define NEWLINE "\xC4\x8A"
/* clang-format off */
static const char *const merges[] = {
    SPACE " t",   "h e",         SPACE " a",      "i n",           SPACE "t he", "e r",           "n d",
    SPACE " w",   "r e",         SPACE "a nd",    "o u",           SPACE " s",   "o n",           "e s",
    SPACE " d",   SPACE " o",    SPACE "o f",     "i s",           SPACE " b",   NEWLINE " " NEWLINE, SPACE " " SPACE,
    "e w",        "in g",        SPACE "d ew",    "p o",           "in t",       "po int",        "l l",
    "\xC3\x83 \xC2\xA9", /* the two bytes of e with acute accent */
};
/* clang-format on */
enum { MERGES = sizeof merges / sizeof merges[0] };

/* Writes the UTF-8 form of the character that stands for a byte; printable bytes of Latin-1 stand for themselves, the
   others for U+0100 and up, in order. */
static void byte_text(int byte, char *text)
{
    int other = 0;
    int code = byte;
    for (int b = 0; b <= byte; b++) {
        const int printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (!printable && b == byte) code = 256 + other;
        other += !printable;
    }
    if (code < 128) {
        snprintf(text, MAX_TOKEN, "%c", code);
    } else {
        snprintf(text, MAX_TOKEN, "%c%c", 0xC0 | code >> 6, 0x80 | (code & 63));
    }
}

void fixture_tokenizer(gguf_writer *writer, int64_t vocabulary)
{
    static const char *const controls[CONTROLS] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    static char text[MAX_TOKENS][MAX_TOKEN];
    static const char *tokens[MAX_TOKENS];
    static int32_t types[MAX_TOKENS];
    cr_assert(vocabulary >= CONTROLS + BYTES + MERGES && vocabulary <= MAX_TOKENS, "no fixture tokenizer of %lld tokens",
              (long long)vocabulary);
    for (int64_t i = 0; i < vocabulary; i++) {
        const int64_t merge = i - CONTROLS - BYTES;
        types[i] = i < CONTROLS ? CONTROL : merge < MERGES ? NORMAL : UNUSED;
        tokens[i] = text[i];
        if (i < CONTROLS) {
            snprintf(text[i], MAX_TOKEN, "%s", controls[i]);
        } else if (merge < 0) {
            byte_text((int)(i - CONTROLS), text[i]);
        } else if (merge < MERGES) {
            const char *gap = strchr(merges[merge], ' ');
            snprintf(text[i], MAX_TOKEN, "%.*s%s", (int)(gap - merges[merge]), merges[merge], gap + 1);
        } else {
            snprintf(text[i], MAX_TOKEN, "<unused_%lld>", (long long)(merge - MERGES));
        }
    }
    gguf_put_string(writer, "tokenizer.ggml.model", "gpt2");
    gguf_put_string(writer, "tokenizer.ggml.pre", "smollm");
    gguf_put_strings(writer, "tokenizer.ggml.tokens", tokens, vocabulary);
    gguf_put_array(writer, "tokenizer.ggml.token_type", GGUF_I32, 4, types, vocabulary);
    gguf_put_strings(writer, "tokenizer.ggml.merges", merges, MERGES);
    gguf_put_u32(writer, "tokenizer.ggml.bos_token_id", 1);
    gguf_put_u32(writer, "tokenizer.ggml.eos_token_id", 2);
    gguf_put_u32(writer, "tokenizer.ggml.unknown_token_id", 0);
    gguf_put_u32(writer, "tokenizer.ggml.padding_token_id", 2);
    gguf_put_bool(writer, "tokenizer.ggml.add_bos_token", 0);
    gguf_put_bool(writer, "tokenizer.ggml.add_space_prefix", 0);
}
