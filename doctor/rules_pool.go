package doctor

// Rules for the pool, and for the program that the compiler put into it.

import (
	"fmt"
	"strings"
)

var poolRules = []rule{
	{
		name: "regions given back", cause: Fragmentation,
		seen:   "TensorFlow gives free regions back to ask for a larger one, and is refused",
		not:    "the message alone: it is a warning",
		source: "TensorFlow's bfc_allocator.cc, DeallocateFreeRegions",
		test: func(e *evidence) *finding {
			g := e.pick(GarbageCollection, nil)
			if g == nil || !e.fails(DeviceRefused, BFCRefused, TFOOM) {
				return nil
			}
			q := []Evidence{quote(g, "the pool has free regions, each too small, and gives them back to ask for a larger one")}
			if f := e.pick(DeviceRefused, nil); f != nil {
				q = append(q, quote(f, "the driver did not have "+human(f.Want)))
			}
			return shown(cureFragmented(e, nil), q...)
		},
	},
	{
		name: "holes in the pool", cause: Fragmentation,
		seen:   "a pool with enough free for the request, and no piece that is large enough",
		not:    "a largest free block that would have held it; a pool that may still grow",
		source: "jax-ml/jax#9064; marin-community/marin#7115",
		test: func(e *evidence) *finding {
			p := e.pool()
			if p == nil || p.want == 0 || p.inUse.bytes == 0 || p.limit.bytes == 0 && p.size.bytes == 0 {
				return nil
			}
			size, known := p.size.bytes, p.size.bytes > 0
			if !known {
				size = p.limit.bytes
			}
			free := size - min(size, p.inUse.bytes)
			if free < p.want || p.largest.bytes >= p.want {
				return nil
			}
			if p.limit.bytes > size && p.limit.bytes-size >= p.want && p.largest.bytes == 0 {
				return nil // it could grow: the driver was what refused
			}
			q := []Evidence{quote(p.refused, human(p.want)+" asked for"), p.inUse.from}
			if known {
				q = append(q, p.size.from)
			} else {
				q = append(q, p.limit.from)
			}
			if p.largest.bytes > 0 {
				q = append(q, p.largest.from)
			}
			sum := fmt.Sprintf("%s of the pool's %s is free, which is more than the %s asked for, so no hole is large enough", human(free), human(size), human(p.want))
			if !known && e.grows() {
				return fits(cureFragmented(e, p), decideState, need(needProcesses), q...).with(sum)
			}
			return shown(cureFragmented(e, p), q...).with(sum)
		},
	},
	{
		name: "a tensor larger than TensorFlow's device", cause: ProgramTooBig,
		seen:   "the refused tensor's shape times its type's width, above what TensorFlow's device got",
		source: "TensorFlow's gpu_device.cc",
		test: func(e *evidence) *finding {
			f := e.pick(TFOOM, func(f *Fact) bool { return !isHost(f.Allocator) && tensorBytes(f) > 0 })
			if f == nil {
				return nil
			}
			bytes := tensorBytes(f)
			if d := e.pick(TFDevice, func(d *Fact) bool { return d.Tells(HasLimit) }); d != nil && bytes > d.Limit {
				return shown(cureTooBig(e), quote(f, "this tensor alone is "+human(bytes)), quote(d, "TensorFlow's device got "+human(d.Limit)))
			}
			if t := e.total(); t.bytes > 0 && bytes > t.bytes || bytes > largestGPU {
				return shown(cureTooBig(e), quote(f, "this tensor alone is "+human(bytes)+", more than the GPU has"))
			}
			return nil
		},
	},
	{
		name: "one buffer above the compiler's limit", cause: ProgramTooBig,
		seen:   "a refused buffer above the limit that rematerialization worked towards, or a pass that saves nothing of a program that does not fit",
		source: "hlo_rematerialization.cc",
		test: func(e *evidence) *finding {
			r, p := e.pick(Remat, nil), e.pool()
			if r == nil || p == nil || p.want == 0 {
				return nil
			}
			saved := r.Allocated - min(r.Allocated, r.Want)
			if p.want <= r.Limit && saved > r.Allocated/100 {
				return nil
			}
			reading := fmt.Sprintf("recomputing brings %s to %s, and the limit is %s", human(r.Allocated), human(r.Want), human(r.Limit))
			if saved == 0 {
				reading = fmt.Sprintf("recomputing saves nothing of %s, and the limit is %s", human(r.Want), human(r.Limit))
			}
			return shown(cureTooBig(e), quote(r, reading), quote(p.refused, "one buffer of "+human(p.want)+" is refused"))
		},
	},
	{
		name: "recomputing does not save enough", cause: RematShort,
		seen:   "\"Can't reduce memory use below A by rematerialization; only reduced to B, down from C\"",
		source: "hlo_rematerialization.cc; jax-ml/jax#23738",
		test: func(e *evidence) *finding {
			r := e.pick(Remat, nil)
			if r == nil {
				return nil
			}
			saved, wanted := r.Allocated-min(r.Allocated, r.Want), r.Allocated-min(r.Allocated, r.Limit)
			reading := fmt.Sprintf("the pass saves %s of %s (%d %%); to reach the limit of %s it would have to save %s", human(saved), human(r.Allocated), percent(saved, r.Allocated), human(r.Limit), human(wanted))
			if !r.Tells(HasAllocated) {
				reading = "the pass does not reach the limit of " + human(r.Limit)
			}
			q := []Evidence{quote(r, reading)}
			if p := e.pool(); p != nil && p.want > 0 {
				q = append(q, quote(p.refused, "and then "+human(p.want)+" is refused"))
			}
			return shown(cureRemat(e), q...)
		},
	},
	{
		name: "the program's buffers above the GPU", cause: ProgramTooBig,
		seen:   "the compiler's total allocation above the GPU's memory",
		source: "XLA's BufferAssignment report",
		test: func(e *evidence) *finding {
			b, t := e.assigned(), e.total()
			if b == nil || t.bytes == 0 || b.Want <= t.bytes-min(t.bytes, contextMost/2) {
				return nil
			}
			return shown(cureTooBig(e), quote(b, "the program needs "+human(b.Want)+" for its buffers alone"), t.from)
		},
	},
	{
		name: "the program's buffers above the pool", cause: PoolLimit,
		seen:   "the compiler's total allocation above the pool's part of the GPU, and below the whole",
		source: "XLA's BufferAssignment report; google-research/scenic",
		test: func(e *evidence) *finding {
			b, t := e.assigned(), e.total()
			if b == nil {
				return nil
			}
			if t.bytes == 0 {
				if e.pool() != nil && e.pool().limit.bytes > 0 || b.Want < smallProgram {
					return nil
				}
				return fits(cureLimit(e, b.Want, 0), decideState, need(needTotal, needEnv), quote(b, "the program needs "+human(b.Want)+" for its buffers alone")).
					with("the program's buffers take " + human(b.Want) + " together, by the compiler's own count")
			}
			fraction, set := e.poolFraction()
			limit := uint64(fraction * float64(t.bytes))
			if b.Want > t.bytes-min(t.bytes, contextMost/2) || b.Want <= limit {
				return nil
			}
			why := "by default"
			if set {
				why = "by its setting"
			}
			q := []Evidence{quote(b, fmt.Sprintf("the program needs %s; its pool may take %v of %s %s, which is %s", human(b.Want), fraction, human(t.bytes), why, human(limit)))}
			if r := e.pick(XLARefused, nil); r != nil {
				q = append(q, quote(r, human(r.Want)+" of them in one piece"))
			}
			return shown(cureLimit(e, b.Want, limit), append(q, t.from)...)
		},
	},
	{
		name: "the program's buffers, and nothing to compare them with", cause: ProgramTooBig,
		seen:   "the compiler's total allocation, and no word of the GPU",
		source: "XLA's BufferAssignment report",
		test: func(e *evidence) *finding {
			b := e.assigned()
			if b == nil || e.total().bytes > 0 || e.pool() != nil && e.pool().limit.bytes > 0 || b.Want < smallProgram {
				return nil
			}
			if b.Want > largestGPU {
				return shown(cureTooBig(e), quote(b, human(b.Want)+" is more than any GPU has"))
			}
			return fits(cureTooBig(e), decideState, need(needTotal), quote(b, "the program needs "+human(b.Want)))
		},
	},
	{
		name: "more than any GPU, or than this one", cause: ProgramTooBig,
		seen:   "one request above the GPU's memory, or the pool's need above it even with a larger limit",
		source: "bfc_allocator.cc",
		test: func(e *evidence) *finding {
			p, t := e.pool(), e.total()
			if p == nil || p.want == 0 || p.refused.Kind == TFOOM && !e.has(BFCRefused) && p.limit.bytes == 0 {
				return nil
			}
			q := []Evidence{quote(p.refused, human(p.want)+" in one piece")}
			switch {
			case p.want > largestThen(p.refused) && !e.unified():
				q[0].Reading += " is more than any GPU has"
				return shown(cureTooBig(e), q...)
			case e.unified():
				return nil
			case t.bytes > 0 && p.want > t.bytes-min(t.bytes, contextMost/4):
				return shown(cureTooBig(e), append(q, t.from)...)
			case t.bytes > 0 && p.limit.bytes > 0 && p.inUse.bytes > 0 && p.inUse.bytes+p.want > p.limit.bytes && p.inUse.bytes+p.want > t.bytes-min(t.bytes, contextMost/2):
				q[0].Reading = fmt.Sprintf("%s in use and %s asked for are more than the GPU's %s, whatever the pool's limit", human(p.inUse.bytes), human(p.want), human(t.bytes))
				return shown(cureTooBig(e), append(q, p.inUse.from, t.from)...)
			}
			return nil
		},
	},
	{
		name: "the pool is at its limit", cause: PoolLimit,
		seen:   "what is in use and what was asked for pass the pool's limit, while the GPU has that much more",
		not:    "enough free in the pool: that is fragmentation",
		source: "zml/zml#125; google-deepmind/alphafold#832",
		test: func(e *evidence) *finding {
			p, t := e.pool(), e.total()
			if p == nil || p.want == 0 {
				return nil
			}
			if p.limit.bytes > 0 && p.inUse.bytes > 0 {
				need_ := p.inUse.bytes + p.want
				if need_ <= p.limit.bytes || t.bytes > 0 && !e.unified() && need_ > t.bytes-min(t.bytes, contextMost/2) {
					return nil
				}
				q := []Evidence{quote(p.refused, human(p.want)+" asked for"), p.limit.from, p.inUse.from}
				if t.bytes == 0 {
					return fits(cureLimit(e, need_, p.limit.bytes), decideState, need(needTotal), q...).
						with(fmt.Sprintf("the pool is full: %s of its limit of %s is in use, and %s more was asked for", human(p.inUse.bytes), human(p.limit.bytes), human(p.want)))
				}
				return shown(cureLimit(e, need_, p.limit.bytes), append(q, t.from)...).
					with(fmt.Sprintf("%s of the GPU lie outside of the pool", human(t.bytes-min(t.bytes, p.limit.bytes))))
			}
			fraction, _ := e.poolFraction()
			limit := uint64(fraction * float64(t.bytes))
			if b := e.assigned(); b != nil && b.Want > t.bytes {
				return nil // see the rules for the program's buffers
			}
			if t.bytes > 0 && e.framework("jax") && p.want > limit {
				return shown(cureLimit(e, p.want, limit), quote(p.refused, fmt.Sprintf("%s in one piece is more than the pool's %v of %s", human(p.want), fraction, human(t.bytes))), t.from)
			}
			return nil
		},
	},
	{
		name: "the pool is full, and the GPU unknown", cause: ProgramTooBig,
		seen:   "a pool at its limit, and nothing that tells how large the GPU is",
		source: "bfc_allocator.cc",
		test: func(e *evidence) *finding {
			p := e.pool()
			if p == nil || p.want == 0 || e.total().bytes > 0 {
				return nil
			}
			switch {
			case p.limit.bytes > 0 && p.inUse.bytes > 0 && p.inUse.bytes+p.want > p.limit.bytes:
				return fits(cureTooBig(e), decideState, need(needTotal), quote(p.refused, human(p.want)+" asked for"), p.limit.from, p.inUse.from)
			}
			return nil
		},
	},
	{
		name: "a growing pool that the driver refuses", cause: DeviceOccupied,
		seen:   "a pool far below its limit, with little free in it, that could not grow",
		source: "bfc_allocator.cc, Extend",
		test: func(e *evidence) *finding {
			p := e.pool()
			if p == nil || p.want == 0 || p.size.bytes == 0 || p.limit.bytes < p.size.bytes+p.want || p.size.bytes-min(p.size.bytes, p.inUse.bytes) >= p.want {
				return nil
			}
			q := []Evidence{quote(p.refused, human(p.want)+" asked for"), p.size.from, p.limit.from}
			others, told := e.others()
			if told && heldBy(others) > firstLibrary {
				return shown(cureOccupied(e), append(q, readings(others)...)...)
			}
			return fits(cureOccupied(e), decideSmi, need(needProcesses), q...).
				with(fmt.Sprintf("the pool has %s of its limit of %s, and the driver gave it no more: others, or what is outside of the pool, have the rest", human(p.size.bytes), human(p.limit.bytes)))
		},
	},
	{
		name: "TensorFlow got a part of the GPU only", cause: DeviceOccupied,
		seen:   "TensorFlow's device with less than half of what a GPU of that name has, and a failure",
		source: "TensorFlow's gpu_device.cc: it takes what is free but a reserve",
		test: func(e *evidence) *finding {
			d := e.first(TFDevice, func(d *Fact) bool { return d.Tells(HasLimit) })
			if d == nil || !e.fails(failures...) {
				return nil
			}
			least, _, ok := cardTotals(d.Name)
			if !ok || d.Limit > least/2 {
				return nil
			}
			q := quote(d, fmt.Sprintf("TensorFlow takes what is free: it got %s, and this GPU has %s", human(d.Limit), human(least)))
			others, told := e.others()
			if told && heldBy(others) > least/4 {
				return shown(cureOccupied(e), append(readings(others), q)...)
			}
			return fits(cureOccupied(e), decideSmi, need(needProcesses), q)
		},
	},
	{
		name: "a small request in a busy TensorFlow pool", cause: Fragmentation,
		seen:   "TensorFlow's pool refuses a request of which others in the same pool are many times the size, and no figure of the pool is told",
		not:    "figures of the pool, which say more",
		source: "tensorflow/tensorflow#10152; knaw-huc/loghi#55",
		test: func(e *evidence) *finding {
			p := e.pool()
			if p == nil || p.refused.Kind != BFCRefused || p.limit.bytes > 0 || p.inUse.bytes > 0 || !e.has(PoolFragmented) || e.framework("jax") && !e.framework("tensorflow") {
				return nil
			}
			w := e.pick(BFCWarning, func(f *Fact) bool { return f.Allocator == p.refused.Allocator && f.Want > 32*p.want })
			if w == nil || p.want > 256*mib || e.has(Remat, BufferAssignment) {
				return nil
			}
			return shown(cureFragmented(e, p), quote(p.refused, "only "+human(p.want)+" was asked for, and refused"), quote(w, fmt.Sprintf("the same pool is asked for %s, %d times as much: it is a large pool, full of pieces", human(w.Want), w.Want/max(p.want, 1))))
		},
	},
}

// smallProgram is a program in bytes that fits any GPU of the last ten years: if it did
// not, it was not for its own size.
const smallProgram = gib

// assigned is the compiler's total for a program that did not fit, and nil.
func (e *evidence) assigned() *Fact {
	if e.pool() == nil && !e.has(BufferAssignment) {
		return nil
	}
	return e.pick(BufferAssignment, func(f *Fact) bool { return f.Name == "total allocation" && f.Want > 0 })
}

// unified says whether the pool may be larger than the GPU.
func (e *evidence) unified() bool {
	v := e.env["TF_FORCE_UNIFIED_MEMORY"]
	fraction, _ := e.fraction()
	return v != "" && v != "0" && !strings.EqualFold(v, "false") || fraction > 1
}

// grows says whether the pool grows as needed, as far as known.
func (e *evidence) grows() bool {
	v := e.env["XLA_PYTHON_CLIENT_PREALLOCATE"]
	return v == "false" || v == "False" || v == "0" || strings.EqualFold(e.env["TF_FORCE_GPU_ALLOW_GROWTH"], "true")
}
