#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool say(struct text *text, const char *format, ...)
{
	size_t room = MAX_TEXT + 1 - text->length;
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(text->bytes + text->length, room, format, args);
	va_end(args);
	if (n < 0 || (size_t)n >= room) {
		text->bytes[text->length] = 0;
		return false;
	}
	text->length += (size_t)n;
	return true;
}

void take_text(struct text *text, const void *bytes, size_t length)
{
	text->length = length < MAX_TEXT ? length : MAX_TEXT;
	if (text->length)
		memcpy(text->bytes, bytes, text->length);
	text->bytes[text->length] = 0;
	/* Zeros at the end do not belong to the message. */
	text->length = strlen(text->bytes);
}
