package memory

// Orders of instructions that take little memory: those among which XLA chooses on GPUs
// (xla/hlo/transforms/simplifiers/hlo_memory_scheduler.cc, 2026). XLA then moves the starts
// of collectives forward and their ends back, which is not done here.
//
// A module that is not scheduled has no order but that of its text. XLA makes three, measures
// each, and takes the one that needs least; so do the planners, with [Orders] and a [Meter].
// An order is made for each computation by itself.

import (
	"cmp"
	"fmt"
	"slices"

	"gpumem/xla/internal/alias"
	"gpumem/xla/internal/hlo"
)

// An Order is an order in which a module can run.
type Order struct {
	// Name is list, dfs or post-order.
	Name string
	// Lists are the orders of the computations that run: the entry, and what is called from
	// there by control flow.
	Lists map[*hlo.Computation][]*hlo.Instruction
}

// Apply puts a module's instructions into the order, and marks the module as
// scheduled. Computations that only fusions, reductions and the like call stay
// as they are.
func (o *Order) Apply(m *hlo.Module) {
	for _, c := range m.Computations {
		if list, ok := o.Lists[c]; ok {
			c.Instructions = list
		}
	}
	m.Scheduled = true
}

// Orders returns three orders of all computations that run, and leaves the module as it is. Each
// keeps operands and control predecessors in front:
//   - list always runs next what frees most and makes least; scalars at once.
//   - dfs is a post-order that goes first to the operand behind which there are most users,
//     then to the largest.
//   - post-order goes to the first operand first.
//
// The error is that of [alias.Analyze], or names a computation whose instructions wait for
// each other.
func Orders(m *hlo.Module) ([]Order, error) {
	s, err := newScheduler(m)
	if err != nil {
		return nil, err
	}
	var all []Order
	for _, way := range []struct {
		name string
		f    func(*scheduler, *hlo.Computation) ([]*hlo.Instruction, error)
	}{
		{"list", (*scheduler).list},
		{"dfs", (*scheduler).dfs},
		{"post-order", (*scheduler).postOrder},
	} {
		o := Order{Name: way.name, Lists: map[*hlo.Computation][]*hlo.Instruction{}}
		for c := range s.f.FirstWalk {
			if o.Lists[c], err = way.f(s, c); err != nil {
				return nil, err
			}
		}
		all = append(all, o)
	}
	return all, nil
}

func errCycle(c *hlo.Computation) error {
	return fmt.Errorf("in %s instructions wait for each other", c.Name)
}

// A scheduler has the values of a module; orders of computations do not change them, so that
// one analysis serves all three.
type scheduler struct {
	f     *alias.Flow
	size  []uint64 // of a value; 0 in the host's memory
	posts postOrderer
	// Of list, by value: kept from one computation to the next.
	left, seen []int32
}

func newScheduler(m *hlo.Module) (*scheduler, error) {
	f, err := alias.Analyze(m)
	if err != nil {
		return nil, err
	}
	n := len(f.Values)
	s := &scheduler{f: f, size: make([]uint64, n), left: make([]int32, n), seen: make([]int32, n)}
	s.posts.state = make([]byte, m.IDs())
	sum := uint64(0)
	// Buffers do not count here: two values that have to lie in the same memory are two.
	for k := range f.Values {
		bytes, err := addSize(&sum, &f.Values[k])
		if err != nil {
			return nil, err
		}
		if f.Values[k].Shape.Space() != hlo.HostSpace {
			s.size[k] = bytes
		}
	}
	return s, nil
}

// postOrder visits what an instruction runs after, control predecessors first,
// from each instruction that has no user.
func (s *scheduler) postOrder(c *hlo.Computation) ([]*hlo.Instruction, error) {
	return ordered(c, s.posts.operandsFirst(c.Instructions), s.posts.state)
}

// ordered returns an order if everything is there, behind what it waits for. Instructions that
// wait for each other, by operands and control predecessors together, come out in some order
// of a postOrderer all the same, so that the result has to be checked.
func ordered(c *hlo.Computation, order []*hlo.Instruction, done []byte) ([]*hlo.Instruction, error) {
	const there = 3
	for _, i := range order {
		for _, list := range [2][]*hlo.Instruction{i.Operands, i.After} {
			for _, o := range list {
				if done[o.ID] != there {
					return nil, errCycle(c)
				}
			}
		}
		done[i.ID] = there
	}
	if len(order) != len(c.Instructions) {
		return nil, errCycle(c)
	}
	return order, nil
}

// ignored values are no reason to run anything early: they are there all the time.
func ignored(i *hlo.Instruction) bool {
	return i.Opcode == hlo.Parameter || i.Opcode == hlo.Constant
}

// made is the bytes of the values that a node defines, without those that it forwards.
func (s *scheduler) made(n alias.Node) (bytes uint64) {
	for _, v := range s.f.Parts(n) {
		if s.f.Values[v].Node == n {
			bytes += s.size[v]
		}
	}
	return bytes
}

// place returns a function that finds the index of an instruction of a computation, in the
// order that was analysed.
func (s *scheduler) place(c *hlo.Computation) func(*hlo.Instruction) int32 {
	w := s.f.FirstWalk[c]
	first := s.f.Walks[w].First
	return func(i *hlo.Instruction) int32 {
		n, _ := s.f.Node(w, i)
		return int32(n - first)
	}
}

// dfs returns a post-order that goes first to the operand with most users behind it, and of
// equal ones to that with most bytes, then by name. The root is visited last, after what
// nothing uses.
//
// Say that r adds the results of two chains, one of 100 MB behind it and one of 10 MB. The
// first chain runs to its end, which leaves one value of it, before the second one begins, so
// that nothing of the second waits while most is live.
func (s *scheduler) dfs(c *hlo.Computation) ([]*hlo.Instruction, error) {
	first, place := s.f.Walks[s.f.FirstWalk[c]].First, s.place(c)
	post, err := s.postOrder(c)
	if err != nil {
		return nil, err
	}
	// How many users, beyond one each, and bytes there are behind an instruction. What
	// is reached on two ways counts twice, up to a bound: XLA adds up operands, too, and the
	// bound keeps sums from doubling with each level.
	users, bytes := make([]uint64, len(post)), make([]uint64, len(post))
	var sum uint64
	for _, i := range post {
		if ignored(i) {
			continue
		}
		u, b := uint64(max(len(i.Users), 1)-1), s.made(first+alias.Node(place(i)))
		sum += b
		for k, o := range i.Operands {
			if slices.Index(i.Operands, o) == k {
				u += users[place(o)]
				b = min(b+bytes[place(o)], sum)
			}
		}
		users[place(i)], bytes[place(i)] = min(u, uint64(len(post))), min(b, sum)
	}
	before := func(a, b *hlo.Instruction) int {
		p, q := place(a), place(b)
		return cmp.Or(cmp.Compare(users[q], users[p]), cmp.Compare(bytes[q], bytes[p]), cmp.Compare(a.Name, b.Name))
	}

	followed := make([]bool, len(post)) // has a control successor
	for _, i := range c.Instructions {
		for _, p := range i.After {
			followed[place(p)] = true
		}
		s.posts.state[i.ID] = 0
	}
	var roots []*hlo.Instruction
	for _, i := range c.Instructions {
		if len(i.Users) == 0 && !followed[place(i)] && i != c.Root {
			roots = append(roots, i)
		}
	}
	s.posts.order = make([]*hlo.Instruction, 0, len(post))
	for _, root := range append(roots, c.Root) {
		s.posts.visit(root, func(stack []*hlo.Instruction, x *hlo.Instruction) []*hlo.Instruction {
			from := len(stack)
			for _, list := range [2][]*hlo.Instruction{x.Operands, x.After} {
				for _, o := range list {
					if s.posts.state[o.ID] == 0 {
						stack = append(stack, o)
					}
				}
			}
			slices.SortStableFunc(stack[from:], before)
			slices.Reverse(stack[from:])
			return stack
		})
	}
	return ordered(c, s.posts.order, s.posts.state)
}
