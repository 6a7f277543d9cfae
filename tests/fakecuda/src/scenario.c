/* The scenario: the file cuda.scenario in the library's directory. README.md describes its language.
   */
#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANY (-1)

enum action { ANSWER, FAIL, HANG, CRASH, EXIT, LATE };

struct rule {
	int gpu;
	char call[64];
	char args[MAX_ARGS][48];
	int nargs;
	long after; /* the number of calls before it applies */
	enum action action;
	long number;
	const char *text;
};

static struct rule *rules;
static int nrules, ready;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void broken(int line, const char *what)
{
	fprintf(stderr, "cuda.scenario:%d: %s\n", line, what);
	_exit(98);
}

static const char *const actions[] = {"=", "error", "hang", "crash", "exit", "late"};

static int action_of(const char *word)
{
	for (int i = 0; i < 6; i++)
		if (strcmp(word, actions[i]) == 0)
			return i;
	return -1;
}

/* parse reads one line: GPU CALL [ARGUMENT...] [after N] ACTION. */
static void parse(char *line_text, int line)
{
	struct rule r = {0};
	char *save = NULL, *word = strtok_r(line_text, " \t", &save);
	int action;

	if (!word || *word == '#')
		return;
	r.gpu = strcmp(word, "*") == 0 ? ANY : strcmp(word, "-") == 0 ? SYSTEM : atoi(word);
	if (!(word = strtok_r(NULL, " \t", &save)))
		broken(line, "no call");
	snprintf(r.call, sizeof r.call, "%s", word);
	for (;;) {
		if (!(word = strtok_r(NULL, " \t", &save)))
			broken(line, "no action");
		if ((action = action_of(word)) >= 0)
			break;
		if (strcmp(word, "after") == 0 && (word = strtok_r(NULL, " \t", &save))) {
			r.after = strtol(word, NULL, 0);
			continue;
		}
		if (r.nargs == MAX_ARGS || !word)
			broken(line, "too many arguments");
		snprintf(r.args[r.nargs++], sizeof r.args[0], "%s", word);
	}
	r.action = (enum action)action;
	r.text = strdup(save ? save + strspn(save, " \t") : "");
	r.number = strtol(r.text, NULL, 0);
	rules = realloc(rules, (size_t)(nrules + 1) * sizeof *rules);
	rules[nrules++] = r;
}

void load_scenario(void)
{
	char path[4096], *line_text = NULL, *slash;
	size_t size = 0;
	Dl_info info;
	FILE *f;

	if (ready++)
		return;
	if (!dladdr((void *)load_scenario, &info) || !(slash = strrchr(info.dli_fname, '/')))
		_exit(99);
	snprintf(path, sizeof path, "%.*s/cuda.scenario", (int)(slash - info.dli_fname), info.dli_fname);
	if (!(f = fopen(path, "re")))
		return;
	for (int line = 1; getline(&line_text, &size, f) > 0; line++) {
		line_text[strcspn(line_text, "\n")] = 0;
		parse(line_text, line);
	}
	free(line_text);
	fclose(f);
}

static int fits(const struct rule *r, int gpu, const char *call, const char *arg)
{
	if (strcmp(r->call, call) != 0 && strcmp(r->call, "*") != 0)
		return 0;
	if (r->gpu != gpu && !(r->gpu == ANY && gpu >= 0))
		return 0;
	return r->nargs == 0 || strcmp(r->args[0], "*") == 0 || (arg && strcmp(r->args[0], arg) == 0);
}

int allowed(int gpu, const char *call, const char *arg, int *result)
{
	struct rule found = {0};
	int any = 0;

	pthread_mutex_lock(&lock);
	for (int i = nrules - 1; i >= 0 && !any; i--) {
		struct rule *r = &rules[i];

		if (r->action == ANSWER || !fits(r, gpu, call, arg) || r->after-- > 0)
			continue;
		found = *r;
		any = 1;
	}
	pthread_mutex_unlock(&lock);
	if (!any)
		return 1;
	switch (found.action) {
	case FAIL:
		*result = (int)found.number;
		return 0;
	case HANG:
		for (;;)
			pause();
	case CRASH:
		*(volatile int *)0 = 0;
		return 0;
	case EXIT:
		_exit((int)found.number);
	default:
		usleep((useconds_t)found.number * 1000);
		return 1;
	}
}

const char *text(int gpu, const char *what, const char *arg)
{
	for (int i = nrules - 1; i >= 0; i--)
		if (rules[i].action == ANSWER && strcmp(rules[i].call, "*") != 0 && fits(&rules[i], gpu, what, arg))
			return rules[i].text;
	return NULL;
}

double number(int gpu, const char *what, const char *arg, double otherwise)
{
	const char *t = text(gpu, what, arg);

	if (!t)
		return otherwise;
	return strncmp(t, "0x", 2) == 0 ? (double)strtoull(t, NULL, 16) : strtod(t, NULL);
}
