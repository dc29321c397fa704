/* The words of a scene (../TARGET.md), as a target parses them. This file does not depend on verbs. */
#ifndef IWPROBE_SCENE_H
#define IWPROBE_SCENE_H

#include <stdbool.h>
#include <stdint.h>

#include "text.h"

enum {
	MAX_MR = 4,		/* maximum number of `mr` words of a scene */
	MAX_RECV = 4,		/* maximum number of `recv` words of a scene */
	MAX_RECV_EACH = 64,	/* maximum number of receives of one `recv` word */
	MAX_LEN = 65536,	/* maximum bytes of a region, of a receive, and of all operations together */
	MAX_OPS = 32,		/* maximum number of operations of `do` and `then` together */
	MAX_WORD = 64,		/* buffer size in bytes for a word that a target refuses */
};

struct region_words {
	uint32_t length;
	bool read, write, atomic;	/* rights of remote access */
	char scope;		/* 0 if the word has no SCOPE, or one of "qoxz" */
};

struct op {
	char kind;
	uint32_t length;
	uint64_t offset;
	bool fenced;
	uint64_t at;		/* offset of the operation's bytes in the buffer of sinks */
};

struct scene {
	struct region_words regions[MAX_MR];
	int region_count;
	struct { int count; uint32_t length; } receives[MAX_RECV];
	int receive_count;
	int ird, ord;		/* -1 if the scene does not have the word */
	bool peer;
	uint32_t peer_stag;
	uint64_t peer_to;
	struct op ops[MAX_OPS];
	int op_count, then_from;	/* the operations from ops[then_from] on wait for the first receive */
	bool close, reject, report, solicited, bye;
};

/*
 * Parses a scene. Returns false, and stores the word in `bad`, if a word cannot be parsed. A text that does
 * not begin with `iwp1` is an empty scene.
 */
bool parse(struct scene *scene, const struct text *text, char bad[MAX_WORD]);

#endif
