// The driver: replays a trace on a peer and prints its figures.
//
//   replay PEER.so TRACE DEVICE_BYTES REPEATS BUDGET_SECONDS [smallest]
//
// TRACE is text, an event a line: `a SLOT BYTES` or `f SLOT`, with small slot numbers
// that are used again. A request is tried once. If it is refused, its free does nothing.
//
// Three kinds of pass run, each on a fresh allocator:
//
//  1. one that checks every block against those that are live, and reads the device
//     after each event: for the counts and the mean of the bytes held;
//  2. REPEATS that are timed, in this thread's CPU time, of which the least counts. The
//     clock is read at the start and at the end. The allocator is opened before, and
//     has served one block;
//  3. with `smallest`, those that find the smallest device, to 1 MiB, as package replay
//     does: on growing devices until nothing is refused, then by bisection.
//
// A peer that needs more than the budget of CPU time for the first pass is stopped, and the
// line says so. One that takes far more later is ended by SIGPROF. Exit status: 0, or 1 if the peer is wrong, 2 for what cannot be read.
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <vector>

#include "peer.h"

namespace {

struct event {
  uint64_t bytes;  // 0: a free
  uint32_t slot;
};

std::vector<event> events;
uint32_t slots;
uint64_t peak_live;  // requested bytes
double live_mean;    // of requested bytes, over the events

decltype(&peer_open) open_peer;
decltype(&peer_alloc) alloc_block;
decltype(&peer_free) free_block;
decltype(&peer_state) device_state;
decltype(&peer_close) close_peer;

[[noreturn]] void fail(int status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vfprintf(stderr, format, args);
  va_end(args);
  fputc('\n', stderr);
  exit(status);
}

const uint32_t most_slots = 1 << 28;

void read_trace(const char *path) {
  FILE *f = fopen(path, "r");
  if (!f) fail(2, "%s: cannot be read", path);
  std::vector<uint64_t> live;
  uint64_t sum = 0;
  double all = 0;
  char op;
  while (fscanf(f, " %c", &op) == 1) {
    event e = {};
    if (fscanf(f, "%u", &e.slot) != 1 || e.slot > most_slots) fail(2, "%s: event %zu has no slot", path, events.size() + 1);
    if (e.slot >= live.size()) live.resize(e.slot + 1);
    if (op == 'a') {
      if (fscanf(f, "%lu", &e.bytes) != 1 || e.bytes == 0 || live[e.slot])
        fail(2, "%s: event %zu is not an allocation in a free slot", path, events.size() + 1);
      sum += live[e.slot] = e.bytes;
    } else {
      sum -= live[e.slot];
      live[e.slot] = 0;
    }
    events.push_back(e);
    peak_live = std::max(peak_live, sum);
    all += sum;
  }
  fclose(f);
  if (events.empty()) fail(2, "%s: no events", path);
  slots = live.size();
  live_mean = all / events.size();
}

// Blocks that are live, by slot. bytes is 0 where nothing is.
std::vector<peer_block> blocks;
std::vector<uint64_t> sizes;

// start opens the peer. It returns false if the device is too small for that.
bool start(uint64_t device) {
  blocks.assign(slots, {});
  sizes.assign(slots, 0);
  return open_peer(device);
}

void stop() {
  for (uint32_t i = 0; i < slots; i++)
    if (sizes[i]) free_block(blocks[i], sizes[i]);
  close_peer();
}

// pass replays the trace and returns the number of requests refused. It ends at the
// first if it is told to.
uint64_t pass(bool until_refused) {
  uint64_t refused = 0;
  for (const event &e : events) {
    if (!e.bytes) {
      if (sizes[e.slot]) free_block(blocks[e.slot], sizes[e.slot]);
      sizes[e.slot] = 0;
    } else if (alloc_block(e.bytes, &blocks[e.slot])) {
      sizes[e.slot] = e.bytes;
    } else {
      refused++;
      if (until_refused) return refused;
    }
  }
  return refused;
}

struct figures {
  uint64_t refused, calls;
  double held_mean;
  uint64_t digest = 1469598103934665603;  // of all placements, as record/replay/digest.go has it
};

void add(uint64_t &digest, uint64_t offset) {
  for (int i = 0; i < 8; i++, offset >>= 8) digest = (digest ^ (offset & 0xff)) * 1099511628211;
}

constexpr uint64_t kBase = 0x7f0000000000;  // where the device begins

// check replays the trace with every block compared to those around it.
figures check(uint64_t device) {
  if (!start(device)) fail(1, "the peer does not open on a device of %lu bytes", device);
  std::map<uint64_t, uint64_t> live;  // address to end
  figures f = {};
  uint64_t n = 0;
  for (const event &e : events) {
    n++;
    peer_block &b = blocks[e.slot];
    if (!e.bytes) {
      if (sizes[e.slot]) {
        live.erase(b.addr);
        free_block(b, sizes[e.slot]);
      }
      sizes[e.slot] = 0;
    } else if (!alloc_block(e.bytes, &b)) {
      f.refused++;
      add(f.digest, UINT64_MAX);
    } else {
      add(f.digest, b.addr - kBase);
      sizes[e.slot] = e.bytes;
      auto after = live.lower_bound(b.addr);
      bool wrong = after != live.end() && after->first < b.addr + e.bytes;
      if (after != live.begin()) wrong |= std::prev(after)->second > b.addr;
      if (wrong) fail(1, "event %lu: the block of %lu bytes at 0x%lx overlaps another", n, e.bytes, b.addr);
      live[b.addr] = b.addr + e.bytes;
    }
    f.held_mean += device_state().held;
  }
  f.calls = device_state().calls;
  f.held_mean /= events.size();
  stop();
  return f;
}

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

bool fits(uint64_t device) {
  if (!start(device)) return false;
  bool ok = pass(true) == 0;
  stop();
  return ok;
}

// smallest is the search of record/replay/smallest.go.
uint64_t smallest() {
  const uint64_t mib = 1 << 20, most = 1 << 20;  // 1 TiB in MiB
  uint64_t first = std::max<uint64_t>((peak_live - 1) / mib + 1, 1);
  uint64_t lo = 0, hi = first, mid = first - 1;
  for (uint64_t step = std::max<uint64_t>(first / 64, 1); !fits(hi * mib); step *= 4) {
    if (hi >= most) return 0;
    lo = hi;
    hi += step;
    mid = lo + (hi - lo) / 2;
  }
  for (; hi - lo > 1; mid = lo + (hi - lo) / 2) (fits(mid * mib) ? hi : lo) = mid;
  return hi * mib;
}

// A pass that takes longer than the budget ends the process: the time per event is then
// more than what the budget gives.
double budget;
void late(int) {
  char line[64];
  int n = snprintf(line, sizeof line, "over %.0f\n", budget * 1e9 / events.size());
  if (write(1, line, n) != n) _exit(2);
  _exit(0);
}
void limit(double seconds) {
  itimerval t = {};
  t.it_value.tv_sec = long(seconds);
  t.it_value.tv_usec = long((seconds - long(seconds)) * 1e6);
  setitimer(ITIMER_PROF, &t, nullptr);
}

template <typename F>
void symbol(void *library, const char *name, F &f) {
  f = reinterpret_cast<F>(dlsym(library, name));
  if (!f) fail(2, "%s", dlerror());
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 6) fail(2, "usage: replay PEER.so TRACE DEVICE_BYTES REPEATS BUDGET_SECONDS [smallest]");
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) fail(2, "%s", dlerror());
  symbol(library, "peer_open", open_peer);
  symbol(library, "peer_alloc", alloc_block);
  symbol(library, "peer_free", free_block);
  symbol(library, "peer_state", device_state);
  symbol(library, "peer_close", close_peer);
  read_trace(argv[2]);
  uint64_t device = strtoull(argv[3], nullptr, 10);
  int repeats = atoi(argv[4]);
  budget = atof(argv[5]);

  signal(SIGPROF, late);
  limit(budget);
  double took = cpu_seconds();
  figures f = check(device);
  took = cpu_seconds() - took;
  limit(0);
  signal(SIGPROF, SIG_DFL);  // from here on it ends the process with an error
  printf("refused %lu\ncalls %lu\nheld_mean %.0f\nlive_mean %.0f\npeak_live %lu\ndigest %016lx\n", f.refused, f.calls,
         f.held_mean, live_mean, peak_live, f.digest);

  double best = 1e9;
  for (int i = 0; i < repeats && (i < 2 || took * i < budget); i++) {
    limit(2 * budget);
    if (!start(device)) fail(1, "the peer does not open a second time");
    peer_block b;  // a pool that takes its memory at the first request has it then
    if (alloc_block(1, &b)) free_block(b, 1);
    double began = cpu_seconds();
    pass(false);
    best = std::min(best, cpu_seconds() - began);
    stop();
  }
  limit(0);
  printf("ns %.1f\n", best * 1e9 / events.size());
  // A search is some twenty passes, each at most as long.
  if (argc > 6 && !strcmp(argv[6], "smallest")) {
    limit(20 * budget);
    if (took < budget / 5) printf("smallest %lu\n", smallest());
    limit(0);
  }
  fflush(stdout);
  _exit(0);  // a peer's own threads and statics stay as they are
}
