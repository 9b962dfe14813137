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
    char context[sizeof err->message];
    char message[sizeof err->message];
    va_list args;
    if (err == NULL) return DW_RUNTIME;
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
    memcpy(message, err->message, sizeof message);
    context[sizeof context / 2] = '\0'; /* a long context leaves room for the cause */
    snprintf(err->message, sizeof err->message, "%s: %.*s", context, (int)(sizeof message - 1 - strlen(context) - 2), message);
    return err->status;
}
