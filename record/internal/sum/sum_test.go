package sum

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// TestSumModel compares sums with math/big, which rounds by division: what was added comes
// off again exactly, also beyond 2^64.
func TestSumModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s, most Sum
		model, top := new(big.Int), new(big.Int)
		rounded := func(n uint64) *big.Int {
			b := new(big.Int).SetUint64(n)
			b.Add(b, big.NewInt(255))
			b.Div(b, big.NewInt(256))
			return b.Mul(b, big.NewInt(256))
		}
		number := rapid.OneOf(rapid.Uint64(), rapid.Uint64Range(0, 1000), rapid.Uint64Range(math.MaxUint64-1000, math.MaxUint64))
		type added struct {
			n     uint64
			whole bool // added by Add256
		}
		var live []added
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(live) > 0 && rapid.Bool().Draw(t, "sub") {
				k := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				if a := live[k]; a.whole {
					s.Sub256(a.n)
					model.Sub(model, rounded(a.n))
				} else {
					s.Sub(a.n)
					model.Sub(model, new(big.Int).SetUint64(a.n))
				}
				live = append(live[:k], live[k+1:]...)
			} else {
				a := added{number.Draw(t, "n"), rapid.Bool().Draw(t, "whole")}
				if a.whole {
					s.Add256(a.n)
					model.Add(model, rounded(a.n))
				} else {
					s.Add(a.n)
					model.Add(model, new(big.Int).SetUint64(a.n))
				}
				live = append(live, a)
			}
			most.Raise(s)
			if model.Cmp(top) > 0 {
				top.Set(model)
			}
			for _, c := range []struct {
				sum  Sum
				want *big.Int
			}{{s, model}, {most, top}} {
				want := uint64(math.MaxUint64)
				if c.want.IsUint64() {
					want = c.want.Uint64()
				}
				if got := c.sum.Cap(); got != want {
					t.Fatalf("%d, want %d", got, want)
				}
			}
		}
	})
	if Of(7).Cap() != 7 {
		t.Error("Of(7) is not 7")
	}
}
