// The profile of a pool, for go tool pprof over HTTP.

package serve

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"gpumem"
)

// Profile serves the blocks that are live in a pool to go tool pprof, beside what
// net/http/pprof shows of the program:
//
//	import _ "net/http/pprof"
//
//	http.Handle("GET /debug/pprof/gpumem", serve.Profile(pool))
//
//	go tool pprof -top http://localhost:6060/debug/pprof/gpumem
//
// The pattern needs the method: net/http/pprof has "GET /debug/pprof/", and ServeMux
// panics at another path under it without one.
//
// The answer is the file of gpumem.Pool.WriteProfile. With ?debug=1 it is text like that
// of the runtime's heap profile, with the pool's statistics. Any other debug than a
// number is a bad request, and so is ?seconds=: take two profiles, and compare them by go
// tool pprof -base. A closed pool has no live blocks.
//
// It serves everyone, as net/http/pprof does, and a profile names functions and files. A
// server that others than this machine reach should check who asks.
func Profile(pool *gpumem.Pool) http.Handler {
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
		// It is made before it is sent, so that an error can still be sent.
		var body bytes.Buffer
		if debug > 0 {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			writeProfileText(&body, pool)
		} else {
			if err := pool.WriteProfile(&body); err != nil {
				http.Error(w, "the profile cannot be made: "+err.Error(), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Header().Set("Content-Disposition", `attachment; filename="gpumem"`)
		}
		w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
		_, _ = w.Write(body.Bytes()) // the client may be gone
	})
}

// writeProfileText writes the profile for people: the sum, then blocks, bytes and the
// stack of each use, the largest first.
func writeProfileText(b *bytes.Buffer, pool *gpumem.Pool) {
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
