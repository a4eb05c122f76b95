package chunks

import (
	"fmt"
	"testing"
)

func fold(x uint32) uint32 { x *= 0x9E3779B1; x ^= x >> 15; return x * 0x85EBCA6B }
func low(x uint32) uint32 {
	x ^= x >> 16; x *= 0x7feb352d; x ^= x >> 15; x *= 0x846ca68b; x ^= x >> 16
	return x
}

func depthOf(pri []uint32) (int, float64) {
	// cartesian tree via stack; depth of each = computed by parent links
	n := len(pri)
	l := make([]int32, n); r := make([]int32, n)
	var st []int32
	for i := range pri {
		last := int32(-1)
		for len(st) > 0 && pri[st[len(st)-1]] < pri[i] {
			last = st[len(st)-1]; st = st[:len(st)-1]
		}
		l[i] = last; r[i] = -1
		if len(st) > 0 { r[st[len(st)-1]] = int32(i) }
		st = append(st, int32(i))
	}
	type f struct{ i int32; d int }
	q := []f{{st[0], 1}}
	m := 0; sum := 0
	for len(q) > 0 {
		x := q[len(q)-1]; q = q[:len(q)-1]
		sum += x.d
		m = max(m, x.d)
		if l[x.i] >= 0 { q = append(q, f{l[x.i], x.d + 1}) }
		if r[x.i] >= 0 { q = append(q, f{r[x.i], x.d + 1}) }
	}
	return m, float64(sum) / float64(n)
}

func TestExpDepth(t *testing.T) {
	for _, n := range []int{1000, 20000, 100000} {
		for _, h := range []struct {
			name string
			f    func(uint32) uint32
		}{{"mul", func(x uint32) uint32 { return x * 0x9E3779B1 }}, {"fold", fold}, {"low", low}} {
			worst, ws := 0, 0
			sum := 0.0
			cnt := 0
			for s := 1; s < 3000; s += 1 {
				if n > 1000 && s > 700 && s != 987 && s != 1597 && s != 2584 && s != 2048 { continue }
				pri := make([]uint32, n)
				for i := range pri { pri[i] = h.f(uint32(1 + i*s)) }
				d, a := depthOf(pri)
				sum += a; cnt++
				if d > worst { worst, ws = d, s }
			}
			fmt.Println(n, h.name, "worst", worst, "stride", ws, "avg", sum/float64(cnt))
		}
	}
}

func homeA(key uint32, shift uint8) uint32 { return uint32(uint64(key) * 0x9E3779B97F4A7C15 >> (shift & 63)) }
func homeB(key uint32, shift uint8) uint32 { key ^= key>>15; return uint32(uint64(key) * 0x9E3779B97F4A7C15 >> (shift & 63)) }
func homeC(key uint32, shift uint8) uint32 { x:=uint64(key) * 0x9E3779B97F4A7C15; x ^= x>>32; return uint32(x*0x9E3779B97F4A7C15 >> (shift & 63)) }
func homeD(key uint32, shift uint8) uint32 { key ^= key>>11; return uint32(uint64(key) * 0x9E3779B97F4A7C15 >> (shift & 63)) }

func TestExpProbe(t *testing.T) {
	for _, n := range []int{1000, 8191, 60000} {
		sz, shift := 64, uint8(58)
		for sz < 2*n { sz *= 2; shift-- }
		for _, h := range []struct {
			name string
			f    func(uint32, uint8) uint32
		}{{"A", homeA}, {"B", homeB}, {"C", homeC}, {"D", homeD}} {
			worst, ws, wa, was := 0, 0, 0.0, 0
			sum, cnt := 0.0, 0
			big := 0
			slots := make([]bool, sz)
			for s := 1; s < 20000; s++ {
				if n > 10000 && s > 1500 && s%512 != 0 && s%987!=0{ continue }
				if n > 2000 && n<10000 && s > 5000 && s%512 != 0 { continue }
				clear(slots)
				tot := 0; m := 0
				for i := range n {
					p := h.f(uint32(i*s), shift)
					c := 1
					for slots[p&uint32(sz-1)] { p++; c++ }
					slots[p&uint32(sz-1)] = true
					tot += c; m = max(m, c)
				}
				a := float64(tot) / float64(n)
				if m > worst { worst, ws = m, s }
				if a > wa { wa, was = a, s }
				if m > 64 { big++ }
				sum += a; cnt++
			}
			fmt.Printf("%d slots %d %s worst %d stride %d; worst avg %.2f stride %d; mean avg %.3f; >64: %d of %d\n", n, sz, h.name, worst, ws, wa, was, sum/float64(cnt), big, cnt)
		}
	}
}
