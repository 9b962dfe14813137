/* The tensors of a model by what they are for, whatever their names and layout in the file: checked, and where they do not lie
   as the forward pass reads them, brought into order in memory of the model. For model.c. */
#ifndef DW_MODEL_WEIGHTS_H
#define DW_MODEL_WEIGHTS_H

#include "model/model.h"

/* Reads the tensors of one model. Two passes: with values = 0 only names, types and shapes are looked at (vectors and copies are
   NULL); with values = 1 numbers are read. */
typedef struct {
    dw_model *model;
    const dw_tensors *tensors;
    const char *prefix; /* of the names in a directory: the family's, or "" */
    uint8_t *used;      /* [tensors->count] tensors that were asked for */
    int values;
} dw_weights;

/* *weights for the model, whose checkpoint and config are read. */
dw_status dw_weights_open(dw_weights *weights, dw_model *model, dw_error *err);
void dw_weights_close(dw_weights *weights);

typedef struct {
    char text[256];
} dw_tensor_name;

/* The name that a part's tensor has in this file. layer: of the parts of layers. suffix: "weight", "bias". */
dw_tensor_name dw_weights_name(const dw_weights *weights, dw_part part, int64_t layer, const char *suffix);

/* Whether the file has the tensor. */
int dw_weights_has(const dw_weights *weights, dw_part part, int64_t layer, const char *suffix);

/* The matrix [outputs][inputs] of a part; outputs -1: any. */
dw_status dw_weights_matrix(dw_weights *weights, dw_part part, int64_t layer, int64_t outputs, int64_t inputs,
                            dw_matrix *matrix, dw_error *err);

/* Matrix, and bias [outputs] if there has to be one. */
dw_status dw_weights_linear(dw_weights *weights, dw_part part, int64_t layer, int64_t outputs, int64_t inputs, int has_bias,
                            dw_linear_layer *linear, dw_error *err);

/* Gains [count], and biases if there have to be some. */
dw_status dw_weights_norm(dw_weights *weights, dw_part part, int64_t layer, int64_t count, int has_bias, dw_norm *norm,
                          dw_error *err);

/* Q, K and V of a layer from one matrix or three. */
dw_status dw_weights_qkv(dw_weights *weights, int64_t layer, dw_layer *to, dw_error *err);

/* DW_PART_V, or DW_PART_QKV where the file has one matrix. */
dw_part dw_weights_value_part(const dw_weights *weights);

/* A tensor that nobody asked for and that the family does not ignore must not be left out silently. */
dw_status dw_weights_check_all_used(const dw_weights *weights, dw_error *err);

/* Fills value_exponent of layer `index`, whose other fields are read. Reads the whole V matrix. row: [dw_padded(hidden)] scratch
   (value_exponent.c). */
dw_status dw_value_exponents(const dw_weights *weights, int64_t index, float *row, dw_error *err);

#endif
