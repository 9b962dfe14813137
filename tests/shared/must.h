/* A call that has to work: MUST(dw_pool_create(&pool, 2, 0, err)), where err is the macro's own. */
#ifndef DW_TESTS_MUST_H
#define DW_TESTS_MUST_H

#include <criterion/criterion.h>

#include "base/error.h"

#define MUST(call)                                                                                                             \
    do {                                                                                                                       \
        dw_error must_err = {0};                                                                                               \
        dw_error *err = &must_err;                                                                                             \
        cr_assert_eq((call), DW_OK, "%s", must_err.message);                                                                   \
    } while (0)

#endif
