#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

dw_status dw_fail(dw_error *err, dw_status status, const char *format, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        err->status = status;
        err->shared = 0;
        vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
    }
    return status;
}

dw_status dw_fail_context(dw_error *err, const char *format, ...)
{
    char cause[sizeof err->message];
    va_list args;
    size_t used;
    size_t kept;
    if (err == NULL) return DW_RUNTIME;
    memcpy(cause, err->message, sizeof cause);
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message / 2, format, args); /* a long context leaves room for the cause */
    va_end(args);
    used = strlen(err->message);
    err->message[used++] = ':';
    err->message[used++] = ' ';
    kept = strnlen(cause, sizeof err->message - used - 1);
    memcpy(err->message + used, cause, kept);
    err->message[used + kept] = '\0';
    return err->status;
}
