#include "attention/policy_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/memory.h"

enum { MAX_BYTES = 1 << 20, MAX_REUSE = 1 << 20, MAX_DEPTH = 16 };
static const int64_t max_budget = (int64_t)1 << 40;

/* What a reader of fields works on. */
typedef struct {
    const char *path;
    yaml_document_t document;
    dw_policy_plan *plan;
    int64_t heads;
    int64_t first, last; /* layers of the entry at work */
    dw_error *err;
} reader;

/* A field of a mapping: its name, the kind of its value, and who reads it. */
typedef dw_status field_reader(reader *r, const yaml_node_t *value);
typedef struct {
    const char *name;
    field_reader *read;
} field;

static long long line_of(const yaml_node_t *node)
{
    return (long long)node->start_mark.line + 1;
}

/* "file:line: " and the rest. */
#define WRONG(r, node, format, ...)                                                                                            \
    dw_fail((r)->err, DW_INPUT, "%s:%lld: " format, (r)->path, line_of(node) __VA_OPT__(, ) __VA_ARGS__)

/* ---- scalars ---- */

/* NULL: the node is no scalar. */
static const char *text_of(const yaml_node_t *node)
{
    return node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : NULL;
}

static int parse_whole(const char *text, int64_t *value)
{
    char *end;
    errno = 0;
    *value = strtoll(text, &end, 10);
    return *text >= '0' && *text <= '9' && *end == '\0' && errno == 0;
}

static dw_status read_whole(reader *r, const yaml_node_t *node, const char *name, int64_t least, int64_t most, int64_t *value)
{
    const char *text = text_of(node);
    if (text == NULL || !parse_whole(text, value) || *value < least || *value > most) {
        return WRONG(r, node, "%s '%.40s' is not a whole number from %lld to %lld", name,
                     text == NULL ? "(a list or mapping)" : text, (long long)least, (long long)most);
    }
    return DW_OK;
}

/* Index of the text among the names. */
static dw_status read_choice(reader *r, const yaml_node_t *node, const char *name, const char *const *names, int count,
                             int *index)
{
    const char *text = text_of(node);
    char list[120] = "";
    for (*index = 0; *index < count; ++*index) {
        if (text != NULL && strcmp(text, names[*index]) == 0) return DW_OK;
    }
    for (int i = 0; i < count; i++) {
        const size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i == 0 ? "" : i == count - 1 ? " or " : ", ", names[i]);
    }
    return WRONG(r, node, "%s '%.40s' is not %s", name, text == NULL ? "(a list or mapping)" : text, list);
}

/* ---- fields of a layer entry; they change the layers first..last ---- */

static dw_policy *layer_of(const reader *r, int64_t layer)
{
    return &r->plan->layers[layer];
}

static dw_status read_range(reader *r, const yaml_node_t *value)
{
    const int64_t layers = r->plan->layer_count;
    const char *text = text_of(value);
    char *end;
    if (text == NULL) return WRONG(r, value, "range is not all, a layer (5) or layers (0-3)");
    if (strcmp(text, "all") == 0) {
        r->first = 0;
        r->last = layers - 1;
        return DW_OK;
    }
    errno = 0;
    r->first = r->last = strtoll(text, &end, 10);
    if (*end == '-' && end[1] >= '0' && end[1] <= '9') r->last = strtoll(end + 1, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0) {
        return WRONG(r, value, "range '%.40s' is not all, a layer (5) or layers (0-3)", text);
    }
    if (r->first > r->last) return WRONG(r, value, "range '%.40s' ends before it begins", text);
    if (r->last < layers) return DW_OK;
    return WRONG(r, value, "layer %lld is outside the model, which has layers 0 to %lld", (long long)r->last,
                 (long long)layers - 1);
}

static dw_status read_mode(reader *r, const yaml_node_t *value)
{
    static const char *const names[] = {"dense", "condensate", "mass"}; /* in the order of dw_attention_mode */
    int mode;
    DW_TRY(read_choice(r, value, "mode", names, 3, &mode));
    for (int64_t l = r->first; l <= r->last; l++) layer_of(r, l)->mode = (dw_attention_mode)mode;
    return DW_OK;
}

static dw_status read_anchor(reader *r, const yaml_node_t *value)
{
    int64_t number = 0;
    DW_TRY(read_whole(r, value, "anchor", 0, max_budget, &number));
    for (int64_t l = r->first; l <= r->last; l++) layer_of(r, l)->anchor = number;
    return DW_OK;
}

static dw_status read_window(reader *r, const yaml_node_t *value)
{
    int64_t number = 0;
    DW_TRY(read_whole(r, value, "window", 0, max_budget, &number));
    for (int64_t l = r->first; l <= r->last; l++) layer_of(r, l)->window = number;
    return DW_OK;
}

/* One budget for each head. */
static dw_status read_head_keys(reader *r, const yaml_node_t *value, dw_policy *policy)
{
    const yaml_node_item_t *item = value->data.sequence.items.start;
    const int64_t count = value->data.sequence.items.top - item;
    if (count != r->heads) {
        return WRONG(r, value, "keys lists %lld numbers, the model has %lld query heads", (long long)count,
                     (long long)r->heads);
    }
    if (policy->head_keys == NULL) DW_TRY(DW_ALLOC(&policy->head_keys, r->heads, "policy", r->err));
    policy->keys = 0;
    for (int64_t h = 0; h < count; h++) {
        DW_TRY(read_whole(r, yaml_document_get_node(&r->document, item[h]), "keys", 0, max_budget, &policy->head_keys[h]));
        if (policy->head_keys[h] > policy->keys) policy->keys = policy->head_keys[h];
    }
    return DW_OK;
}

static dw_status read_keys(reader *r, const yaml_node_t *value)
{
    int64_t number = 0;
    if (value->type == YAML_SEQUENCE_NODE) {
        for (int64_t l = r->first; l <= r->last; l++) DW_TRY(read_head_keys(r, value, layer_of(r, l)));
        return DW_OK;
    }
    DW_TRY(read_whole(r, value, "keys", 0, max_budget, &number));
    for (int64_t l = r->first; l <= r->last; l++) {
        dw_free(layer_of(r, l)->head_keys);
        layer_of(r, l)->head_keys = NULL;
        layer_of(r, l)->keys = number;
    }
    return DW_OK;
}

static dw_status read_tail(reader *r, const yaml_node_t *value)
{
    static const char *const names[] = {"none", "mean"};
    int tail;
    DW_TRY(read_choice(r, value, "tail", names, 2, &tail));
    for (int64_t l = r->first; l <= r->last; l++) layer_of(r, l)->has_tail = tail;
    return DW_OK;
}

static dw_status read_epsilon(reader *r, const yaml_node_t *value)
{
    const char *text = text_of(value);
    char *end = NULL;
    const double number = text == NULL ? -1 : strtod(text, &end);
    if (text == NULL || end == text || *end != '\0' || !(number >= 0 && number <= 1)) {
        return WRONG(r, value, "epsilon '%.40s' is not a number from 0 to 1", text == NULL ? "(a list or mapping)" : text);
    }
    for (int64_t l = r->first; l <= r->last; l++) layer_of(r, l)->epsilon = number;
    return DW_OK;
}

/* range comes first, wherever it stands. */
static const field layer_fields[] = {{"range", read_range},    {"mode", read_mode}, {"anchor", read_anchor},
                                     {"window", read_window},  {"keys", read_keys}, {"tail", read_tail},
                                     {"epsilon", read_epsilon}};
enum { LAYER_FIELDS = sizeof layer_fields / sizeof layer_fields[0] };

/* ---- mappings ---- */

static const yaml_node_t *value_of(reader *r, const yaml_node_t *mapping, const char *name)
{
    for (const yaml_node_pair_t *p = mapping->data.mapping.pairs.start; p < mapping->data.mapping.pairs.top; p++) {
        const char *key = text_of(yaml_document_get_node(&r->document, p->key));
        if (key != NULL && strcmp(key, name) == 0) return yaml_document_get_node(&r->document, p->value);
    }
    return NULL;
}

static dw_status unknown_field(reader *r, const yaml_node_t *key, const char *what, const field *fields, int count)
{
    char list[160] = "";
    for (int i = 0; i < count; i++) {
        const size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i == 0 ? "" : ", ", fields[i].name);
    }
    return WRONG(r, key, "unknown field '%.40s' of %s; the fields are %s",
                 text_of(key) == NULL ? "(a list or mapping)" : text_of(key), what, list);
}

static int is_among(const char *key, const field *fields, int count)
{
    for (int i = 0; i < count; i++) {
        if (key != NULL && strcmp(key, fields[i].name) == 0) return 1;
    }
    return 0;
}

/* Every field known and there once. */
static dw_status check_fields(reader *r, const yaml_node_t *mapping, const char *what, const field *fields, int count)
{
    const yaml_node_pair_t *start = mapping->data.mapping.pairs.start;
    for (const yaml_node_pair_t *p = start; p < mapping->data.mapping.pairs.top; p++) {
        const yaml_node_t *node = yaml_document_get_node(&r->document, p->key);
        const char *key = text_of(node);
        if (!is_among(key, fields, count)) return unknown_field(r, node, what, fields, count);
        for (const yaml_node_pair_t *q = start; q < p; q++) {
            const yaml_node_t *other = yaml_document_get_node(&r->document, q->key);
            if (strcmp(text_of(other), key) == 0) {
                return WRONG(r, node, "%s has '%s' twice, first in line %lld", what, key, line_of(other));
            }
        }
    }
    return DW_OK;
}

/* The fields in the order of the table. */
static dw_status read_mapping(reader *r, const yaml_node_t *mapping, const char *what, const field *fields, int count)
{
    if (mapping->type != YAML_MAPPING_NODE) return WRONG(r, mapping, "%s is not a mapping (name: value)", what);
    DW_TRY(check_fields(r, mapping, what, fields, count));
    for (int i = 0; i < count; i++) {
        const yaml_node_t *value = value_of(r, mapping, fields[i].name);
        if (value != NULL) DW_TRY(fields[i].read(r, value));
    }
    return DW_OK;
}

/* ---- fields of the file ---- */

static dw_status read_text(reader *r, const yaml_node_t *value)
{
    return text_of(value) != NULL ? DW_OK : WRONG(r, value, "a text is wanted here");
}

static dw_status read_pillar(reader *r, const yaml_node_t *value)
{
    const char *text = text_of(value);
    if (text == NULL || strncmp(text, "every ", 6) != 0 || !parse_whole(text + 6, &r->plan->pillar) || r->plan->pillar < 1 ||
        r->plan->pillar > MAX_REUSE) {
        return WRONG(r, value, "pillar '%.40s' is not 'every N'", text == NULL ? "(a list or mapping)" : text);
    }
    return DW_OK;
}

static dw_status read_reuse(reader *r, const yaml_node_t *value)
{
    return read_whole(r, value, "reuse", 1, MAX_REUSE, &r->plan->reuse);
}

static dw_status read_selector(reader *r, const yaml_node_t *value)
{
    static const char *const names[] = {"token", "block"}; /* in the order of dw_selector */
    int selector;
    DW_TRY(read_choice(r, value, "selector", names, 2, &selector));
    r->plan->selector = (dw_selector)selector;
    return DW_OK;
}

static dw_status read_layers(reader *r, const yaml_node_t *value)
{
    if (value->type != YAML_SEQUENCE_NODE) return WRONG(r, value, "layers is not a list");
    for (const yaml_node_item_t *i = value->data.sequence.items.start; i < value->data.sequence.items.top; i++) {
        const yaml_node_t *entry = yaml_document_get_node(&r->document, *i);
        if (entry->type == YAML_MAPPING_NODE && value_of(r, entry, "range") == NULL) {
            return WRONG(r, entry, "an entry of layers has no range");
        }
        DW_TRY(read_mapping(r, entry, "a layer", layer_fields, LAYER_FIELDS));
    }
    return DW_OK;
}

static const field file_fields[] = {{"description", read_text}, {"model", read_text},        {"pillar", read_pillar},
                                    {"reuse", read_reuse},      {"selector", read_selector}, {"layers", read_layers}};
enum { FILE_FIELDS = sizeof file_fields / sizeof file_fields[0] };

/* ---- what fields say together ---- */

static int64_t pillar_of(const dw_policy_plan *plan, int64_t layer)
{
    return layer / plan->pillar * plan->pillar;
}

static int has_same_keys(const dw_policy *a, const dw_policy *b, int64_t heads)
{
    for (int64_t h = 0; h < heads; h++) {
        if (dw_policy_keys(a, h) != dw_policy_keys(b, h)) return 0;
    }
    return 1;
}

static dw_status check_layer(reader *r, int64_t layer)
{
    const dw_policy_plan *plan = r->plan;
    const dw_policy *policy = &plan->layers[layer];
    const int64_t pillar = pillar_of(plan, layer);
    const int shares = plan->pillar > 1 || plan->reuse > 1 || plan->selector == DW_SELECT_BLOCKS;
    const long long l = (long long)layer;
    if (policy->mode != DW_CONDENSATE) return DW_OK;
    if (policy->anchor == 0 && policy->window == 0 && policy->keys == 0) {
        return dw_fail(r->err, DW_INPUT, "%s: layer %lld: anchor, window and keys are all 0: the condensate would be empty",
                       r->path, l);
    }
    if (shares && policy->has_tail) {
        return dw_fail(
            r->err, DW_INPUT,
            "%s: layer %lld: tail mean needs the score of every key; it does not go with pillar, reuse or selector block",
            r->path, l);
    }
    if (plan->layers[pillar].mode != DW_CONDENSATE) {
        return dw_fail(r->err, DW_INPUT,
                       "%s: layer %lld would use the selection of its pillar, layer %lld, which is no condensate", r->path, l,
                       (long long)pillar);
    }
    if (has_same_keys(policy, &plan->layers[pillar], r->heads)) return DW_OK;
    return dw_fail(r->err, DW_INPUT,
                   "%s: layer %lld uses the selection of its pillar, layer %lld, so its keys must be the same", r->path, l,
                   (long long)pillar);
}

/* ---- the file ---- */

static dw_status read_root(reader *r)
{
    const yaml_node_t *root = yaml_document_get_root_node(&r->document);
    if (root == NULL) return dw_fail(r->err, DW_INPUT, "%s: the file is empty", r->path);
    DW_TRY(read_mapping(r, root, "a policy file", file_fields, FILE_FIELDS));
    for (int64_t l = 0; l < r->plan->layer_count; l++) DW_TRY(check_layer(r, l));
    return DW_OK;
}

/* Two nodes that are one (an alias) would be two places with one line; libyaml needs time with the square of the depth. */
static dw_status refuse_aliases(const char *path, const char *text, size_t length, dw_error *err)
{
    yaml_parser_t parser;
    yaml_event_t event;
    dw_status status = DW_OK;
    int documents = 0;
    int depth = 0;
    int is_end = 0;
    if (!yaml_parser_initialize(&parser)) return dw_fail(err, DW_RESOURCE, "not enough memory to read %s", path);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    while (status == DW_OK && !is_end) {
        if (!yaml_parser_parse(&parser, &event)) {
            status = dw_fail(err, DW_INPUT, "%s:%lld: %s", path, (long long)parser.problem_mark.line + 1,
                             parser.problem == NULL ? "this is not YAML" : parser.problem);
            break;
        }
        is_end = event.type == YAML_STREAM_END_EVENT;
        documents += event.type == YAML_DOCUMENT_START_EVENT;
        depth += event.type == YAML_SEQUENCE_START_EVENT || event.type == YAML_MAPPING_START_EVENT;
        depth -= event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT;
        if (event.type == YAML_ALIAS_EVENT || documents > 1) {
            status = dw_fail(err, DW_INPUT, "%s:%lld: %s", path, (long long)event.start_mark.line + 1,
                             documents > 1 ? "a second document begins here" : "aliases (*name) have no meaning here");
        }
        if (depth > MAX_DEPTH) {
            status = dw_fail(err, DW_INPUT, "%s:%lld: more than %d lists and mappings in each other", path,
                             (long long)event.start_mark.line + 1, MAX_DEPTH);
        }
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return status;
}

static dw_status read_document(reader *r, const char *text, size_t length)
{
    yaml_parser_t parser;
    dw_status status;
    DW_TRY(refuse_aliases(r->path, text, length, r->err));
    if (!yaml_parser_initialize(&parser)) return dw_fail(r->err, DW_RESOURCE, "not enough memory to read %s", r->path);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    if (yaml_parser_load(&parser, &r->document)) {
        status = read_root(r);
        yaml_document_delete(&r->document);
    } else {
        status = dw_fail(r->err, DW_INPUT, "%s:%lld: %s", r->path, (long long)parser.problem_mark.line + 1,
                         parser.problem == NULL ? "this is not YAML" : parser.problem);
    }
    yaml_parser_delete(&parser);
    return status;
}

static dw_status read_bytes(const char *path, char **text, size_t *length, dw_error *err)
{
    FILE *file = fopen(path, "rb");
    dw_status status;
    if (file == NULL) return dw_fail(err, DW_INPUT, "%s: can not be opened: %s", path, strerror(errno));
    status = DW_ALLOC(text, MAX_BYTES + 1, "policy file", err);
    if (status == DW_OK) {
        *length = fread(*text, 1, MAX_BYTES + 1, file);
        if (ferror(file)) status = dw_fail(err, DW_INPUT, "%s: can not be read: %s", path, strerror(errno));
        if (*length > MAX_BYTES) status = dw_fail(err, DW_INPUT, "%s: a policy file has at most %d bytes", path, MAX_BYTES);
    }
    fclose(file);
    return status;
}

/* Every layer as the defaults say. */
static dw_status start_plan(dw_policy_plan *plan, const dw_policy *defaults, int64_t layers, dw_error *err)
{
    *plan = (dw_policy_plan){.layer_count = layers, .pillar = 1, .reuse = 1, .screen_from = INT64_MAX};
    DW_TRY(DW_ALLOC(&plan->layers, layers, "policy", err));
    for (int64_t l = 0; l < layers; l++) {
        plan->layers[l] = *defaults;
        plan->layers[l].head_keys = NULL;
        if (defaults->mode == DW_DENSE || defaults->mode == DW_LOSSLESS) plan->layers[l].mode = DW_CONDENSATE;
    }
    return DW_OK;
}

dw_status dw_policy_file_read(dw_policy_plan *plan, const char *path, const dw_policy *defaults, int64_t layers, int64_t heads,
                              dw_error *err)
{
    reader r = {.path = path, .plan = plan, .heads = heads, .err = err};
    char *text = NULL;
    size_t length = 0;
    dw_status status = start_plan(plan, defaults, layers, err);
    if (status == DW_OK) status = read_bytes(path, &text, &length, err);
    if (status == DW_OK) status = read_document(&r, text, length);
    dw_free(text);
    if (status != DW_OK) dw_policy_plan_free(plan);
    return status;
}

void dw_policy_plan_free(dw_policy_plan *plan)
{
    for (int64_t l = 0; plan->layers != NULL && l < plan->layer_count; l++) dw_free(plan->layers[l].head_keys);
    dw_free(plan->layers);
    plan->layers = NULL;
}
