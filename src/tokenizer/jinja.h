/* Jinja templates in a form that can be searched: what does not change the output is taken out, so that the same statement is
   the same text however it was written. */
#ifndef DW_TOKENIZER_JINJA_H
#define DW_TOKENIZER_JINJA_H

#include "base/error.h"
#include "base/string.h"

/* Marks in the plain form; a template never holds these bytes. */
#define DW_JINJA_STRING(text) "\1" text "\2" /* a string of an expression, its escapes decoded */
#define DW_JINJA_TEXT(text) "\3" text "\4"   /* text between tags that is printed */

/* *plain (dw_free) = the plain form of a template, terminated: comments, the '-' and '+' of tags and white space inside them
   are gone (but for one space between words); white space around tags is as trim_blocks and lstrip_blocks leave it, which is
   how transformers sets Jinja up; x['y'] is x.y, ~ is +, and strings that are added are one string. *plain = NULL and DW_OK:
   this is no template (a tag or string without end, bytes 0 to 4). */
dw_status dw_jinja_plain(char **plain, dw_string jinja, dw_error *err);

#endif
