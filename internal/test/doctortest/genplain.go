// Generated messages of no framework at all: the same balances in sentences of
// a separate grammar, as an unknown program could print them.
package doctortest

import (
	"fmt"
	"strings"
)

// plainWords are the ways to say a size's role; %s is the size.
var plainWords = map[string][]string{
	"want":     {"requested %s", "request of %s denied", "could not get %s", "allocation of %s failed", "needs another %s", "requested=%s", "wanted: %s"},
	"free":     {"%s free", "%s available", "free=%s", "only %s left", "free: %s", "%s still unused on the device"},
	"total":    {"device memory %s", "capacity %s", "total=%s", "%s in total", "card has %s", "total: %s"},
	"limit":    {"limit %s", "budget of %s", "cap=%s", "at most %s allowed", "quota: %s", "may use up to %s"},
	"inUse":    {"%s in use", "%s occupied by live arrays", "used=%s", "in use: %s", "live data %s"},
	"reserved": {"pool holds %s", "reserved=%s", "%s reserved by the pool", "arena size %s", "pool size: %s"},
	"largest":  {"largest free block %s", "biggest contiguous piece %s", "largest_free=%s", "largest gap: %s"},
	"others":   {"other processes use %s", "held by other processes: %s", "others=%s", "%s taken by other programs"},
}

// plain prints what it is given of a balance in any order.
func plain(d draw, b balance, largest uint64, roles ...string) string {
	sizes := map[string]uint64{"want": b.want, "free": b.free(), "total": b.total, "limit": b.limit, "inUse": b.inUse, "reserved": b.reserved, "largest": largest, "others": b.others}
	var parts []string
	for _, role := range d.shuffle(roles...) {
		parts = append(parts, fmt.Sprintf(d.one(plainWords[role]...), d.size(sizes[role])))
	}
	head := d.one("device allocation failed", "GPU 0: no memory for the request", "[gpu0] allocation refused", "E accelerator 0: memory request failed", "cannot allocate on device 0")
	text := strings.Join(parts, d.one(", ", "; ", " | "))
	return head + d.one(": "+text, " ("+text+")", " -- "+text) + "\n"
}

func plainClasses() []class {
	return []class{
		{"plain/others", func(d draw) Sample {
			b := d.until(idOccupied, func(b *balance) {
				b.others, b.inUse, b.want = d.percent(b.total, 45, 80), d.percent(b.total, 5, 25), d.percent(b.total, 4, 15)
				b.reserved = b.inUse + d.percent(b.want, 1, 30)
			})
			return Sample{Log: plain(d, b, 0, "want", "free", "total", "others", "reserved", "inUse"), Causes: b.causes(), Why: "without the others the request fits"}
		}},
		{"plain/limit", func(d draw) Sample {
			b := limitedBalance(d)
			return Sample{Log: plain(d, b, 0, "want", "free", "total", "limit", "inUse"), Causes: b.causes(), Why: "in use and requested are over the limit, and the device has more free"}
		}},
		{"plain/fragmentation", func(d draw) Sample {
			b := preallocated(d, idFragment, 40, 70, 8, 40)
			return Sample{Log: plain(d, b, d.percent(b.want, 20, 90), "want", "reserved", "inUse", "largest"), Causes: b.causes(), Why: "the pool has enough free bytes, in pieces that are too small"}
		}},
		{"plain/too-big", func(d draw) Sample {
			b := alone(d, idTooBig, 1, 60, 105, 300, 2)
			return Sample{Log: plain(d, b, 0, "want", "total", "inUse"), Causes: b.causes(), Why: "the request is more than the card"}
		}},
		{"plain/host", func(d draw) Sample {
			available := d.between(gib, 60*gib)
			want := d.percent(available, 120, 500)
			return Sample{Log: fmt.Sprintf("loader: %s memory: %s, %s\n", d.one("host", "system", "CPU"), fmt.Sprintf(d.one(plainWords["want"]...), d.size(want)), fmt.Sprintf(d.one(plainWords["free"][:4]...), d.size(available))), Causes: []string{idHost}, Why: "the sizes are the host's"}
		}},
		{"plain/open", func(d draw) Sample {
			b := alone(d, idTooBig, 60, 90, 10, 40, 1)
			return Sample{Log: plain(d, b, 0, "want", "free"), Causes: nil, Open: true, Why: "only requested and free are known"}
		}},
	}
}
