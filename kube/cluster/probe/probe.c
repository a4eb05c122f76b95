/* probe: the program of the test containers. It does what its arguments order, one after
 * the other, and prints one line for each, so that a test reads what happened from the
 * container's log. It loads the driver as every program does: libcuda.so.1, by name.
 *
 *   alloc BYTES   takes GPU memory: "alloc BYTES ok" or "alloc BYTES refused CODE"
 *   free          frees the last of it: "free ok"
 *   until BYTES   takes so many again and again until it is refused: "until BYTES took SUM"
 *   info          "info free BYTES total BYTES"
 *   devices       "devices N"
 *   uuid          "uuid GPU-..." of the first
 *   hold SECONDS  waits, or until SIGTERM: "hold", printed before
 *   await FILE    waits until there is such a file, or until SIGTERM: "await FILE", before
 *   eat BYTES     takes the host's memory and writes to it: "eat BYTES ok"
 *   env PREFIX    "env NAME=value" for each variable whose name begins so
 *   show FILE     "show FILE: TEXT", newlines as blanks, or "show FILE missing"
 *   pause         waits until SIGTERM and prints nothing; it touches no driver
 *
 * BYTES may end in Ki, Mi or Gi. Exit status 0, 3 if the driver could not be used, 2 if the
 * arguments are wrong. A refusal is no failure. */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

typedef unsigned long long word;

static int (*init)(unsigned), (*count)(int *), (*device)(int *, int), (*retain)(void **, int), (*current)(void *);
static int (*identity)(unsigned char *, int);
static int (*take)(word *, size_t), (*give)(word), (*info)(size_t *, size_t *);

static word held[1 << 16];
static int n;
static volatile sig_atomic_t stopped;

static void on_stop(int s) { (void)s; stopped = 1; }

static void *name(void *lib, const char *symbol) {
	void *f = dlsym(lib, symbol);
	if (!f) {
		printf("driver: no %s\n", symbol);
		exit(3);
	}
	return f;
}

static void check(const char *what, int code) {
	if (code) {
		printf("driver: %s failed with %d\n", what, code);
		exit(3);
	}
}

/* driver loads the driver and makes a context, once. */
static void driver(void) {
	static int done;
	if (done)
		return;
	done = 1;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!lib) {
		printf("driver: %s\n", dlerror());
		exit(3);
	}
	init = name(lib, "cuInit");
	count = name(lib, "cuDeviceGetCount");
	device = name(lib, "cuDeviceGet");
	retain = name(lib, "cuDevicePrimaryCtxRetain");
	current = name(lib, "cuCtxSetCurrent");
	identity = name(lib, "cuDeviceGetUuid_v2");
	take = name(lib, "cuMemAlloc_v2");
	give = name(lib, "cuMemFree_v2");
	info = name(lib, "cuMemGetInfo_v2");
	int d;
	void *context;
	check("cuInit", init(0));
	check("cuDeviceGet", device(&d, 0));
	check("cuDevicePrimaryCtxRetain", retain(&context, d));
	check("cuCtxSetCurrent", current(context));
}

static word bytes(const char *s) {
	char *end;
	word v = strtoull(s, &end, 10);
	if (!strcmp(end, "Ki"))
		v <<= 10;
	else if (!strcmp(end, "Mi"))
		v <<= 20;
	else if (!strcmp(end, "Gi"))
		v <<= 30;
	else if (*end || end == s) {
		printf("probe: bytes %s: want a number, or one that ends in Ki, Mi or Gi\n", s);
		exit(2);
	}
	return v;
}

static int take_one(word size) {
	if (n == sizeof held / sizeof *held)
		return -1;
	int code = take(&held[n], size);
	if (!code)
		n++;
	return code;
}

static void show(const char *file) {
	FILE *f = fopen(file, "r");
	if (!f) {
		printf("show %s missing: %s\n", file, strerror(errno));
		return;
	}
	printf("show %s: ", file);
	for (int c; (c = getc(f)) != EOF;)
		putchar(c == '\n' ? ' ' : c);
	putchar('\n');
	fclose(f);
}

int main(int argc, char **argv) {
	struct sigaction stop = {.sa_handler = on_stop};
	sigaction(SIGTERM, &stop, 0);
	sigaction(SIGINT, &stop, 0);
	setvbuf(stdout, 0, _IOLBF, 0);
	for (int i = 1; i < argc; i++) {
		const char *order = argv[i];
		if (!strcmp(order, "pause")) {
			while (!stopped)
				pause();
			return 0;
		}
		if (!strcmp(order, "devices")) {
			int k;
			driver();
			check("cuDeviceGetCount", count(&k));
			printf("devices %d\n", k);
			continue;
		}
		if (!strcmp(order, "uuid")) {
			unsigned char u[16];
			driver();
			check("cuDeviceGetUuid", identity(u, 0));
			printf("uuid GPU-");
			for (int k = 0; k < 16; k++)
				printf("%s%02x", k == 4 || k == 6 || k == 8 || k == 10 ? "-" : "", u[k]);
			printf("\n");
			continue;
		}
		if (!strcmp(order, "info")) {
			size_t free_bytes, total;
			driver();
			check("cuMemGetInfo", info(&free_bytes, &total));
			printf("info free %zu total %zu\n", free_bytes, total);
			continue;
		}
		if (!strcmp(order, "free")) {
			driver();
			if (n > 0)
				check("cuMemFree", give(held[--n]));
			printf("free ok\n");
			continue;
		}
		const char *arg = argv[++i];
		if (!arg) {
			printf("probe: %s: an argument is missing, or the order is unknown\n", order);
			return 2;
		}
		if (!strcmp(order, "alloc")) {
			driver();
			int code = take_one(bytes(arg));
			if (code)
				printf("alloc %s refused %d\n", arg, code);
			else
				printf("alloc %s ok\n", arg);
		} else if (!strcmp(order, "until")) {
			word sum = 0, step = bytes(arg);
			driver();
			while (!take_one(step))
				sum += step;
			printf("until %s took %llu\n", arg, sum);
		} else if (!strcmp(order, "hold")) {
			double s = atof(arg);
			struct timespec left = {(time_t)s, (long)((s - (time_t)s) * 1e9)};
			printf("hold\n");
			while (!stopped && nanosleep(&left, &left) && errno == EINTR)
				;
			if (stopped)
				return 0;
		} else if (!strcmp(order, "await")) {
			struct timespec moment = {0, 10000000};
			printf("await %s\n", arg);
			while (!stopped && access(arg, F_OK))
				nanosleep(&moment, 0);
			if (stopped)
				return 0;
		} else if (!strcmp(order, "eat")) {
			char *p = malloc(bytes(arg));
			if (p)
				memset(p, 1, bytes(arg));
			printf("eat %s %s\n", arg, p ? "ok" : "refused");
		} else if (!strcmp(order, "env")) {
			for (char **e = environ; *e; e++)
				if (!strncmp(*e, arg, strlen(arg)))
					printf("env %s\n", *e);
		} else if (!strcmp(order, "show")) {
			show(arg);
		} else {
			printf("probe: %s: unknown order\n", order);
			return 2;
		}
	}
	return 0;
}
