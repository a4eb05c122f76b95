// Package pprofhttp shows a pool of GPU memory to go tool pprof over HTTP, beside
// what net/http/pprof shows of the program:
//
//	import _ "net/http/pprof"
//
//	http.Handle("GET /debug/pprof/gpumem", pprofhttp.Handler(pool))
//
//	go tool pprof -top http://localhost:6060/debug/pprof/gpumem
//
// The method belongs into the pattern: net/http/pprof has "GET /debug/pprof/",
// which another path under it without a method contradicts, and ServeMux panics.
//
// As with net/http/pprof, who may ask is the server's matter. A profile names
// functions and files; a server that listens to others than this machine should
// not show it to everyone.
//
// It is a package of its own because net/http adds four megabytes to a program.
package pprofhttp

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"gpumem"
)

// Handler answers with what is alive in the pool: gpumem.Pool.WriteProfile's
// file, or with ?debug=1 text like that of the runtime's heap profile, and the
// pool's statistics after it. What is not a number there is answered 400, and so
// is ?seconds=: take two profiles, and compare them by go tool pprof -base. A
// closed pool has nothing alive.
func Handler(pool *gpumem.Pool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		debug := 0
		if text := r.FormValue("debug"); text != "" {
			var err error
			if debug, err = strconv.Atoi(text); err != nil {
				http.Error(w, fmt.Sprintf("debug=%q is no number; 0 gives a profile, 1 text", text), http.StatusBadRequest)
				return
			}
		}
		if r.FormValue("seconds") != "" {
			http.Error(w, "seconds= is not for this profile, which is of one moment: take two, and compare them by go tool pprof -base", http.StatusBadRequest)
			return
		}
		// Made before it is sent, so that an error can still be said.
		var body bytes.Buffer
		if debug > 0 {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			writeText(&body, pool)
		} else {
			if err := pool.WriteProfile(&body); err != nil {
				http.Error(w, "the profile cannot be made: "+err.Error(), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Header().Set("Content-Disposition", `attachment; filename="gpumem"`)
		}
		w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
		w.Write(body.Bytes()) // who asked may be gone; nobody else is to be told
	})
}

// writeText is the profile for people: the sum, then blocks, bytes and the stack
// of each use, the largest first.
func writeText(b *bytes.Buffer, pool *gpumem.Pool) {
	live, stats := pool.Live(), pool.Stats()
	var blocks, bytes uint64
	for _, u := range live {
		blocks += uint64(u.Blocks)
		bytes += u.Bytes
	}
	fmt.Fprintf(b, "gpumem profile: %d: %d @ %s\n", blocks, bytes, pool.Policy().Spec)
	for _, u := range live {
		fmt.Fprintf(b, "%d: %d\n", u.Blocks, u.Bytes)
		stack := u.Stack
		if stack == "" {
			stack = "unknown: open the pool with gpumem.WithStacks\n"
		}
		for line := range strings.Lines(stack) {
			b.WriteString("#\t" + line)
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(b, "# num_allocs = %d\n# bytes_in_use = %d\n# peak_bytes_in_use = %d\n# bytes_limit = %d\n# pool_bytes = %d\n# largest_free_block_bytes = %d\n",
		stats.NumAllocs, stats.BytesInUse, stats.PeakBytesInUse, stats.BytesLimit, stats.PoolBytes, stats.LargestFreeBlock)
}
