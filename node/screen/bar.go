// The bar of a device: who has its memory.

package screen

import (
	"strings"

	"gpumem/internal/report"
	"gpumem/node/internal/view"
	"gpumem/node/machine"
	"gpumem/size"
)

// bar draws the shares of a device in one line of the screen's width. Each program's part
// begins with its letter, and has its name and size where they fit.
func (v *screenView) bar(d *machine.Device, s view.Shares, number func(program int) int) line {
	var bytes []uint64
	free := "free " // the heading's free memory has what is left of leases in it
	for _, p := range s.Parts {
		bytes = append(bytes, p.Bytes)
		if p.Kind == view.PartLease {
			free = "free, not leased "
		}
	}
	var l line
	for i, room := range cells(bytes, s.Total, v.Width) {
		if room == 0 {
			continue
		}
		p := s.Parts[i]
		sized := size.Format(p.Bytes)
		switch p.Kind {
		case view.PartProgram:
			key := letter(number(p.Program))
			name := report.OneLine(view.Title(&d.Programs[p.Program]))
			fill := " "
			if v.Colours == noColours {
				fill = "="
			}
			some := key
			if room >= 6 { // some letters of the name, and a blank
				some += " " + cut(name, room-3) + " "
			}
			l = l.add(labelled(room, fill, 0, key+" "+name+" "+sized+" ", key+" "+name+" ", some, key),
				look{mark: mark(number(p.Program)), back: true})
		case view.PartLease:
			key := letter(number(p.Program))
			l = l.add(labelled(room, v.sign("╱"), 1, " "+key+"'s lease: "+sized+" left ", " "+key+" "+sized+" left ", " "+sized+" "),
				look{mark: mark(number(p.Program))})
		case view.PartUnlisted:
			l = l.add(labelled(room, v.sign("▒"), 1, " unlisted "+sized+" ", " unlisted "), look{mark: greyMark})
		case view.PartUnknown:
			l = l.add(labelled(room, "?", 1, " unknown "), look{mark: greyMark})
		default:
			l = l.add(labelled(room, v.sign("·"), 1, " "+free+sized+" ", " "+sized+" ", " "+strings.TrimSpace(free)+" "), look{quiet: true})
		}
	}
	return l
}

// labelled returns room cells: before of fill, the first of the texts that fits, and fill
// for the rest. With before above 0 there is fill on both sides of the text. If no text
// fits all is fill.
func labelled(room int, fill string, before int, texts ...string) string {
	for _, text := range texts {
		if n := width(text); before+n < room || before == 0 && n == room {
			return strings.Repeat(fill, before) + text + strings.Repeat(fill, room-before-n)
		}
	}
	return strings.Repeat(fill, room)
}

// cells divides room cells in proportion to the bytes, of which total is the sum. Each
// that is not 0 has at least one, if there are enough cells.
func cells(bytes []uint64, total uint64, room int) []int {
	ends := make([]int, len(bytes))
	var sum float64
	for i, b := range bytes {
		sum += float64(b)
		if total > 0 {
			ends[i] = int(sum/float64(total)*float64(room) + .5)
		}
	}
	wanted := 0
	for _, b := range bytes {
		if b > 0 {
			wanted++
		}
	}
	if wanted > 0 && wanted <= room {
		begin := 0
		for i, b := range bytes { // from the left: each ends behind the one before it
			if b > 0 {
				ends[i] = max(ends[i], begin+1)
			} else {
				ends[i] = max(ends[i], begin)
			}
			begin = ends[i]
		}
		end := room
		for i := len(bytes) - 1; i >= 0; i-- { // from the right: and leaves room for those after it
			ends[i] = min(ends[i], end)
			if end = ends[i]; bytes[i] > 0 {
				end--
			}
		}
	}
	widths := make([]int, len(bytes))
	begin := 0
	for i, end := range ends {
		widths[i] = end - begin
		begin = end
	}
	return widths
}
