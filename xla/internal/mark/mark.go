package mark

// Recomputation by hand, as jax.checkpoint (jax.remat) does it: a region of a
// training step is recomputed for those that use it late, behind a barrier.
//
// One layer as an example: a = mul(x, w), s = sin(a), and the next layer uses s soon. The
// backward pass uses a and s late, and both wait for it. The pattern layer_1 names the
// region a, s; neither is saved. Both are cloned, as a.remat and s.remat, back to the inputs
// x and w of the region. These pass through one opt-barrier, together with a value that the
// late users wait for in any case, in JAX the cotangent. So no other pass can find that the
// clones equal the originals, or run them early. The clones stand before the first late
// user, and the late users read them: the originals are dead after the next layer.

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/opname"
)

// A Policy reports whether the value of an instruction in a marked region is saved for late
// users. If it is not, it is recomputed.
type Policy func(*hlo.Instruction) bool

// saveEverything saves all (jax.checkpoint_policies.everything_saveable): marking changes
// nothing.
func saveEverything(*hlo.Instruction) bool { return true }

// SaveNothing saves nothing (nothing_saveable), which is JAX's default.
func SaveNothing(*hlo.Instruction) bool { return false }

// SaveDots saves the results of matrix products and convolutions (dots_saveable).
func SaveDots(i *hlo.Instruction) bool {
	return i.Opcode == hlo.Dot || i.Opcode == hlo.Convolution
}

// saveDotsWithoutBatch saves the results of matrix products without batch dimensions
// (dots_with_no_batch_dims_saveable).
func saveDotsWithoutBatch(i *hlo.Instruction) bool {
	if i.Opcode != hlo.Dot {
		return false
	}
	batch, ok := i.Attribute("lhs_batch_dims")
	return !ok || strings.Trim(batch, "{} ") == ""
}

// saveNames saves what the pattern matches in its op_name or its name
// (save_only_these_names; jax.ad_checkpoint.checkpoint_name puts a name there).
func saveNames(re *regexp.Regexp) Policy {
	return func(i *hlo.Instruction) bool { return matches(re, i) }
}

// PolicyNamed returns the policy with a name of the command line: nothing, everything, dots,
// dots_no_batch, or names=PATTERN with a regular expression. The error quotes the word.
func PolicyNamed(word string) (Policy, error) {
	named := map[string]Policy{"nothing": SaveNothing, "everything": saveEverything, "dots": SaveDots, "dots_no_batch": saveDotsWithoutBatch}
	if p := named[word]; p != nil {
		return p, nil
	}
	if name, pattern, _ := strings.Cut(word, "="); name == "names" {
		re, err := regexp.Compile(pattern)
		if err != nil || pattern == "" {
			return nil, fmt.Errorf("%s: %w", word, cmp.Or(err, errors.New("want names=PATTERN, a regular expression")))
		}
		return saveNames(re), nil
	}

	return nil, fmt.Errorf("%q: want nothing, everything, dots, dots_no_batch or names=PATTERN", word)
}

// matches reports whether a pattern is found in an instruction's op_name or name.
func matches(re *regexp.Regexp, i *hlo.Instruction) bool {
	return re.MatchString(i.Name) || re.MatchString(i.OpName())
}

// A Marking is what marking did to one computation. Scripts rely on its JSON.
type Marking struct {
	Pattern     string `json:"pattern"`
	Computation string `json:"computation"`
	Region      int    `json:"instructions"` // that the pattern matches
	Saved       int    `json:"saved"`        // of them, by the policy
	Recomputed  int    `json:"recomputed"`   // instructions added: clones, and those of the barrier
	Late        int    `json:"late_users"`   // users that now read clones
}

// Mark marks the instructions whose op_name or name the pattern matches, one region for
// each computation, and recomputes for late users what the policy does not save. Late users
// are those of the backward pass, with "transpose(" in op_name. In a module without such
// names they are those that depend on the region by way of another instruction, too.
//
// Mark changes m in place. It returns one result for each computation that has a region:
// none if nothing matches. The error names an instruction that stands before its operand.
func Mark(m *hlo.Module, pattern *regexp.Regexp, save Policy) ([]Marking, error) {
	var done []Marking
	for _, c := range slices.Clone(m.Computations) {
		in := make(map[*hlo.Instruction]bool)
		for _, i := range c.Instructions {
			// The backward pass of a layer has its name, too.
			if i.Opcode != hlo.Parameter && matches(pattern, i) && !opname.Backward(i) {
				in[i] = true
			}
		}
		if len(in) == 0 {
			continue
		}
		k, err := markRegion(c, in, save)
		if err != nil {
			return nil, err
		}
		k.Pattern = pattern.String()
		done = append(done, k)
	}

	return done, nil
}

// A marker marks one computation.
type marker struct {
	c       *hlo.Computation
	in      map[*hlo.Instruction]bool // the region
	late    map[*hlo.Instruction]bool // users that run late
	save    Policy
	at      map[*hlo.Instruction]int              // place in the list
	now     map[*hlo.Instruction]*hlo.Instruction // what late users read: clones, and inputs behind the barrier
	inputs  []*hlo.Instruction                    // of the clones, from outside of them
	order   []*hlo.Instruction                    // clones in the order of their originals
	result  Marking
	effects hlo.Effects
}

// markRegion marks a region of a computation.
func markRegion(c *hlo.Computation, in map[*hlo.Instruction]bool, save Policy) (Marking, error) {
	k := &marker{c: c, in: in, save: save, at: make(map[*hlo.Instruction]int, len(c.Instructions)), effects: hlo.Effects{}}
	k.result = Marking{Computation: c.Name, Region: len(in)}
	for n, i := range c.Instructions {
		k.at[i] = n
	}

	for n, i := range c.Instructions {
		for _, o := range i.Operands {
			if k.at[o] > n {
				return k.result, fmt.Errorf("%s: %s stands before its operand %s", c.Name, i.Name, o.Name)
			}
		}
	}

	for i := range in {
		if save(i) {
			k.result.Saved++
		}
	}

	// The clones stand in one place, before the first late user. An instruction of the region
	// that runs after that place, such as one that only the backward pass needs, is a late
	// user itself.
	k.late = k.findLate()
	_, _, first := k.lateUses()
	for i := range in {
		if k.at[i] > first {
			delete(in, i)
			k.late[i] = true
		}
	}

	wanted, users, first := k.lateUses()
	if len(wanted) == 0 {
		return k.result, nil
	}

	k.result.Late = len(users)
	k.collect(wanted)
	k.build(wanted, c.Instructions[first])
	return k.result, nil
}

// lateUses returns the instructions that are recomputed for late users, these, and the place of the
// first.
func (k *marker) lateUses() (wanted []*hlo.Instruction, users map[*hlo.Instruction]bool, first int) {
	users, first = map[*hlo.Instruction]bool{}, len(k.c.Instructions)
	for _, i := range k.c.Instructions {
		used := false
		for _, u := range i.Users {
			if k.late[u] && !k.in[u] && k.recomputes(i) {
				used, users[u] = true, true
				first = min(first, k.at[u])
			}
		}
		if used {
			wanted = append(wanted, i)
		}
	}

	return wanted, users, first
}

// recomputes reports whether a value of the region is to be recomputed.
func (k *marker) recomputes(i *hlo.Instruction) bool {
	return k.in[i] && !k.save(i) && k.effects.Repeatable(i)
}

// findLate returns the users that run late.
func (k *marker) findLate() map[*hlo.Instruction]bool {
	late := map[*hlo.Instruction]bool{}
	for _, i := range k.c.Instructions {
		if !k.in[i] && opname.Backward(i) {
			late[i] = true
		}
	}

	if len(late) > 0 {
		return late
	}

	// Without such names: those that depend on the region by way of others, too.
	through := map[*hlo.Instruction]bool{} // outside, and depends on the region
	for _, i := range k.c.Instructions {
		if k.in[i] {
			continue
		}
		for _, o := range i.Operands {
			if through[o] {
				through[i], late[i] = true, true
			} else if k.in[o] {
				through[i] = true
			}
		}
	}

	return late
}

// collect finds what has to be cloned, and its inputs.
func (k *marker) collect(wanted []*hlo.Instruction) {
	need := map[*hlo.Instruction]bool{}
	seen := map[*hlo.Instruction]bool{}
	var walk func(i *hlo.Instruction)
	walk = func(i *hlo.Instruction) {
		if need[i] {
			return
		}
		need[i] = true
		for _, o := range i.Operands {
			switch {
			case k.recomputes(o), o.Opcode == hlo.Constant:
				walk(o)
			case !seen[o]:
				seen[o] = true
				k.inputs = append(k.inputs, o)
			}
		}
	}

	for _, i := range wanted {
		walk(i)
	}

	for _, i := range k.c.Instructions {
		if need[i] {
			k.order = append(k.order, i)
		}
	}

	slices.SortFunc(k.inputs, func(a, b *hlo.Instruction) int { return k.at[a] - k.at[b] })
}

// build makes the barrier and the clones, and makes the late users read the clones.
func (k *marker) build(wanted []*hlo.Instruction, first *hlo.Instruction) {
	gate := k.gateOf(first)
	added := k.addBarrier(gate)
	for _, i := range k.order {
		d := i.CloneOwning(i.Name + ".remat")
		d.After = nil // those of the original have run
		for n, o := range i.Operands {
			if k.now[o] != nil {
				d.SetOperand(n, k.now[o])
			}
		}
		markName(d)
		k.now[i] = d
		added = append(added, d)
	}

	for _, i := range wanted {
		i.ReplaceUses(k.now[i], func(u *hlo.Instruction) bool { return !k.late[u] || k.in[u] || u.Parent == nil })
	}

	if e := k.now[gate]; e != nil {
		for n, o := range first.Operands {
			if o == gate {
				first.SetOperand(n, e)
			}
		}
	}

	k.c.Insert(k.at[first], added...)
	k.result.Recomputed = len(added)
}

// gateOf returns what the first late user waits for anyway: the last of its operands outside of the
// region, nil if there is none. The clones wait for it, too.
func (k *marker) gateOf(first *hlo.Instruction) (gate *hlo.Instruction) {
	for _, o := range first.Operands {
		if k.in[o] || o.Opcode == hlo.Parameter || o.Opcode == hlo.Constant {
			continue
		}
		if gate == nil || k.at[o] > k.at[gate] {
			gate = o
		}
	}
	return gate
}

// addBarrier makes the inputs pass through one barrier, together with the gate. It returns what it
// added, nothing if there are no inputs.
func (k *marker) addBarrier(gate *hlo.Instruction) []*hlo.Instruction {
	k.now = map[*hlo.Instruction]*hlo.Instruction{}
	if len(k.inputs) == 0 {
		return nil
	}

	m := k.c.Module
	through := slices.Clone(k.inputs)
	if gate != nil && !slices.Contains(through, gate) {
		through = append(through, gate)
	}

	shape := &hlo.Shape{Type: hlo.Tuple}
	for _, i := range through {
		shape.Elements = append(shape.Elements, i.Shape)
	}

	tuple := m.NewInstruction("remat_tuple", hlo.TupleOp, shape, through...)
	barrier := m.NewInstruction("remat_barrier", hlo.OptBarrier, shape, tuple)
	added := []*hlo.Instruction{tuple, barrier}
	for n, i := range through {
		e := m.NewInstruction("remat_gte", hlo.GetTupleElement, i.Shape, barrier)
		e.Attributes = []hlo.Attribute{{Key: "index", Value: fmt.Sprint(n)}}
		k.now[i] = e
		added = append(added, e)
	}

	return added
}

// markName marks a clone in its op_name, as JAX does.
func markName(i *hlo.Instruction) {
	for n, a := range i.Attributes {
		if at := strings.Index(a.Value, `op_name="`); a.Key == "metadata" && at >= 0 {
			at += len(`op_name="`)
			i.Attributes[n].Value = a.Value[:at] + "rematted_computation/" + a.Value[at:]
		}
	}
}

// A Region is a part of a module that jax.checkpoint marked before the module was written.
type Region struct {
	// Name is the op_name up to the mark, such as "jit(step)/transpose(jvp(checkpoint))".
	Name         string
	Instructions int
	Recomputed   int // of them with "rematted_computation" in op_name
	Barriers     int // opt-barriers, or JAX's older "remat2"
}

// Regions returns the regions of a module, the largest first: instructions with "checkpoint"
// or "rematted_computation" in op_name. Those with the same op_name up to that word are one
// region, in all computations together.
func Regions(m *hlo.Module) []Region {
	var list []Region
	at := map[string]int{}
	for i := range m.All() {
		name := i.OpName()
		n := strings.Index(name, "checkpoint")
		if again := strings.Index(name, "rematted_computation"); n < 0 || again >= 0 && again < n {
			n = again
		}
		if n < 0 {
			continue
		}
		end := n
		for end < len(name) && name[end] != '/' {
			end++
		}
		r, ok := at[name[:end]]
		if !ok {
			r = len(list)
			at[name[:end]] = r
			list = append(list, Region{Name: name[:end]})
		}
		list[r].Instructions++
		if strings.Contains(name, "rematted_computation") {
			list[r].Recomputed++
		}
		if i.Opcode == hlo.OptBarrier || strings.HasPrefix(i.Name, "remat2") {
			list[r].Barriers++
		}
	}

	slices.SortStableFunc(list, func(a, b Region) int { return b.Instructions - a.Instructions })
	return list
}
