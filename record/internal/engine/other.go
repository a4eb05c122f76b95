// What follows from one measurement for other settings and cards.

package engine

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"gpumem/device/card"
)

// Other is what another setting or card gives.
type Other struct {
	Set      string  `json:"set,omitempty"`  // a flag of the engine
	Card     string  `json:"card,omitempty"` // or names of cards
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

// with returns what another part of a card gives for the cache.
func (a *Answer) with(total uint64, utilization float64) Other {
	return a.given(total, func(f *Figures) float64 { return math.Ceil(float64(total)*utilization) - f.requested }) // as the engine rounds it
}

// given returns what the cache is on cards of a size where each GPU gives the engine more bytes.
func (a *Answer) given(total uint64, more func(*Figures) float64) Other {
	o := Other{Bytes: total}
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
	return o
}

// derive fills what follows by arithmetic.
func (a *Answer) derive() {
	if a.once > 0 {
		o := a.given(a.CardBytes, func(f *Figures) float64 { return float64(f.once) })
		a.Second = &Second{Activations: a.Activations - a.once, Tokens: o.Tokens, Requests: o.Requests}
	}
	for _, f := range a.Ranks {
		if f.block == 0 || f.requested == 0 || a.Requests == 0 || a.Utilization == 0 {
			continue
		}
		one := float64(f.Cache) / a.Requests
		a.Need = max(a.Need, uint64((f.requested-f.available+one)/a.Utilization))
	}
}

// keep is what stays free beside the engine at the highest utilization that is advised.
const keep = 256 << 20

// perGraph is what the driver takes for a captured graph, beside PyTorch's memory: .1 to .27 MiB in all
// start-up logs of cards but one, which has 1.3 (docs/evidence/serving.md). The simulated driver takes nothing.
const perGraph = 256 << 10

// Settings fills what other flags of the engine give on this card, of which a process takes
// context bytes beside the engine's measurement. What changes the measurement, such as the type of
// the cache, by which an engine chooses its kernels of attention, is not among them.
func (a *Answer) Settings(context uint64) {
	if a.block == 0 {
		return
	}
	taken := context + a.Graphs + a.Captured*perGraph + keep
	most := math.Floor(100*float64(a.CardBytes-min(taken, a.CardBytes))/float64(a.CardBytes)) / 100
	if most > a.Utilization {
		o := a.with(a.CardBytes, most)
		o.Set = fmt.Sprintf("--gpu-memory-utilization %.2f", most)
		a.Others = append(a.Others, o)
	}
}

// large is where the engine chooses another batch by the size of the card, in bytes.
const large = 70 << 30

// OtherCards fills what other cards of a compute capability give, the smallest first; those of
// the same size are one. Those on which the engine would choose another batch, or other kernels,
// want a run.
func (a *Answer) OtherCards(major, minor int) {
	names := map[uint64][]string{}
	for _, c := range card.All() {
		total := c.Least()
		sameBatch := (total >= large) == (a.CardBytes >= large)
		isOther := c.CCMajor == major && c.CCMinor == minor && total != a.CardBytes && !strings.HasSuffix(c.Name, "laptop")
		if isOther && sameBatch {
			names[total] = append(names[total], c.Title())
		}
	}
	for _, total := range slices.Sorted(maps.Keys(names)) {
		o := a.with(total, a.Utilization)
		o.Card = strings.Join(names[total], ", ")
		a.Cards = append(a.Cards, o)
	}
}
