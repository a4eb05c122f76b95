// What follows from one measurement for other settings and cards.

package engine

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"gpumem/device/card"
	"gpumem/size"
)

// Other is what another setting or card gives.
type Other struct {
	Set      string  `json:"set,omitempty"`  // a flag of the engine
	Card     string  `json:"card,omitempty"` // or names of cards
	GPUs     int     `json:"gpus"`           // of the card
	Bytes    uint64  `json:"card_bytes"`
	Serves   bool    `json:"serves"` // one request of the greatest length
	Tokens   uint64  `json:"kv_cache_tokens"`
	Requests float64 `json:"requests"`
}

// room returns how many blocks of the cache a GPU has room for that gives the engine more bytes.
func (f *Figures) room(more float64) float64 {
	if f.block == 0 {
		return 0
	}
	return math.Floor(max(0, f.available+more) / float64(f.block))
}

// part returns the bytes that the engine may take of a card.
func (f *Figures) part(total uint64, utilization float64) float64 {
	return math.Ceil((float64(total) - f.taken) * utilization) // as the engine rounds it
}

// with returns what another part of a card gives for the cache.
func (a *Answer) with(total uint64, utilization float64) Other {
	return a.withMore(total, func(f *Figures) float64 { return f.part(total, utilization) - f.requested })
}

// withMore returns what the cache is on cards of a size where each GPU gives the engine more bytes. One that
// was given is the same on each card that has room for it.
func (a *Answer) withMore(total uint64, more func(*Figures) float64) Other {
	o := Other{GPUs: a.GPUs, Bytes: total}
	if a.Given > 0 {
		if total >= a.Need {
			o.Tokens, o.Requests, o.Serves = a.Tokens, a.Requests, a.Requests >= 1
		}
		return o
	}
	if a.blocks == 0 {
		return o
	}
	blocks := math.Inf(1)
	for _, f := range a.Ranks {
		blocks = min(blocks, f.room(more(&f)))
	}
	part := blocks / float64(a.blocks)
	o.Requests = a.Requests * part
	o.Tokens = uint64(math.Round(float64(a.Tokens) * part))
	o.Serves = o.Requests >= 1-1e-9 // which the division may lose
	if a.kind.ofFree {
		o.Requests = min(a.perToken*float64(o.Tokens), float64(a.MaxSeqs))
		o.Serves = o.Tokens >= a.least // shorter requests are served, too
	}
	return o
}

// derive fills what follows by arithmetic.
func (a *Answer) derive() {
	a.need()
	if a.once > 0 {
		o := Other{Tokens: a.Tokens, Requests: a.Requests}
		if a.Given == 0 {
			o = a.withMore(a.CardBytes, func(f *Figures) float64 { return float64(f.once) })
		}
		a.Second = &Second{Activations: a.Activations - a.once, Tokens: o.Tokens, Requests: o.Requests}
	}
}

// need fills which card serves a request.
func (a *Answer) need() {
	if a.Given > 0 {
		a.needOfGiven()
		return
	}
	for _, f := range a.Ranks {
		if f.block == 0 || f.requested == 0 || a.Requests == 0 || a.Utilization == 0 {
			continue
		}
		one := float64(f.Cache) / a.Requests
		if a.kind.ofFree { // it does not serve more requests than MaxSeqs, however short
			one = float64(f.Cache) / float64(a.Tokens) * max(1/a.perToken, float64(a.least))
		}
		a.Need = max(a.Need, uint64((f.requested-f.available+one)/a.Utilization+f.taken))
	}
}

// needOfGiven fills which card has room for all that the engine takes, of which the cache was given. The engine
// does not compare that with the card, and becomes ready where its largest batch has no room. At its start it
// wants its part of the card free all the same.
func (a *Answer) needOfGiven() {
	for _, f := range a.Ranks {
		a.Need = max(a.Need, uint64(f.taken)+f.all())
		if 0 < a.Utilization && a.Utilization < 1 {
			a.Need = max(a.Need, uint64(math.Ceil(f.taken/(1-a.Utilization))))
		}
	}
	if a.CardBytes < a.Need {
		a.Serves = false
		const why = "%s becomes ready, and its largest batch has no room: with %s of KV cache, as --%s says, it needs %s more"
		a.Reason = fmt.Sprintf(why, a.Engine, size.Format(a.Cache), a.GivenBy, size.Format(a.Need-a.CardBytes))
	}
}

// keep is what stays free beside the engine at the highest utilization that is advised; one that does
// not measure the activations of its largest batch has to have room for them, too.
const (
	keep            = 256 << 20
	keepActivations = 2 << 30
)

// perGraph is what the driver takes for a captured graph at most, beside PyTorch's memory: 1.1 to 1.3 MiB in
// eight start-up logs of vLLM 0.11 to 0.19 with 1,500 to 2,500 of them, .1 to .3 in most others, on the same cards, too
// (docs/evidence/serving.md). What few take, .1 GiB, is a part of keep. The simulated driver takes nothing.
const perGraph = 1331 << 10

// Settings fills what other flags of the engine give on this card, of which a process takes
// context bytes beside the engine's measurement. What changes the measurement is not among them.
func (a *Answer) Settings(context uint64) {
	if a.block == 0 || a.Utilization == 0 {
		return
	}
	if a.Given > 0 {
		a.giveMost()
		return
	}
	most := float64(a.CardBytes-min(context+a.Graphs+a.Captured*perGraph+keep, a.CardBytes)) / float64(a.CardBytes)
	if a.kind.ofFree {
		most = a.Utilization + (float64(a.Left)-a.taken-keepActivations)/(float64(a.CardBytes)-a.taken)
	}
	if most = math.Floor(100*most) / 100; most > a.Utilization {
		o := a.with(a.CardBytes, most)
		o.Set = fmt.Sprintf("--%s %.2f", a.Part, most)
		a.Others = append(a.Others, o)
	}
	if a.kind.half != "" && strings.HasSuffix(a.CacheType, "float16") {
		a.Others = append(a.Others, a.halved())
	}
}

// giveMost fills the largest cache that the engine can be given on this card, in whole MiB.
func (a *Answer) giveMost() {
	most := uint64(math.MaxUint64)
	for _, f := range a.Ranks {
		beside := uint64(f.taken) + f.all() - f.Cache + f.Captured*perGraph + keep
		most = min(most, a.CardBytes-min(beside, a.CardBytes))
	}
	most = most >> 20 << 20
	blocks := most / max(1, a.block)
	if a.blocks == 0 || blocks == 0 || blocks == a.blocks {
		return
	}
	part := float64(blocks) / float64(a.blocks)
	o := Other{GPUs: a.GPUs, Bytes: a.CardBytes, Tokens: uint64(math.Round(float64(a.Tokens) * part)), Requests: a.Requests * part}
	o.Set, o.Serves = fmt.Sprintf("--%s %d", a.GivenBy, most), o.Requests >= 1
	if o.Serves { // a smaller one it refuses
		a.Others = append(a.Others, o)
	}
}

// halved returns what half as large tokens give an engine whose cache is what is free, whatever they are.
func (a *Answer) halved() Other {
	half := *a
	half.Ranks = slices.Clone(a.Ranks)
	for i := range half.Ranks {
		half.Ranks[i].block /= 2
	}
	o := half.with(a.CardBytes, a.Utilization)
	o.Set = a.kind.half
	return o
}

// sameBatch reports whether the engine chooses the same batch for two sizes of cards.
func (k *kind) sameBatch(total, other uint64) bool {
	return !slices.ContainsFunc(k.sizes, func(gib uint64) bool { return (total >= gib<<30) != (other >= gib<<30) })
}

// utilization returns the part of another card that the engine takes, which chose its own for a card of a size:
// unless it was given, what is not in it is as large as on that card, in thousandths.
func (a *Answer) utilization(total, asked uint64) float64 {
	if a.fixed || !a.kind.ofFree {
		return a.Utilization
	}
	kept := (1 - a.Utilization) * float64(asked)
	return math.Round(1000*(1-kept/float64(total))) / 1000
}

// OtherCards fills what as many of another card of a compute capability give, the smallest first; those of
// the same size are one. Those on which the engine would choose another batch, or other kernels, want a run.
// The card that was asked about is the one by whose size the engine has chosen, also where it was refused there
// and measured on a larger one.
func (a *Answer) OtherCards(asked uint64, major, minor int) {
	if a.Utilization == 0 || a.Need == 0 { // they are not known
		return
	}
	names := map[uint64][]string{}
	for _, c := range card.All() {
		total := c.Least()
		isOther := c.CCMajor == major && c.CCMinor == minor && total != asked && !strings.HasSuffix(c.Name, "laptop")
		if isOther && a.kind.sameBatch(total, asked) {
			names[total] = append(names[total], c.Title())
		}
	}
	for _, total := range slices.Sorted(maps.Keys(names)) {
		o := a.with(total, a.utilization(total, asked))
		o.Card = strings.Join(names[total], ", ")
		a.Cards = append(a.Cards, o)
	}
}
