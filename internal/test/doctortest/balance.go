// Distribution of a device's bytes when a request fails, and what it decides.
//
// A generated message begins with a balance. Say a card of 24 GiB on which
// others hold 14, this process's pool 8, of which 7 are in use, and a request of
// 3 GiB fails with 1.6 GiB free. causes tries each remedy by itself:
//
//	without the others      15.6 GiB are free, 3 fit          device_occupied
//	with a usable pool      7 in use + 3 > 8 + 1.6            no fragmentation
//	without its limit       it has none                       no pool_limit
//
// One remedy serves the request, so the numbers decide. Where several do, or
// where none does but all of them together would, they decide nothing.
package doctortest

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// A balance says where the bytes of one device are. All are sizes in bytes.
type balance struct {
	total     uint64
	others    uint64 // of other processes
	context   uint64 // of this process: the driver's, which no remedy releases
	elsewhere uint64 // of this process, by another allocator
	reserved  uint64 // of this process's pool
	inUse     uint64 // of what is reserved
	limit     uint64 // of what may be reserved; 0 none
	want      uint64 // the request that failed, as rounded by its allocator
}

// taken is all that is not free.
func (b balance) taken() uint64 { return b.others + b.context + b.elsewhere + b.reserved }

func (b balance) free() uint64 { return b.total - min(b.total, b.taken()) }

// process is what the driver counts for this process.
func (b balance) process() uint64 { return b.context + b.elsewhere + b.reserved }

// growth is how much the pool can take from the driver.
func (b balance) growth() uint64 {
	if b.limit == 0 {
		return b.free()
	}
	return min(b.free(), b.limit-min(b.limit, b.reserved))
}

// served reports whether the driver and the limit let the request through.
func (b balance) served() bool { return b.want <= b.growth() }

// causes returns the ids whose remedy by itself would have served the request.
// It is nil if the request does not fail, or if only several together would.
func (b balance) causes() []string {
	if b.served() {
		return nil
	}
	var ids []string
	for _, r := range []struct {
		id     string
		change func(*balance)
	}{
		{idLimit, func(b *balance) { b.limit = 0 }},
		{idOccupied, func(b *balance) { b.others = 0 }},
		{idOtherAllocator, func(b *balance) { b.elsewhere = 0 }},
	} {
		with := b
		r.change(&with)
		if with.served() {
			ids = append(ids, r.id)
		}
	}
	if b.inUse+b.want <= b.reserved+b.growth() {
		ids = append(ids, idFragment)
	}
	if b.inUse+b.want > b.total { // the context apart, of which few messages tell
		ids = append(ids, idTooBig)
	}
	return ids
}

// decides reports whether the balance has the cause id and no other, also with
// each of its sizes wrong by one percent, which is more than any message rounds.
func (b balance) decides(id string) bool {
	if b.taken() > b.total || b.inUse > b.reserved || b.limit > 0 && b.reserved > b.limit {
		return false
	}
	if !slices.Equal(b.causes(), []string{id}) {
		return false
	}
	for _, f := range []float64{0.99, 1.01} {
		for i := range 5 {
			near := b
			p := []*uint64{&near.others, &near.elsewhere, &near.reserved, &near.inUse, &near.want}[i]
			*p = uint64(float64(*p) * f)
			if !slices.Equal(near.causes(), []string{id}) {
				return false
			}
		}
	}
	return true
}

// A draw makes the choices of one generated message.
type draw struct{ *rand.Rand }

// newDraw returns the choices that belong to a name and a number, always the same.
func newDraw(name string, n int) draw {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return draw{rand.New(rand.NewPCG(h, uint64(n)))}
}

// percent returns between low and high percent of n, in whole MiB as drivers map.
func (d draw) percent(n uint64, low, high float64) uint64 {
	return uint64(float64(n)*(low+d.Float64()*(high-low))/100) &^ (2*mib - 1)
}

// between returns a size from low to high in whole pages of 2 MiB.
func (d draw) between(low, high uint64) uint64 {
	return (low + d.Uint64N(high-low)) &^ (2*mib - 1)
}

// one returns one of the words.
func (d draw) one(words ...string) string { return words[d.IntN(len(words))] }

// chance is true in percent of the calls.
func (d draw) chance(percent int) bool { return d.IntN(100) < percent }

// pid returns the number of a process.
func (d draw) pid() int { return 1200 + d.IntN(60000) }

// card returns a GPU.
func (d draw) card() card {
	cards := []card{gt1000, rtx2070, gtx1080, t4, rtx4090, a100x40, h100, h200}
	return cards[d.IntN(len(cards))]
}

// bigCard returns a GPU of 8 GB and more.
func (d draw) bigCard() card {
	for {
		if c := d.card(); c.total > 8*gib-512*mib {
			return c
		}
	}
}

// until draws balances with shape until one decides id. The shape is where the
// class looks; the label is what causes says.
func (d draw) until(id string, shape func(*balance)) balance {
	for range 20000 {
		b := balance{total: d.bigCard().total, context: d.between(160*mib, 560*mib)}
		shape(&b)
		if b.decides(id) {
			return b
		}
	}
	panic("doctortest: no balance decides " + id)
}

// shuffle returns the words in any order.
func (d draw) shuffle(words ...string) []string {
	d.Shuffle(len(words), func(i, j int) { words[i], words[j] = words[j], words[i] })
	return words
}

// size prints n in one of the ways in which programs do, exact to 0.5 %.
func (d draw) size(n uint64) string {
	switch {
	case d.chance(15):
		return fmt.Sprintf("%d bytes", n)
	case d.chance(15):
		return commas(n) + " bytes"
	case n < 2*gib || d.chance(25):
		return fmt.Sprintf(d.one("%.1f MiB", "%.2f MiB", "%.0f MiB", "%.2fMiB"), float64(n)/mib)
	}
	return fmt.Sprintf(d.one("%.2f GiB", "%.3f GiB", "%.2fGiB", "%.4f GiB"), float64(n)/gib)
}
