/* The fields of a ModelProto (protocol buffers; sentencepiece_model.proto) that decide about ids; others are passed over. */
#include "tokenizer/sentencepiece_model.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/memory.h"
#include "tokenizer/load_json.h"

/* Field numbers. */
enum {
    MODEL_PIECES = 1,
    MODEL_TRAINER = 2,
    MODEL_NORMALIZER = 3,
    PIECE_TEXT = 1,
    PIECE_SCORE = 2,
    PIECE_TYPE = 3,
    TRAINER_MODEL_TYPE = 3,
    TRAINER_SPACE_IS_SUFFIX = 24,
    TRAINER_UNK_ID = 40,
    TRAINER_BOS_ID = 41,
    TRAINER_EOS_ID = 42,
    NORMALIZER_CHARSMAP = 2,
    NORMALIZER_DUMMY_PREFIX = 3,
    NORMALIZER_COLLAPSE = 4,
    NORMALIZER_ESCAPE = 5,
    BPE = 2 /* of model_type */
};

typedef struct {
    const dw_file *file;
    dw_tokenizer_parts parts;
    dw_string *tokens; /* the arrays of parts */
    int64_t *types;
    float *scores;
    int64_t capacity[3];
    int64_t *ends;
    int64_t eos;
    int64_t model_type;
    int has_suffixes;
    int is_escaped;
    int collapses;
    int64_t charsmap_bytes;
} reader;

#define REFUSE(r, err, ...) DW_REFUSE((r)->file->path, err, __VA_ARGS__)

/* ---- protocol buffers ---- */

/* One field: a number (varint, or the bits of a fixed32), or the bytes of a string or message. */
typedef struct {
    int64_t number;
    uint64_t value;
    dw_string bytes;
} field;

/* Reads a varint at *at of message. 0: it is damaged. */
static int read_varint(dw_string message, int64_t *at, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 64 && *at < message.length; shift += 7) {
        const unsigned char byte = (unsigned char)message.data[(*at)++];
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if ((byte & 0x80) == 0) return 1;
    }
    return 0;
}

static int skip(dw_string message, int64_t *at, int64_t bytes, dw_string *out)
{
    if (bytes < 0 || bytes > message.length - *at) return 0;
    *out = (dw_string){message.data + *at, bytes};
    *at += bytes;
    return 1;
}

/* The next field of message. 0: it is damaged. */
static int read_field(dw_string message, int64_t *at, field *f)
{
    uint64_t key;
    uint64_t length;
    *f = (field){0};
    if (!read_varint(message, at, &key)) return 0;
    f->number = (int64_t)(key >> 3);
    switch (key & 7) {
    case 0: return read_varint(message, at, &f->value);
    case 1: return skip(message, at, 8, &f->bytes);
    case 2: return read_varint(message, at, &length) && length <= INT64_MAX && skip(message, at, (int64_t)length, &f->bytes);
    case 5:
        if (!skip(message, at, 4, &f->bytes)) return 0;
        memcpy(&f->value, f->bytes.data, 4);
        return 1;
    default: return 0;
    }
}

typedef dw_status field_reader(reader *r, const field *f, dw_error *err);

static dw_status read_message(reader *r, dw_string message, field_reader *read, dw_error *err)
{
    int64_t at = 0;
    while (at < message.length) {
        field f;
        if (!read_field(message, &at, &f)) return REFUSE(r, err, "damaged: not the fields of a SentencePiece model");
        DW_TRY(read(r, &f, err));
    }
    return DW_OK;
}

/* ---- the messages ---- */

static dw_status read_piece_field(reader *r, const field *f, dw_error *err)
{
    const int64_t last = r->parts.token_count - 1;
    (void)err;
    if (f->number == PIECE_TEXT) r->tokens[last] = f->bytes;
    if (f->number == PIECE_SCORE) memcpy(&r->scores[last], &f->value, sizeof(float));
    if (f->number == PIECE_TYPE) r->types[last] = (int64_t)f->value; /* the numbers are those of DW_TOKEN_* */
    return DW_OK;
}

static dw_status read_trainer_field(reader *r, const field *f, dw_error *err)
{
    (void)err;
    if (f->number == TRAINER_MODEL_TYPE) r->model_type = (int64_t)f->value;
    if (f->number == TRAINER_UNK_ID) r->parts.unknown = (int32_t)f->value;
    if (f->number == TRAINER_BOS_ID) r->parts.bos = (int32_t)f->value;
    if (f->number == TRAINER_EOS_ID) r->eos = (int32_t)f->value;
    if (f->number == TRAINER_SPACE_IS_SUFFIX) r->has_suffixes = f->value != 0;
    return DW_OK;
}

static dw_status read_normalizer_field(reader *r, const field *f, dw_error *err)
{
    (void)err;
    if (f->number == NORMALIZER_CHARSMAP) r->charsmap_bytes = f->bytes.length;
    if (f->number == NORMALIZER_DUMMY_PREFIX) r->parts.prefix = f->value != 0 ? DW_PREFIX_NORMALIZER : DW_PREFIX_NONE;
    if (f->number == NORMALIZER_COLLAPSE) r->collapses = f->value != 0;
    if (f->number == NORMALIZER_ESCAPE) r->is_escaped = f->value != 0;
    return DW_OK;
}

static dw_status read_model_field(reader *r, const field *f, dw_error *err)
{
    if (f->number == MODEL_TRAINER) return read_message(r, f->bytes, read_trainer_field, err);
    if (f->number == MODEL_NORMALIZER) return read_message(r, f->bytes, read_normalizer_field, err);
    if (f->number != MODEL_PIECES) return DW_OK;
    const int64_t count = ++r->parts.token_count;
    DW_TRY(DW_GROW(&r->tokens, &r->capacity[0], count, "vocabulary", err));
    DW_TRY(DW_GROW(&r->types, &r->capacity[1], count, "vocabulary", err));
    DW_TRY(DW_GROW(&r->scores, &r->capacity[2], count, "vocabulary", err));
    r->types[count - 1] = DW_TOKEN_NORMAL;
    return read_message(r, f->bytes, read_piece_field, err);
}

static dw_status check(const reader *r, dw_error *err)
{
    if (r->model_type != BPE)
        return REFUSE(r, err, "a SentencePiece model of type %lld; 2 (BPE) is supported", (long long)r->model_type);
    if (!r->is_escaped) return REFUSE(r, err, "a SentencePiece model that does not escape spaces is not supported");
    if (r->collapses) return REFUSE(r, err, "a SentencePiece model that drops spaces is not supported");
    if (r->charsmap_bytes > 0) return REFUSE(r, err, "a SentencePiece model that maps characters is not supported");
    if (r->has_suffixes) return REFUSE(r, err, "a SentencePiece model with spaces behind words is not supported");
    if (r->parts.bos >= r->parts.token_count || r->eos >= r->parts.token_count) {
        return REFUSE(r, err, "bos_id is %lld and eos_id %lld, but there are %lld pieces", (long long)r->parts.bos,
                      (long long)r->eos, (long long)r->parts.token_count);
    }
    return DW_OK;
}

/* Tokens that were added later stand in other files; without them a text would get other ids. */
static dw_status refuse_added(const reader *r, const dw_checkpoint *checkpoint, const char *name, const char *list,
                              dw_error *err)
{
    json_t *json;
    const json_t *added;
    const char *key;
    json_t *value;
    int64_t beyond = -1;
    DW_TRY(dw_checkpoint_json(checkpoint, name, 0, &json, err));
    added = list == NULL ? json : json_object_get(json, list);
    json_object_foreach((json_t *)added, key, value) {
        const int64_t id = list == NULL ? json_integer_value(value) : strtoll(key, NULL, 10);
        if (id >= r->parts.token_count) beyond = id;
    }
    json_decref(json);
    if (beyond < 0) return DW_OK;
    return dw_fail(err, DW_INPUT,
                   "%s/%s adds token %lld to the %lld of tokenizer.model, which is not supported; tokenizer.json (of the same "
                   "model) would hold all of them",
                   checkpoint->path, name, (long long)beyond, (long long)r->parts.token_count);
}

static dw_status build(dw_tokenizer **out, reader *r, const dw_checkpoint *checkpoint, dw_error *err)
{
    dw_status status;
    DW_TRY(read_message(r, (dw_string){(const char *)r->file->data, r->file->bytes}, read_model_field, err));
    DW_TRY(check(r, err));
    DW_TRY(refuse_added(r, checkpoint, "added_tokens.json", NULL, err));
    DW_TRY(refuse_added(r, checkpoint, "tokenizer_config.json", "added_tokens_decoder", err));
    r->parts.tokens = r->tokens;
    r->parts.types = r->types;
    r->parts.scores = r->scores;
    r->parts.ends = &r->eos;
    r->parts.end_count = r->eos >= 0;
    r->parts.add_bos = 1;
    DW_TRY(dw_special_from_json(&r->parts, &r->ends, checkpoint, 0, err));
    status = dw_tokenizer_build(out, &r->parts, err);
    if (status != DW_OK) dw_fail_context(err, "%s", r->file->path);
    return status;
}

/* The defaults are those of the .proto. */
static dw_status load(dw_tokenizer **out, const dw_checkpoint *checkpoint, const char *path, dw_error *err)
{
    dw_file file;
    reader r = {.file = &file,
                .parts = {.kind = DW_TOKENIZER_SENTENCEPIECE,
                          .prefix = DW_PREFIX_NORMALIZER,
                          .bos = 1,
                          .unknown = 0,
                          .fuses_unknown = 1},
                .eos = 2,
                .model_type = 1,
                .is_escaped = 1,
                .collapses = 1};
    dw_status status;
    DW_TRY(dw_file_open(&file, path, "a SentencePiece model", DW_FILE_MAP, err));
    status = build(out, &r, checkpoint, err);
    dw_free(r.tokens);
    dw_free(r.types);
    dw_free(r.scores);
    dw_free(r.ends);
    dw_file_close(&file);
    return status;
}

dw_status dw_tokenizer_load_sentencepiece(dw_tokenizer **out, const dw_checkpoint *checkpoint, dw_error *err)
{
    char *path;
    dw_status status = DW_OK;
    *out = NULL;
    DW_TRY(dw_checkpoint_file(checkpoint, "tokenizer.model", &path, err));
    if (access(path, F_OK) == 0) status = load(out, checkpoint, path, err);
    dw_free(path);
    return status;
}
