#define _GNU_SOURCE /* qsort_r */
#include "tokenizer/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tokenizer/quote.h"

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

static int is_verbatim(int type)
{
    return type == DW_TOKEN_CONTROL || type == DW_TOKEN_USER_DEFINED;
}

/* Writes the bytes of a token to out (text.length bytes of room) and returns how many. Normal tokens with a character
   outside the alphabet stand for themselves, as in Hugging Face's ByteLevel decoder. */
static int64_t token_bytes(const int16_t byte_of[ALPHABET_SIZE], dw_string text, int type, char *out)
{
    const int value = type == DW_TOKEN_BYTE ? byte_token_value(text) : -1;
    int64_t count = -1;
    if (value >= 0) {
        out[0] = (char)value;
        return 1;
    }
    if (type == DW_TOKEN_NORMAL || type == DW_TOKEN_BYTE) count = decode(byte_of, text, out);
    if (count >= 0) return count;
    if (text.length > 0) memcpy(out, text.data, (size_t)text.length);
    return text.length;
}

/* Offsets, bytes, types and byte_ids. */
static dw_status fill_tokens(dw_vocabulary *v, const dw_tokenizer_parts *parts, dw_error *err)
{
    int16_t byte_of[ALPHABET_SIZE];
    make_alphabet(byte_of);
    memset(v->byte_ids, -1, sizeof v->byte_ids);
    for (int32_t id = 0; id < (int32_t)v->count; id++) {
        const int64_t type = parts->types == NULL ? DW_TOKEN_NORMAL : parts->types[id];
        char *out = v->bytes + v->offsets[id];
        int64_t length;
        if (type < DW_TOKEN_NORMAL || type > DW_TOKEN_BYTE) {
            return dw_fail(err, DW_INPUT, "token %d has type %lld (tokenizer.ggml.token_type), which is not known", id,
                           (long long)type);
        }
        v->types[id] = (unsigned char)type;
        length = token_bytes(byte_of, parts->tokens[id], (int)type, out);
        v->offsets[id + 1] = v->offsets[id] + length;
        if (length == 1 && (type == DW_TOKEN_NORMAL || (type == DW_TOKEN_BYTE && v->byte_ids[(unsigned char)*out] < 0))) {
            v->byte_ids[(unsigned char)*out] = id;
        }
    }
    return DW_OK;
}

static int by_first_byte_longest_first(const void *a, const void *b, void *vocabulary)
{
    const int32_t id_a = *(const int32_t *)a;
    const int32_t id_b = *(const int32_t *)b;
    const dw_string text_a = dw_vocabulary_bytes(vocabulary, id_a);
    const dw_string text_b = dw_vocabulary_bytes(vocabulary, id_b);
    const int first_a = (unsigned char)text_a.data[0];
    const int first_b = (unsigned char)text_b.data[0];
    if (first_a != first_b) return first_a - first_b;
    if (text_a.length != text_b.length) return text_a.length > text_b.length ? -1 : 1;
    return id_a < id_b ? -1 : 1;
}

static dw_status fill_verbatim(dw_vocabulary *v, dw_error *err)
{
    int64_t count = 0;
    for (int64_t id = 0; id < v->count; id++) count += is_verbatim(v->types[id]);
    DW_TRY(DW_ALLOC(&v->verbatim, count, "vocabulary", err));
    count = 0;
    for (int32_t id = 0; id < (int32_t)v->count; id++) {
        const dw_string text = dw_vocabulary_bytes(v, id);
        if (!is_verbatim(v->types[id]) || text.length == 0) continue;
        v->verbatim[count++] = id;
        v->verbatim_first[(unsigned char)text.data[0] + 1]++;
    }
    for (int b = 0; b < 256; b++) v->verbatim_first[b + 1] += v->verbatim_first[b];
    qsort_r(v->verbatim, (size_t)count, sizeof *v->verbatim, by_first_byte_longest_first, v);
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
    DW_TRY_GOTO(status, fill_verbatim(v, err), error);
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
    dw_free(v->verbatim);
    *v = (dw_vocabulary){0};
}

dw_string dw_vocabulary_bytes(const dw_vocabulary *v, int32_t id)
{
    return (dw_string){.data = v->bytes + v->offsets[id], .length = v->offsets[id + 1] - v->offsets[id]};
}

int32_t dw_vocabulary_verbatim(const dw_vocabulary *v, const char *text, int64_t length, int parse_special)
{
    const unsigned char first = (unsigned char)text[0];
    for (int32_t i = v->verbatim_first[first]; i < v->verbatim_first[first + 1]; i++) {
        const int32_t id = v->verbatim[i];
        const dw_string token = dw_vocabulary_bytes(v, id);
        if (v->types[id] == DW_TOKEN_CONTROL && !parse_special) continue;
        if (token.length <= length && memcmp(token.data, text, (size_t)token.length) == 0) return id;
    }
    return -1;
}

/* ---- merges: pairs of strings to pairs of ids ---- */

/* Token strings as the file writes them; open addressing, linear probing. */
typedef struct {
    const dw_string *tokens;
    int32_t *slots; /* id or -1 */
    uint64_t mask;
} string_table;

static int32_t *find_string(const string_table *table, dw_string text)
{
    uint64_t hash = UINT64_C(0xCBF29CE484222325); /* FNV-1a */
    for (int64_t i = 0; i < text.length; i++) hash = (hash ^ (unsigned char)text.data[i]) * UINT64_C(0x100000001B3);
    for (hash ^= hash >> 32;; hash++) {
        int32_t *slot = &table->slots[hash & table->mask];
        const dw_string *token = *slot < 0 ? NULL : &table->tokens[*slot];
        if (token == NULL) return slot;
        if (token->length == text.length && memcmp(token->data, text.data, (size_t)text.length) == 0) return slot;
    }
}

/* Of equal strings the last token counts, as where the vocabulary is read into a map. */
static dw_status fill_table(string_table *table, const dw_tokenizer_parts *parts, dw_error *err)
{
    int64_t slot_count = 2;
    while (slot_count < 2 * parts->token_count) slot_count *= 2;
    table->tokens = parts->tokens;
    table->mask = (uint64_t)slot_count - 1;
    DW_TRY(DW_ALLOC(&table->slots, slot_count, "vocabulary", err));
    memset(table->slots, -1, (size_t)slot_count * sizeof *table->slots);
    for (int32_t id = 0; id < (int32_t)parts->token_count; id++) {
        if (parts->tokens[id].length > 0) *find_string(table, parts->tokens[id]) = id;
    }
    return DW_OK;
}

/* buffer: text.length bytes of room. */
static dw_status read_merge(const string_table *table, dw_string text, int64_t rank, char *buffer, dw_merge *merge,
                            dw_error *err)
{
    char quoted[DW_QUOTE_SIZE];
    const char *space = text.length > 2 ? memchr(text.data + 1, ' ', (size_t)text.length - 2) : NULL;
    dw_string left, right, joined;
    if (space == NULL) {
        return dw_fail(err, DW_INPUT, "merge %lld (tokenizer.ggml.merges) is %s, not two tokens with a space between",
                       (long long)rank, dw_quote(text, quoted));
    }
    left = (dw_string){.data = text.data, .length = space - text.data};
    right = (dw_string){.data = space + 1, .length = text.length - left.length - 1};
    memcpy(buffer, left.data, (size_t)left.length);
    memcpy(buffer + left.length, right.data, (size_t)right.length);
    joined = (dw_string){.data = buffer, .length = left.length + right.length};
    *merge = (dw_merge){
        .left = *find_string(table, left), .right = *find_string(table, right), .result = *find_string(table, joined)};
    if (merge->left < 0 || merge->right < 0 || merge->result < 0) {
        return dw_fail(err, DW_INPUT, "merge %lld (tokenizer.ggml.merges): %s is not a token", (long long)rank,
                       dw_quote(merge->left < 0    ? left
                                : merge->right < 0 ? right
                                                   : joined,
                                quoted));
    }
    return DW_OK;
}

dw_status dw_vocabulary_merges(dw_merges *merges, const dw_tokenizer_parts *parts, dw_error *err)
{
    string_table table = {0};
    dw_merge *list = NULL;
    char *buffer = NULL;
    int64_t longest = 0;
    dw_status status;
    for (int64_t i = 0; i < parts->merge_count; i++) {
        if (parts->merges[i].length > longest) longest = parts->merges[i].length;
    }
    DW_TRY_GOTO(status, fill_table(&table, parts, err), end);
    DW_TRY_GOTO(status, DW_ALLOC(&list, parts->merge_count, "merges", err), end);
    DW_TRY_GOTO(status, DW_ALLOC(&buffer, longest, "merges", err), end);
    for (int64_t i = 0; i < parts->merge_count; i++) {
        DW_TRY_GOTO(status, read_merge(&table, parts->merges[i], i, buffer, &list[i], err), end);
    }
    status = dw_merges_create(merges, list, parts->merge_count, err);
    list = NULL;
end:
    dw_free(table.slots);
    dw_free(buffer);
    dw_free(list);
    return status;
}
