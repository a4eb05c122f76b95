package smi

// The use of a GPU over time. A series keeps every sample of a short recording and thins
// itself as it grows: the first, the highest and the last are exact, and the point with
// which the end is compared is near the one that was wanted.

import (
	"strconv"
	"time"
)

const (
	// maxSeries and maxPoints bound the memory of all series.
	maxSeries, maxPoints = 64, 1 << 9
	// lastMinutes is how far before the end LastRise looks, of a long recording.
	lastMinutes = 10 * time.Minute
)

// Series is the use of one GPU over time, in bytes.
type Series struct {
	Index      int // -1 if unknown
	Name, UUID string
	Total      uint64 // 0 if unknown

	First, Peak, Last  uint64
	PeakLine, LastLine int
	PeakTime           time.Time // zero if unknown
	Samples            int
	Over               time.Duration // from the first to the last sample; 0 if the times are unknown
	// LastRise is Last less what was used LastOver before. That is at least ten minutes, or
	// half of a shorter recording, and more where there is no sample that near: between
	// two samples nothing is known. Without times it is the last quarter of the samples, and
	// LastOver is 0.
	LastRise int64
	LastOver time.Duration
}

type series struct {
	key        string
	sum        Series
	start, end point
	days       time.Duration // midnights passed, where only the time of the day is known

	points []point
	stride int // every stride-th sample is kept
}

type point struct {
	at   time.Time
	used uint64
}

// extend adds a reading to the series of its GPUs.
func (r *Reader) extend(c *Reading) {
	for i := range c.GPUs {
		g := &c.GPUs[i]
		if !g.HasUsed {
			g.UsedLine = 0
			continue
		}
		key := g.key()
		if key == "" {
			key = "#" + strconv.Itoa(i)
		}
		if s := r.seriesOf(key, g); s != nil {
			s.add(c.Time, g)
		}
	}
}

func (r *Reader) seriesOf(key string, g *GPU) *series {
	for i := range r.series {
		if r.series[i].key == key {
			return &r.series[i]
		}
	}
	if len(r.series) == maxSeries {
		return nil
	}
	r.series = append(r.series, series{key: key, sum: Series{Index: g.Index}, stride: 1})
	return &r.series[len(r.series)-1]
}

// add adds a sample.
func (s *series) add(at time.Time, g *GPU) {
	if g.Name != "" {
		s.sum.Name = g.Name
	}
	if g.UUID != "" {
		s.sum.UUID = g.UUID
	}
	s.sum.Total = max(s.sum.Total, g.Total)
	if at.Year() == 0 && s.sum.Samples > 0 && s.start.at.Year() == 0 {
		if at = at.Add(s.days); at.Before(s.end.at) {
			at, s.days = at.Add(24*time.Hour), s.days+24*time.Hour
		}
	}
	if s.sum.Samples > 0 && at.Before(s.end.at) {
		at = s.end.at // unknown, or the clock was set back
	}
	s.end = point{at, g.Used}
	if s.sum.Samples == 0 {
		s.start = s.end
	}
	if s.sum.Samples == 0 || g.Used > s.sum.Peak {
		s.sum.Peak, s.sum.PeakLine, s.sum.PeakTime = g.Used, g.UsedLine, at
	}
	if s.sum.Samples%s.stride == 0 {
		s.keep(s.end)
	}
	s.sum.LastLine = g.UsedLine
	s.sum.Samples++
}

// keep adds a point, after it dropped every other one if there are too many.
func (s *series) keep(p point) {
	if len(s.points) == maxPoints {
		for i := range maxPoints / 2 {
			s.points[i] = s.points[2*i]
		}
		s.points = s.points[:maxPoints/2]
		s.stride *= 2
	}
	s.points = append(s.points, p)
}

// Summary returns the use of each GPU of which more than one reading was found, over all
// readings, those that [Reader.Readings] leaves out included.
func (r *Reader) Summary() []Series {
	r.finish()
	var all []Series
	for i := range r.series {
		if r.series[i].sum.Samples > 1 {
			all = append(all, r.series[i].summary())
		}
	}
	return all
}

// summary compares the end with what was before.
func (s *series) summary() Series {
	sum := s.sum
	sum.First, sum.Last = s.start.used, s.end.used
	before := s.points[(len(s.points)-1)*3/4]
	if !s.start.at.IsZero() && s.end.at.After(s.start.at) {
		sum.Over = s.end.at.Sub(s.start.at)
		until := s.end.at.Add(-min(lastMinutes, sum.Over/2))
		for _, p := range s.points {
			if !p.at.After(until) {
				before = p
			}
		}
		sum.LastOver = s.end.at.Sub(before.at)
	}
	sum.LastRise = int64(sum.Last) - int64(before.used)
	return sum
}
