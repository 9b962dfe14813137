/* The loops that benches compare kernels with do the work that is counted. */
#include "kernels/roof.h"

#include <criterion/criterion.h>
#include <stdalign.h>

#include "kernels/kernels.h"

static const char *const names[] = {"scalar", "avx2", "avx512"};
enum { NAMES = sizeof names / sizeof names[0], COUNT = 6 * DW_ROOF_STEP };

Test(roof, every_instruction_set_has_its_loops)
{
    for (int i = 0; i < NAMES; i++) cr_assert_str_eq(dw_roof_named(names[i])->name, names[i]);
    cr_assert_null(dw_roof_named("sse2"));
}

/* Powers of two and small counts add without rounding in any order. */
Test(roof, read_takes_every_number_once)
{
    alignas(64) float x[COUNT];
    for (int i = 0; i < NAMES; i++) {
        if (dw_kernels_named(names[i]) == NULL) continue;
        for (int k = 0; k < COUNT; k++) x[k] = 1;
        cr_assert_eq(dw_roof_named(names[i])->read(x, COUNT), COUNT, "%s", names[i]);
        for (int k = 0; k < COUNT; k++) {
            x[k] = 1025;
            cr_assert_eq(dw_roof_named(names[i])->read(x, COUNT), COUNT + 1024, "%s misses number %d", names[i], k);
            x[k] = 1;
        }
    }
}

/* a / 2 + 1 of r ends at 2 (1 - 2^-rounds) + r 2^-rounds: twelve registers with r = 0..11. */
Test(roof, fma_runs_its_rounds_in_twelve_registers)
{
    for (int i = 0; i < NAMES; i++) {
        if (dw_kernels_named(names[i]) == NULL) continue;
        cr_assert_eq(dw_roof_named(names[i])->fma(0), 66, "%s", names[i]);
        cr_assert_eq(dw_roof_named(names[i])->fma(1), 45, "%s", names[i]);
        cr_assert_eq(dw_roof_named(names[i])->fma(3), 24 - 3 + 8.25f, "%s", names[i]);
        cr_assert_eq(dw_roof_named(names[i])->fma(1000), 24, "%s", names[i]);
    }
}
