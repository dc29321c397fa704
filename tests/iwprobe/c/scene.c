#define _GNU_SOURCE
#include "scene.h"

#include <stdio.h>
#include <string.h>

/*
 * Parses a number in this base at *p, and moves *p behind the number. Fails if there is no number, or if the
 * number is above `max`.
 */
static bool number(const char **p, int base, uint64_t max, uint64_t *value)
{
	const char *digits = base == 16 ? "0123456789abcdef" : "0123456789", *start = *p, *digit;

	*value = 0;
	while (**p && (digit = strchr(digits, **p))) {
		uint64_t add = (uint64_t)(digit - digits);

		if (*value > (max - add) / (unsigned)base)
			return false;
		*value = *value * (unsigned)base + add;
		(*p)++;
	}
	return *p != start && *value <= max;
}

static bool skip(const char **p, char c)
{
	if (**p != c)
		return false;
	(*p)++;
	return true;
}

/* Parses LEN:RIGHTS[:SCOPE]. */
static bool region_word(struct scene *scene, const char *p)
{
	struct region_words *region = &scene->regions[scene->region_count];
	uint64_t length;

	if (scene->region_count == MAX_MR || !number(&p, 10, MAX_LEN, &length) || !length || !skip(&p, ':'))
		return false;
	region->length = (uint32_t)length;
	if (!skip(&p, '-')) {
		do {
			if (skip(&p, 'r'))
				region->read = true;
			else if (skip(&p, 'w'))
				region->write = true;
			else if (skip(&p, 'a'))
				region->atomic = true;
			else
				return false;
		} while (*p && *p != ':');
	}
	if (skip(&p, ':') && (!*p || !strchr("qoxz", region->scope = *p++)))
		return false;
	scene->region_count++;
	return !*p;
}

/* Parses NxLEN. */
static bool receive_word(struct scene *scene, const char *p)
{
	uint64_t count, length;

	if (scene->receive_count == MAX_RECV || !number(&p, 10, MAX_RECV_EACH, &count) || !count ||
	    !skip(&p, 'x') || !number(&p, 10, MAX_LEN, &length) || *p)
		return false;
	scene->receives[scene->receive_count].count = (int)count;
	scene->receives[scene->receive_count++].length = (uint32_t)length;
	return true;
}

/* Parses OP[,OP]... */
static bool op_words(struct scene *scene, const char *p)
{
	do {
		struct op *op = &scene->ops[scene->op_count];
		uint64_t length = 0;

		if (scene->op_count == MAX_OPS || !*p || !strchr("wrseijfcm", *p))
			return false;
		op->kind = *p++;
		if (strchr("wrseij", op->kind) && !number(&p, 10, MAX_LEN, &length))
			return false;
		op->length = strchr("fc", op->kind) ? 8 : (uint32_t)length;
		if (skip(&p, '@') && (!strchr("wrfc", op->kind) || !number(&p, 10, UINT64_MAX, &op->offset)))
			return false;
		op->fenced = skip(&p, '+');
		scene->op_count++;
	} while (skip(&p, ','));
	return !*p;
}

static bool peer_word(struct scene *scene, const char *p)
{
	uint64_t stag;

	if (scene->peer || !number(&p, 16, UINT32_MAX, &stag) || !skip(&p, ':') || !number(&p, 16, UINT64_MAX, &scene->peer_to))
		return false;
	scene->peer_stag = (uint32_t)stag;
	scene->peer = true;
	return !*p;
}

static bool depth_word(int *depth, const char *p)
{
	uint64_t value;

	if (*depth >= 0 || !number(&p, 10, UINT16_MAX, &value) || *p)
		return false;
	*depth = (int)value;
	return true;
}

static const char *after(const char *word, const char *prefix)
{
	size_t length = strlen(prefix);

	return strncmp(word, prefix, length) ? NULL : word + length;
}

static bool once(bool *said)
{
	bool first = !*said;

	*said = true;
	return first;
}

static bool scene_word(struct scene *scene, const char *word, const char **then)
{
	const char *rest;

	if ((rest = after(word, "mr=")))
		return region_word(scene, rest);
	if ((rest = after(word, "recv=")))
		return receive_word(scene, rest);
	if ((rest = after(word, "ird=")))
		return depth_word(&scene->ird, rest);
	if ((rest = after(word, "ord=")))
		return depth_word(&scene->ord, rest);
	if ((rest = after(word, "peer=")))
		return peer_word(scene, rest);
	if ((rest = after(word, "do=")))
		return !scene->op_count && op_words(scene, rest);
	if (after(word, "then=")) {
		/*
		 * The operations of `then` follow those of `do`, even if the word `then` comes before `do`.
		 */
		bool first = !*then;

		*then = word;
		return first;
	}
	if (!strcmp(word, "close"))
		return once(&scene->close);
	if (!strcmp(word, "reject"))
		return once(&scene->reject);
	if (!strcmp(word, "report"))
		return once(&scene->report);
	if (!strcmp(word, "solicited"))
		return once(&scene->solicited);
	if (!strcmp(word, "bye"))
		return once(&scene->bye);
	return false;
}

/* Whether the scene has an operation that needs the word `peer`. */
static bool needs_peer(const struct scene *scene)
{
	for (int i = 0; i < scene->op_count; i++) {
		if (strchr("wrijfc", scene->ops[i].kind))
			return true;
	}
	return false;
}

bool parse(struct scene *scene, const struct text *text, char bad[MAX_WORD])
{
	char copy[MAX_TEXT + 1], *rest = copy, *word;
	const char *then = NULL;
	uint64_t total = 0;

	memset(scene, 0, sizeof *scene);
	scene->ird = scene->ord = -1;
	memcpy(copy, text->bytes, text->length + 1);
	word = strsep(&rest, " ");
	if (strcmp(word, "iwp1"))
		return true;
	while ((word = strsep(&rest, " "))) {
		if (!scene_word(scene, word, &then)) {
			snprintf(bad, MAX_WORD, "%s", word);
			return false;
		}
	}
	scene->then_from = scene->op_count;
	if (then && !op_words(scene, after(then, "then="))) {
		snprintf(bad, MAX_WORD, "%s", then);
		return false;
	}
	for (int i = 0; i < scene->op_count; i++) {
		scene->ops[i].at = total;
		total += scene->ops[i].length;
	}
	if (total > MAX_LEN) {
		snprintf(bad, MAX_WORD, "do");
		return false;
	}
	if (needs_peer(scene) && !scene->peer) {
		snprintf(bad, MAX_WORD, "peer");
		return false;
	}
	return true;
}
