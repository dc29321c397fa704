/* The messages of ../TARGET.md, which have at most 192 bytes of text. */
#ifndef IWPROBE_TEXT_H
#define IWPROBE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

enum { MAX_TEXT = 192 };	/* maximum number of bytes of a message */

struct text {
	char bytes[MAX_TEXT + 1];
	size_t length;
};

/* Appends formatted text, such as ` WORD`. Returns false, and changes nothing, if the text does not fit. */
__attribute__((format(printf, 2, 3))) bool say(struct text *text, const char *format, ...);

/* Stores a message that arrived as private data or payload, without the zeros at its end. */
void take_text(struct text *text, const void *bytes, size_t length);

#endif
