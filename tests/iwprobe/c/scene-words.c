/*
 * Prints how a target over verbs parses scenes, for a comparison with other targets. Reads scenes from
 * standard input, one per line. Writes one line for each scene: its words in the order of ../TARGET.md, with
 * all numbers in decimal and a word for each receive, or `bad WORD`.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "scene.h"

static void write_ops(const char *name, const struct op *op, const struct op *end)
{
	if (op == end)
		return;
	printf(" %s", name);
	for (; op < end; op++)
		printf(" %c%" PRIu32 "@%" PRIu64 "%s", op->kind, strchr("fc", op->kind) ? 0 : op->length, op->offset,
		       op->fenced ? "+" : "");
}

static void write_scene(const struct scene *scene)
{
	printf("scene");
	for (int k = 0; k < scene->region_count; k++) {
		const struct region_words *region = &scene->regions[k];

		printf(" mr %" PRIu32 " %s%s%s%c", region->length, region->read ? "r" : "", region->write ? "w" : "",
		       region->atomic ? "a" : "", region->scope ? region->scope : '-');
	}
	for (int w = 0; w < scene->receive_count; w++) {
		for (int i = 0; i < scene->receives[w].count; i++)
			printf(" recv %" PRIu32, scene->receives[w].length);
	}
	if (scene->ird >= 0)
		printf(" ird %d", scene->ird);
	if (scene->ord >= 0)
		printf(" ord %d", scene->ord);
	if (scene->peer)
		printf(" peer %" PRIu32 " %" PRIu64, scene->peer_stag, scene->peer_to);
	write_ops("do", scene->ops, scene->ops + scene->then_from);
	write_ops("then", scene->ops + scene->then_from, scene->ops + scene->op_count);
	printf("%s%s%s%s%s\n", scene->close ? " close" : "", scene->reject ? " reject" : "",
	       scene->solicited ? " solicited" : "", scene->report ? " report" : "", scene->bye ? " bye" : "");
}

int main(void)
{
	char line[1024];

	while (fgets(line, sizeof line, stdin)) {
		struct scene scene;
		struct text text;
		char bad[MAX_WORD];

		take_text(&text, line, strcspn(line, "\n"));
		if (parse(&scene, &text, bad))
			write_scene(&scene);
		else
			printf("bad %s\n", bad);
	}
	return 0;
}
