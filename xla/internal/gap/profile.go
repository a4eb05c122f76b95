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

import (
	"math"
	"slices"
)

// A profile is bytes by slot. It has the most and the least of each block of slots, too, so
// that stretches without a slot over the limit are passed block by block. What is added to a
// whole block is kept with it (more), and not in its slots.
type profile struct {
	n           int
	slots       []int64 // without more of their block
	more        []int64 // by block
	top, bottom []int64 // by block: the most and the least
	// By block: how many slots are over the limit, -1 if that has to be counted again, and
	// how many are in the blocks before it, as of the last count.
	over   []int32
	before []int32
}

// profileBlock is the number of slots in a block.
const profileBlock = 64

func newProfile(n int) profile {
	blocks := (n + profileBlock - 1) / profileBlock
	p := profile{n: n, slots: make([]int64, n), more: make([]int64, blocks), top: make([]int64, blocks), bottom: make([]int64, blocks),
		over: make([]int32, blocks), before: make([]int32, blocks+1)}
	for b := range p.over {
		p.over[b] = -1
	}
	return p
}

// set makes the profile of the bytes in each slot.
func (p *profile) set(bytes []int64) {
	copy(p.slots, bytes)
	clear(p.more)
	for b := range p.top {
		p.summarise(b)
	}
}

// bytes returns the bytes in each slot.
func (p *profile) bytes() []int64 {
	list := slices.Clone(p.slots)
	for slot := range list {
		list[slot] += p.more[slot/profileBlock]
	}
	return list
}

// summarise updates the most and the least of a block.
func (p *profile) summarise(b int) {
	block := p.slots[b*profileBlock : min((b+1)*profileBlock, p.n)]
	p.top[b], p.bottom[b] = slices.Max(block)+p.more[b], slices.Min(block)+p.more[b]
	p.over[b] = -1
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
		if slot == b*profileBlock && to >= end-1 { // the whole block
			p.more[b] += bytes
			p.top[b] += bytes
			p.bottom[b] += bytes
			p.over[b] = -1
			slot = end
			continue
		}
		for ; slot < end && slot <= to; slot++ {
			p.slots[slot] += bytes
		}
		p.summarise(b)
	}
}

// count counts the slots over a limit, for overIn. Of blocks that changed since the last count
// it looks at the slots where the block is neither above nor below as a whole. The limit must
// always be the same.
func (p *profile) count(limit int64) {
	sum := int32(0)
	for b, n := range p.over {
		if n < 0 {
			end := min((b+1)*profileBlock, p.n)
			n = int32(p.above(b*profileBlock, end-1, limit, profileBlock))
			p.over[b] = n
		}
		p.before[b] = sum
		sum += n
	}
	p.before[len(p.over)] = sum
}

// total returns how many slots were over the limit when count counted them.
func (p *profile) total() int { return int(p.before[len(p.over)]) }

// overIn returns how many of the slots from..to, both included, are over the limit, which is
// that of count. The blocks between are those of the last count.
func (p *profile) overIn(from, to int, limit int64) int64 {
	if to < from {
		return 0
	}
	first, last := from/profileBlock, to/profileBlock
	if last-first < 2 {
		return p.above(from, to, limit, math.MaxInt64)
	}
	n := int64(p.before[last] - p.before[first+1])
	return n + p.above(from, (first+1)*profileBlock-1, limit, profileBlock) + p.above(last*profileBlock, to, limit, profileBlock)
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
			for least := bytes - p.more[b]; slot < end; slot++ {
				if p.slots[slot] > least {
					n++
				}
			}
		}
	}
	return n
}
