package dump

// The map of the pool, in one character for each cell of it.

// marks stand for how much of a cell is live: nothing, less than half, half or
// more, all.
const marks = "_.+*"

// picture draws the regions back to back. A cell is at least one unit of 256
// bytes.
func (s *screen) picture() {
	d := s.d
	if len(d.Regions) == 0 || d.Pool == 0 || s.strips == 0 {
		return
	}
	cells := min(uint64(s.strips*(s.width-2)), (d.Pool+MinAllocation-1)/MinAllocation)
	live := make([]float64, cells) // bytes
	per := float64(d.Pool) / float64(cells)
	var base float64
	for i := range d.Regions {
		r := &d.Regions[i]
		for k := range r.Chunks {
			c := &r.Chunks[k]
			if !c.Live {
				continue
			}
			from := (base + float64(c.Addr-r.Addr)) / per
			to := from + float64(c.Size)/per
			for cell := from; cell < to; {
				at := uint64(cell)
				if at >= cells { // rounding, or a region whose lines are missing
					break
				}
				next := min(float64(at+1), to)
				live[at] += next - cell
				cell = next
			}
		}
		base += float64(r.Size)
	}
	text := make([]byte, cells)
	for i, share := range live {
		switch {
		case share > 0.9999:
			text[i] = marks[3]
		case share >= 0.5:
			text[i] = marks[2]
		case share > 0:
			text[i] = marks[1]
		default:
			text[i] = marks[0]
		}
	}
	s.line("in order of addresses: _ free, . and + below and above half in use, * in use")
	for len(text) > 0 {
		n := min(len(text), s.width-2)
		s.line("[%s]", text[:n])
		text = text[n:]
	}
}
