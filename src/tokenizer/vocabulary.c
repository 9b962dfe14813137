#include "tokenizer/vocabulary.h"

#include <string.h>

#include "base/memory.h"

/* The alphabet of GPT-2's vocabularies writes each byte as a printable character: 33..126, 161..172 and 174..255 as the code
   point of the same number, the other 68 bytes, in order, as the code points from 256 on. */
enum { ALPHABET_SIZE = 256 + 68 };

static void make_alphabet(int16_t byte_of[ALPHABET_SIZE])
{
    int extra = 256;
    memset(byte_of, -1, ALPHABET_SIZE * sizeof *byte_of);
    for (int16_t b = 0; b < 256; b++) {
        const int printable = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
        byte_of[printable ? b : extra++] = b;
    }
}

/* Bytes that a token of the alphabet stands for, written to out (text.length bytes of room); returns how many, or -1 when a
   character is not of the alphabet. All characters of the alphabet have one or two bytes in UTF-8. */
static int64_t decode(const int16_t byte_of[ALPHABET_SIZE], dw_string text, char *out)
{
    const unsigned char *s = (const unsigned char *)text.data;
    int64_t count = 0;
    for (int64_t i = 0; i < text.length; i++) {
        int point = s[i];
        if (point >= 0x80) {
            if ((point & 0xE0) != 0xC0 || i + 1 == text.length || (s[i + 1] & 0xC0) != 0x80) return -1;
            point = (point & 0x1F) << 6 | (s[++i] & 0x3F);
        }
        if (point >= ALPHABET_SIZE || byte_of[point] < 0) return -1;
        out[count++] = (char)byte_of[point];
    }
    return count;
}

/* The value of "<0xNN>", the name of a byte token; -1 if it is not one. */
static int byte_token_value(dw_string text)
{
    static const char digits[16] = "0123456789ABCDEF"; /* not terminated */
    const char *high;
    const char *low;
    if (text.length != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') return -1;
    high = memchr(digits, text.data[3], sizeof digits);
    low = memchr(digits, text.data[4], sizeof digits);
    return high == NULL || low == NULL ? -1 : (int)(16 * (high - digits) + (low - digits));
}

/* SentencePiece writes a space as U+2581. */
static int64_t unescape(dw_string text, char *out)
{
    int64_t count = 0;
    for (int64_t i = 0; i < text.length; i++) {
        if (text.length - i >= 3 && memcmp(text.data + i, "\xE2\x96\x81", 3) == 0) {
            out[count++] = ' ';
            i += 2;
        } else {
            out[count++] = text.data[i];
        }
    }
    return count;
}

/* Writes the bytes of a token to out (text.length bytes of room) and returns how many. Normal tokens with a character
   outside the alphabet stand for themselves, as in Hugging Face's ByteLevel decoder. */
static int64_t token_bytes(const int16_t byte_of[ALPHABET_SIZE], dw_tokenizer_kind kind, dw_string text, int type, char *out)
{
    const int value = type == DW_TOKEN_BYTE ? byte_token_value(text) : -1;
    const int is_text = type == DW_TOKEN_NORMAL || type == DW_TOKEN_BYTE;
    int64_t count = -1;
    if (value >= 0) {
        out[0] = (char)value;
        return 1;
    }
    if (kind == DW_TOKENIZER_SENTENCEPIECE) return unescape(text, out);
    if (is_text) count = decode(byte_of, text, out);
    if (count >= 0) return count;
    if (text.length > 0) memcpy(out, text.data, (size_t)text.length);
    return text.length;
}

/* Whether a token of one byte is the one for it. SentencePiece: only byte tokens; a normal token of one byte is a character. */
static int stands_for_byte(dw_tokenizer_kind kind, int32_t so_far, int type, int is_learned)
{
    if (kind == DW_TOKENIZER_BYTE_LEVEL && (type == DW_TOKEN_NORMAL || is_learned)) return 1;
    return type == DW_TOKEN_BYTE && so_far < 0;
}

/* Offsets, bytes, types and byte_ids. */
static dw_status fill_tokens(dw_vocabulary *v, const dw_tokenizer_parts *parts, dw_error *err)
{
    int16_t byte_of[ALPHABET_SIZE];
    make_alphabet(byte_of);
    memset(v->byte_ids, -1, sizeof v->byte_ids);
    for (int32_t id = 0; id < (int32_t)v->count; id++) {
        const int64_t type = parts->types == NULL ? DW_TOKEN_NORMAL : parts->types[id];
        const int is_learned = parts->flags != NULL && (parts->flags[id] & DW_TOKEN_IS_LEARNED) != 0;
        char *out = v->bytes + v->offsets[id];
        int64_t length;
        if (type < DW_TOKEN_NORMAL || type > DW_TOKEN_BYTE) {
            return dw_fail(err, DW_INPUT, "token %d has type %lld (tokenizer.ggml.token_type), which is not known", id,
                           (long long)type);
        }
        v->types[id] = (unsigned char)type;
        length = token_bytes(byte_of, parts->kind, parts->tokens[id], (int)type, out);
        v->offsets[id + 1] = v->offsets[id] + length;
        if (length == 1 && stands_for_byte(parts->kind, v->byte_ids[(unsigned char)*out], (int)type, is_learned)) {
            v->byte_ids[(unsigned char)*out] = id;
        }
    }
    return DW_OK;
}

dw_status dw_vocabulary_create(dw_vocabulary *v, const dw_tokenizer_parts *parts, dw_error *err)
{
    int64_t total = 0;
    dw_status status;
    *v = (dw_vocabulary){.count = parts->token_count};
    for (int64_t id = 0; id < v->count; id++) total += parts->tokens[id].length; /* they lie in memory: no overflow */
    DW_TRY_GOTO(status, DW_ALLOC(&v->offsets, v->count + 1, "vocabulary", err), error);
    DW_TRY_GOTO(status, DW_ALLOC(&v->bytes, total, "vocabulary", err), error);
    DW_TRY_GOTO(status, DW_ALLOC(&v->types, v->count, "vocabulary", err), error);
    DW_TRY_GOTO(status, fill_tokens(v, parts, err), error);
    return DW_OK;
error:
    dw_vocabulary_free(v);
    return status;
}

void dw_vocabulary_free(dw_vocabulary *v)
{
    dw_free(v->offsets);
    dw_free(v->bytes);
    dw_free(v->types);
    *v = (dw_vocabulary){0};
}

dw_string dw_vocabulary_bytes(const dw_vocabulary *v, int32_t id)
{
    return (dw_string){.data = v->bytes + v->offsets[id], .length = v->offsets[id + 1] - v->offsets[id]};
}
