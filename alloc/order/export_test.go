package order

// Events is how many events the guard has made and not given back.
func Events(g *Guard) int {
	all := map[*event]bool{}
	for _, e := range g.spare {
		all[e] = true
	}
	for _, n := range g.notes.list {
		for _, m := range n.marks {
			all[m.event] = true
		}
	}
	return len(all)
}
