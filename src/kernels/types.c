#include "kernels/types.h"

const dw_type_info dw_types[DW_TYPE_COUNT] = {
    [DW_F32] = {"F32", 1, 4, 0},    [DW_F16] = {"F16", 1, 2, 1},     [DW_BF16] = {"BF16", 1, 2, 30},
    [DW_Q8_0] = {"Q8_0", 32, 34, 8}, [DW_Q4_1] = {"Q4_1", 32, 20, 3},
};
