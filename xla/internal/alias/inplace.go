package alias

// Values that have to lie in the same memory: those of loops and branches, results in place
// and donated parameters.
//
// The state of a loop is one buffer for each part: what the loop begins with, the parameters
// of its condition and body, what the body returns, and the result of the while. A
// dynamic-update-slice has its result where its first operand is, and so has a fusion that
// ends in one. These are no choice: XLA inserts copies where they would be wrong.
//
// The loop of the package comment has these bounds for its array: the part of the while, 17,
// with what it begins with, 0, and with what the body returns, 13; and with the parameters,
// 5 of the condition and 10 of the body. The buffer is 0, 5, 10, 13, 17. The counter is
// another, 1, 4, 9, 12 and 16, and the tables a third, 2, 3, 8, 14 and 15. The constants n
// and one and the result of the condition have a buffer each: six buffers for 18 values.
// That zero is a constant and has to lie in the same memory as the counter is why XLA would
// insert a copy there; a module that was compiled has it.

import (
	"fmt"
	"slices"

	"gpumem/xla/internal/hlo"
)

// Buffers groups the values of a module that have to lie in the same memory. The groups are
// in the order of their first members, and the members of each ascend. It sets
// [Value.Donated].
func (f *Flow) Buffers() ([][]int32, error) {
	set := make(union, len(f.Values))
	for v := range set {
		set[v] = int32(v)
	}
	for _, b := range f.bound {
		for k := range b.n {
			set.join(f.val[b.p+k], f.val[b.q+k])
		}
	}
	// Results in place: their values join that of the operand. The node of the operand is in
	// the same walk, so that two calls of a computation stay apart.
	pairs := inPlace{}
	for n, i := range f.inst {
		list, err := pairs.of(i)
		if err != nil {
			return nil, err
		}
		for _, p := range list {
			o, _ := f.operand(Node(n), p.operand)
			from, ok := f.position(o, p.from...)
			to, ok2 := f.position(Node(n), p.to...)
			if !ok || !ok2 {
				return nil, noSuchPart(i, p)
			}
			set.join(f.val[from], f.val[to])
		}
	}
	if err := f.joinDonated(set); err != nil {
		return nil, err
	}
	count := make([]int32, len(set))
	for v := range set {
		count[set.find(int32(v))]++
	}
	// All members are in one piece of memory: there are as many as values.
	all := make([]int32, 0, len(set))
	number := make([]int, len(set))
	var groups [][]int32
	for v := range set {
		if n := len(all); count[v] > 0 {
			number[v] = len(groups)
			all = all[:n+int(count[v])]
			groups = append(groups, all[n:n:len(all)])
		}
		g := number[set.find(int32(v))] // the smallest member, so its number is known
		groups[g] = append(groups[g], int32(v))
	}
	return groups, nil
}

// joinDonated joins outputs with the parameters whose memory they have (input_output_alias). A
// parameter that is given away need not live to the end of the program.
func (f *Flow) joinDonated(set union) error {
	entry := f.Module.Entry
	if len(f.Module.Aliases) == 0 {
		return nil
	}
	params := entry.Parameters()
	for _, x := range f.Module.Aliases {
		out, ok := f.position(f.Root(0), x.Output...)
		if !ok || x.Parameter < 0 || x.Parameter >= len(params) || params[x.Parameter] == nil {
			return fmt.Errorf("input_output_alias: there is no output %v or no parameter %d", x.Output, x.Parameter)
		}
		n, _ := f.Node(0, params[x.Parameter])
		in, ok := f.position(n, x.Index...)
		if !ok {
			return fmt.Errorf("input_output_alias: parameter %d has no part %v", x.Parameter, x.Index)
		}
		f.Values[f.val[in]].Donated = true
		set.join(f.val[out], f.val[in])
	}
	return nil
}

// A union has the sets of values in the same memory, as a forest: each value's parent. The
// root of a set is its smallest member, so that groups come out in the order of their first
// members whatever was joined first.
type union []int32

func (u union) find(v int32) int32 {
	for u[v] != v {
		u[v] = u[u[v]]
		v = u[v]
	}
	return v
}

func (u union) join(v, w int32) {
	if v, w = u.find(v), u.find(w); v < w {
		u[w] = v
	} else {
		u[v] = w
	}
}

func noSuchPart(i *hlo.Instruction, p pair) error {
	return wrong(i, "result %v lies in operand %d %v, but there is no such part", p.to, p.operand, p.from)
}

// A pair is a part of a result that lies in the memory of a part of an operand: to and from
// are indices into nested tuples. Of dynamic-update-slice it is {0, nil, nil}, the whole of
// operand 0 and the whole result.
type pair struct {
	operand  int
	from, to []int
}

// inPlace finds the pairs of instructions (xla/hlo/analysis/alias_info.cc, 2026). It keeps
// those of fused computations.
type inPlace map[*hlo.Computation][]pair

// of returns the pairs of an instruction, nil for most. The error is of an attribute that does
// not read, or of an operand that is not there.
func (p inPlace) of(i *hlo.Instruction) ([]pair, error) {
	var list []pair
	switch i.Opcode {
	case hlo.DynamicUpdateSlice, hlo.SetDimensionSize:
		list = pairInputs(1)
	case hlo.Scatter:
		list = pairInputs((len(i.Operands) - 1) / 2)
	case "all-reduce-start":
		if withOperands(i.Shape) {
			var err error
			if list, err = outputAliases(i); err != nil {
				return nil, err
			}
			break
		}
		if !needsOwnResult(i) {
			list = pairInputs(len(i.Operands))
		}
	case "ragged-all-to-all":
		list = []pair{{operand: 1}} // the second operand is the output that it fills
	// With four operands it writes into the second, at offsets; else into a result anew.
	case hlo.CollectivePermute, "collective-permute-start":
		if len(i.Operands) != 4 {
			return nil, nil
		}
		var to []int
		if i.Opcode != hlo.CollectivePermute {
			to = []int{1}
		}
		_ = eachPart(i.Operands[1].Shape, nil, func(_ *hlo.Shape, index []int) error {
			list = append(list, pair{1, slices.Clone(index), slices.Concat(to, index)})
			return nil
		})
	case hlo.CustomCall, hlo.Fusion, hlo.AsyncStart:
		var err error
		if list, err = outputAliases(i); err != nil {
			return nil, err
		}
		if c := i.Call("calls"); i.Opcode == hlo.Fusion && c != nil && c.Root != nil {
			list = append(list, p.fusedPairs(c)...)
		}
	}
	for _, x := range list {
		if x.operand >= len(i.Operands) {
			return nil, wrong(i, "its result lies in operand %d, which it does not have", x.operand)
		}
	}
	return list, nil
}

// pairInputs pairs the first n operands with the elements of the result, or one
// operand with the result: a scatter of three arrays returns a tuple of three, a scatter of
// one array the array.
func pairInputs(n int) []pair {
	if n == 1 {
		return []pair{{}}
	}
	var list []pair
	for k := range n {
		list = append(list, pair{operand: k, to: []int{k}})
	}
	return list
}

// fusedPairs returns the pairs of a fusion that ends in an operation in place on one of its
// parameters. It goes back from each part of the root: over tuples and bitcasts to a
// dynamic-update-slice, by its pair to the operand, and over bitcasts again. If that ends in
// a parameter, the fusion has its result there. One fusion inside of it is looked through.
func (p inPlace) fusedPairs(c *hlo.Computation) []pair {
	if list, ok := p[c]; ok {
		return list
	}
	p[c] = nil // a fusion that contains itself ends here
	var list []pair
	_ = eachPart(c.Root.Shape, nil, func(s *hlo.Shape, index []int) error {
		if s.Type == hlo.Tuple {
			return nil
		}
		out, at := p.takenOver(followBack(c.Root, slices.Clone(index)))
		if out == nil {
			return nil
		}
		if out.Opcode == hlo.Fusion {
			if o, from := p.takenOver(out, at); o != nil {
				out, at = o, from
			}
		}
		if out.Opcode == hlo.Parameter {
			list = append(list, pair{out.Parameter, at, slices.Clone(index)})
		}
		return nil
	})
	p[c] = list
	return list
}

// takenOver returns the part whose memory an instruction's part at an index takes over, or nil
// if it computes it elsewhere. Attributes that do not read are no reason for an error here:
// Buffers meets the instruction itself, and reports it.
func (p inPlace) takenOver(i *hlo.Instruction, index []int) (*hlo.Instruction, []int) {
	list, err := p.of(i)
	if err != nil {
		return nil, nil
	}
	for _, x := range list {
		if slices.Equal(x.to, index) {
			return followBack(i.Operands[x.operand], x.from)
		}
	}
	return nil, nil
}

// followBack goes back over tuples and over operations that change no byte: from the root of a
// fused computation, or an operand, to what makes the part at an index. On GPUs XLA counts
// reshapes among those.
func followBack(i *hlo.Instruction, index []int) (*hlo.Instruction, []int) {
	for i.Opcode == hlo.TupleOp && len(index) > 0 && index[0] < len(i.Operands) {
		i, index = i.Operands[index[0]], index[1:]
	}
	for i.Opcode == hlo.GetTupleElement && len(i.Operands) == 1 {
		k, err := i.TupleIndex()
		if err != nil {
			break
		}
		i, index = i.Operands[0], append([]int{k}, index...)
	}
	for len(index) == 0 && (i.Opcode == hlo.Bitcast || i.Opcode == hlo.Reshape) && len(i.Operands) == 1 {
		i = i.Operands[0]
	}
	return i, index
}

// outputAliases returns the pairs of output_to_operand_aliasing.
func outputAliases(i *hlo.Instruction) (pairs []pair, err error) {
	list, err := i.OutputAliases()
	for _, a := range list {
		pairs = append(pairs, pair{a.Parameter, a.Index, a.Output})
	}
	return pairs, err
}
