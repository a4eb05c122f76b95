package gap

// The bytes that are live in each slot.
//
// The planner asks two things very often: add this many bytes to a stretch, and how many
// slots of a stretch have more than this many bytes. Modules have tens of thousands of slots
// and plans thousands of splits, so that both look at blocks of 64 slots as a whole where
// they can. Of the slots 100 to 899, how many are above 3 GiB? They lie in blocks 1 to 14. A
// block is passed if its most is at most 3 GiB, and counted without a look at its slots if
// its least is above. Only the slots of the others are looked at one by one: near a limit
// that is a few blocks where the curve crosses it.

import "slices"

// A profile is bytes by slot. It has the most and the least of each block of slots, too, so
// that stretches without a slot over the limit are passed block by block.
type profile struct {
	n           int
	bytes       []int64
	top, bottom []int64 // by block: the most and the least
}

// profileBlock is the number of slots in a block.
const profileBlock = 64

func newProfile(n int) profile {
	blocks := (n + profileBlock - 1) / profileBlock
	return profile{n: n, bytes: make([]int64, n), top: make([]int64, blocks), bottom: make([]int64, blocks)}
}

// set makes the profile of the changes in each slot: change[slot] is what is live there more
// than in the slot before.
func (p *profile) set(change []int64) {
	var now int64
	for slot := range p.n {
		now += change[slot]
		p.bytes[slot] = now
	}
	for b := range p.top {
		p.summarise(b)
	}
}

// summarise updates the most and the least of a block.
func (p *profile) summarise(b int) {
	block := p.bytes[b*profileBlock : min((b+1)*profileBlock, p.n)]
	p.top[b], p.bottom[b] = slices.Max(block), slices.Min(block)
}

// add adds bytes, which may be negative, to the slots from..to, both included. Without any
// slot (from is above to) it does nothing.
func (p *profile) add(from, to int, bytes int64) {
	if from > to || bytes == 0 {
		return
	}
	for slot := from; slot <= to; {
		b := slot / profileBlock
		end := min((b+1)*profileBlock, p.n)
		if slot == b*profileBlock && to >= end-1 { // the whole block: its most and least move along
			for ; slot < end; slot++ {
				p.bytes[slot] += bytes
			}
			p.top[b] += bytes
			p.bottom[b] += bytes
			continue
		}
		for ; slot < end && slot <= to; slot++ {
			p.bytes[slot] += bytes
		}
		p.summarise(b)
	}
}

// above returns how many of the slots from..to, both included, have more than a number of
// bytes. It stops counting once it has reached most, and may return more than that. To find
// out whether there is one, pass 1.
func (p *profile) above(from, to int, bytes, most int64) (n int64) {
	for slot := from; slot <= to && n < most; {
		b := slot / profileBlock
		end := min((b+1)*profileBlock, p.n, to+1)
		switch {
		case p.top[b] <= bytes:
			slot = end
		case p.bottom[b] > bytes:
			n += int64(end - slot)
			slot = end
		default:
			for ; slot < end; slot++ {
				if p.bytes[slot] > bytes {
					n++
				}
			}
		}
	}
	return n
}
