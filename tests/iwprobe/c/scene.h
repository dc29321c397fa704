/* What a target is asked to arrange: ../TARGET.md, "The words of a scene". Nothing here knows of verbs. */
#ifndef IWPROBE_SCENE_H
#define IWPROBE_SCENE_H

#include <stdbool.h>
#include <stdint.h>

#include "text.h"

enum {
	MAX_MR = 4,		/* `mr` words of a scene */
	MAX_RECV = 4,		/* `recv` words */
	MAX_RECV_EACH = 64,	/* receives of one of them */
	MAX_LEN = 65536,	/* bytes of a region, of a receive, of all operations */
	MAX_OPS = 32,		/* operations of `do` and `then` together */
	MAX_WORD = 64,		/* bytes of a word that is told back */
};

struct region_words {
	uint32_t length;
	bool read, write, atomic;	/* remote rights */
	char scope;		/* 0, or one of "qoxz" */
};

struct op {
	char kind;
	uint32_t length;
	uint64_t offset;
	bool fenced;
	uint64_t at;		/* of its bytes in the buffer of sinks */
};

struct scene {
	struct region_words regions[MAX_MR];
	int region_count;
	struct { int count; uint32_t length; } receives[MAX_RECV];
	int receive_count;
	int ird, ord;		/* -1: not said */
	bool peer;
	uint32_t peer_stag;
	uint64_t peer_to;
	struct op ops[MAX_OPS];
	int op_count, then_from;	/* ops[then_from..] wait for the first receive */
	bool close, reject, report, solicited, bye;
};

/* Reads a scene; false with the first word that cannot be read. What is no message of ours is the empty scene. */
bool parse(struct scene *scene, const struct text *text, char bad[MAX_WORD]);

#endif
