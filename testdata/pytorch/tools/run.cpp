// Replays a text trace through the CUDA caching allocator of an installed torch
// wheel (libc10_cuda.so), on the stand-in runtime of fakecudart.cpp.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <chrono>
#include <c10/cuda/CUDAFunctions.h>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <unordered_map>
#include "fake.h"
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
#include <c10/cuda/PeerToPeerAccess.h>
#define HAVE_P2P 1
#endif
#ifdef OLD20
#define EXPAND(g) ""
#else
#define EXPAND(g) ((g).is_expandable ? " expandable" : "")
#endif
namespace c10::cuda::_internal { void setHasPrimaryContext(bool (*func)(c10::DeviceIndex)); }
#ifdef MARK
#define MARKBEGIN al->markCaptureBegin(0)
#define MARKEND al->markCaptureEnd(0)
#else
#define MARKBEGIN
#define MARKEND
#endif
namespace A = c10::cuda::CUDACachingAllocator;
extern "C" Fake* cudaFakeState();
static const uint64_t BASE = 0x7f0000000000ull;
struct Fnv { uint64_t h = 1469598103934665603ull; void b(uint8_t x) { h = (h ^ x) * 1099511628211ull; }
  void u(uint64_t v) { for (int i = 0; i < 8; i++) b(uint8_t(v >> (8 * i))); } };
static Fnv callh; static FILE* callf = nullptr; static uint64_t ncalls = 0, refusedCalls = 0, vres = 0; static long evno = -1;
static bool vmmOnly = true;
static void onCall(char k, uint64_t off, uint64_t n) {
  if (k == 'V' || k == 'v') vres++;
  if (k == 'X') refusedCalls++;
  if (k == 'C' || k == 'R' || k == 'v') return;          // not part of the digest
  ncalls++; callh.b((uint8_t)k); callh.u(off); callh.u(n);
  if (callf) { if (k == 'X') fprintf(callf, "%ld X - %lu\n", evno, n); else fprintf(callf, "%ld %c %lu %lu\n", evno, k, off, n); }
}
static uint64_t size_(const char* s) { char* e; double v = strtod(s, &e); uint64_t m = 1;
  if (*e == 'K') m = 1ull << 10; else if (*e == 'M') m = 1ull << 20; else if (*e == 'G') m = 1ull << 30;
  if (m == 1) return strtoull(s, nullptr, 10); return uint64_t(v * m); }
int main(int c, char** v) {
  const char *trace = nullptr, *place = nullptr, *calls = nullptr, *segs = nullptr; uint64_t total = 80ull << 30; double frac = 0; bool empty = false, verbose = false; int ver = 12040;
  for (int i = 1; i < c; i++) { std::string o = v[i];
    if (o == "--total") total = size_(v[++i]); else if (o == "--fraction") frac = atof(v[++i]); else if (o == "--placements") place = v[++i];
    else if (o == "--calls") calls = v[++i]; else if (o == "--segments") segs = v[++i]; else if (o == "--empty") empty = true; else if (o == "--verbose") verbose = true; else if (o == "--driver") ver = atoi(v[++i]); else trace = v[i]; }
  Fake* F = cudaFakeState(); F->total = total; F->driver = ver; F->propsize = sizeof(cudaDeviceProp); F->on_call = onCall;
  if (calls) callf = fopen(calls, "w");
  FILE* pf = place ? fopen(place, "w") : nullptr;
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  auto* al = A::get(); al->init(1);
#ifdef HAVE_P2P
  c10::cuda::detail::init_p2p_access_cache(1);
#endif
  if (frac > 0) al->setMemoryFraction(frac, 0);
  struct L { void* p; }; std::unordered_map<std::string, void*> live; live.reserve(1 << 20);
  std::ifstream file; std::istream* in = &std::cin; if (trace) { file.open(trace); if (!file) { perror(trace); return 2; } in = &file; }
  Fnv h; uint64_t allocs = 0, ooms = 0, ops = 0; long firstOOM = -1; std::string line, firstMsg; uint64_t peakLive = 0, curLive = 0; std::unordered_map<std::string, uint64_t> szs;
  double ns = 0;
  std::vector<std::string> lines; while (std::getline(*in, line)) lines.push_back(line);
  for (auto& ln : lines) {
    if (ln.size() < 1 || ln[0] == '#') continue;
    char k = ln[0]; std::istringstream is(ln.substr(1)); std::string id; is >> id;
    if (k == 'a') { evno++; uint64_t n = 0, st = 0; is >> n; is >> st; allocs++; ops++; void* p = nullptr; bool bad = false;
      if (n == 0) { if (pf) fprintf(pf, "%s -\n", id.c_str()); h.u(~0ull); continue; }
      try { p = al->raw_alloc_with_stream(n, (cudaStream_t)st); }
      catch (const c10::OutOfMemoryError& e) { bad = true; if (verbose) fprintf(stderr, "event %ld: %s\n", evno, e.what_without_backtrace()); if (firstMsg.empty()) firstMsg = e.what_without_backtrace(); }
      if (bad) { ooms++; if (firstOOM < 0) firstOOM = evno; h.u(~0ull); if (pf) fprintf(pf, "%s refused\n", id.c_str()); }
      else { live[id] = p; uint64_t off = (uint64_t)p - BASE; h.u(off); if (pf) fprintf(pf, "%s %lu\n", id.c_str(), off);
        szs[id] = n; curLive += n; if (curLive > peakLive) peakLive = curLive; } }
    else if (k == 'f') { evno++; ops++; auto it = live.find(id); if (it != live.end()) { curLive -= szs[id]; al->raw_delete(it->second); live.erase(it); } }
    // probe-only lines, not used in the golden traces
    else if (k == 'r') { uint64_t st; is >> st; auto it = live.find(id); if (it == live.end()) continue; c10::DataPtr d(it->second, it->second, al->raw_deleter(), c10::Device(c10::DeviceType::CUDA, 0));
      al->recordStream(d, c10::cuda::CUDAStream(c10::cuda::CUDAStream::UNCHECKED, c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::CUDA, 0), st))); d.release_context(); }
    else if (k == 'e') F->events_done = atoi(id.c_str());
    else if (k == 'c') al->emptyCache();
    else if (k == 'g') { std::string what; int n; std::istringstream q(ln.substr(1)); q >> what >> n; c10::cuda::MempoolId_t mp{0, (unsigned)n}; bool mark = what == "capture"; if (mark) what = "begin"; if (what == "end" && F->capturing) { F->capturing = 0; MARKEND; }
#ifdef OLD21
      if (what == "begin") 
#ifdef OLD20
        ;
#else
        al->beginAllocateStreamToPool(0, 0, mp); else if (what == "end") al->endAllocateStreamToPool(0, 0);
#endif

#else
      if (what == "begin") { al->beginAllocateToPool(0, mp, [](cudaStream_t) { return true; }); if (mark) { F->capturing = 1; MARKBEGIN; } } else if (what == "end") al->endAllocateToPool(0, mp);
#endif
#ifndef OLD20
      else if (what == "release") al->releasePool(0, mp);
#endif
    }
    else if (k == 's') { auto s = al->getDeviceStats(0); fprintf(stderr, "stat at %ld: allocated %ld active %ld reserved %ld inactive_split %ld segments %ld mallocs %lu frees %lu ev_rec %lu ev_sync %lu\n", evno, (long)s.allocated_bytes[0].current, (long)s.active_bytes[0].current, (long)s.reserved_bytes[0].current, (long)s.inactive_split_bytes[0].current, (long)s.segment[0].current, F->mallocs, F->frees, F->event_records, F->event_syncs); }
  }
  auto s = al->getDeviceStats(0);
  if (segs) { FILE* f = fopen(segs, "w"); auto snap = al->snapshot(); for (auto& g : snap.segments) { fprintf(f, "segment %lu %lu stream %lu %s%s allocated %lu active %lu requested %lu\n", (uint64_t)g.address - BASE, (uint64_t)g.total_size, (uint64_t)g.stream, g.is_large ? "large" : "small", EXPAND(g), (uint64_t)g.allocated_size, (uint64_t)g.active_size, (uint64_t)g.requested_size);
      uint64_t a = (uint64_t)g.address - BASE; for (auto& b : g.blocks) { fprintf(f, "  block %lu %lu %s requested %lu\n", a, (uint64_t)b.size, b.allocated ? "allocated" : b.active ? "active" : "free", (uint64_t)b.requested_size); a += b.size; } } fclose(f); }
  uint64_t endMallocs = F->mallocs, endFrees = F->frees;
  auto pr = [](const char* k, int64_t x) { printf("%s=%ld\n", k, (long)x); };
  printf("total=%lu\nops=%lu\nallocs=%lu\nrefused=%lu\nfirst_refused=%ld\n", total, ops, allocs, ooms, firstOOM);
  pr("num_ooms", s.num_ooms); pr("num_alloc_retries", s.num_alloc_retries);
  pr("peak_live_requested", peakLive); pr("requested_end", s.requested_bytes[0].current); pr("requested_peak", s.requested_bytes[0].peak);
  pr("allocated_end", s.allocated_bytes[0].current); pr("allocated_peak", s.allocated_bytes[0].peak);
  pr("active_end", s.active_bytes[0].current); pr("active_peak", s.active_bytes[0].peak);
  pr("reserved_end", s.reserved_bytes[0].current); pr("reserved_peak", s.reserved_bytes[0].peak);
  pr("reserved_small_end", s.reserved_bytes[1].current); pr("reserved_large_end", s.reserved_bytes[2].current);
  pr("inactive_split_end", s.inactive_split_bytes[0].current); pr("inactive_split_peak", s.inactive_split_bytes[0].peak);
  pr("inactive_split_blocks_end", s.inactive_split[0].current);
  pr("segments_end", s.segment[0].current); pr("segments_peak", s.segment[0].peak); pr("segments_made", s.segment[0].allocated);
  pr("oversize_allocs", s.oversize_allocations.allocated); pr("oversize_segments", s.oversize_segments.allocated);
  printf("cuda_malloc=%lu\ncuda_free=%lu\nvmm_create=%lu\nvmm_release=%lu\nvmm_reserve=%lu\ndevice_refusals=%lu\ncalls=%lu\n", endMallocs, endFrees, F->creates, F->releases, vres, refusedCalls, ncalls);
  printf("calls_fnv1a64=%016lx\nplacement_fnv1a64=%016lx\n", callh.h, h.h);
  if (!firstMsg.empty()) printf("first_message=%s\n", firstMsg.c_str());
  if (empty) { F->on_call = nullptr; al->emptyCache(); auto t = al->getDeviceStats(0); pr("reserved_after_empty_cache", t.reserved_bytes[0].current); }
  fflush(stdout); if (pf) fclose(pf); if (callf) fclose(callf);
  _Exit(0);
}
