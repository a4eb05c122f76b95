package logs

// The clocks that read the times in logs.

import (
	"bytes"
	"time"

	"gpumem/internal/input"
)

// dayClock reads times of day that come without a date, in nanoseconds from the
// midnight before the first one, and seconds since 1970.
type dayClock struct {
	days uint64 // midnights so far, in nanoseconds
	last uint64 // the time of day before
}

const day = uint64(24 * time.Hour)

// parse reads 14:21:19.998533, with a '.' or a ':' before the fraction, or
// 1634567890.123456; the fraction may be missing.
//
// A time of day that is more than half a day before the last one is of the next
// day. A smaller step back is threads that wrote out of order, or a clock that
// was set; the builder keeps the later time.
func (c *dayClock) parse(s []byte) (uint64, bool) {
	whole, fraction, _ := bytes.Cut(s, []byte{'.'})
	if n, ok := input.Decimal(whole); ok && n < 1<<63/1_000_000_000 {
		ns, ok := fractionOf(fraction)
		return n*1e9 + ns, ok
	}
	if len(s) < len("14:21:19") {
		return 0, false
	}
	now, ok := timeOfDay(s[:8])
	if !ok {
		return 0, false
	}
	if s = s[8:]; len(s) > 0 {
		ns, ok := fractionOf(s[1:])
		if !ok || s[0] != '.' && s[0] != ':' {
			return 0, false
		}
		now += ns
	}
	const minute = uint64(time.Minute)
	switch {
	case c.last > now && c.last-now > day/2:
		c.days += day
	case c.days > 0 && c.last < minute && now >= day-minute: // out of order, over midnight
		return c.days - day + now, true
	}
	c.last = now
	return c.days + now, true
}

// timeOfDay reads 14:21:19, in nanoseconds. A leap second is 60.
func timeOfDay(s []byte) (uint64, bool) {
	h, okH := twoDigits(s[0:2])
	m, okM := twoDigits(s[3:5])
	sec, okS := twoDigits(s[6:8])
	ok := okH && okM && okS && s[2] == ':' && s[5] == ':' && h < 24 && m < 60 && sec <= 60
	return (h*3600 + m*60 + sec) * 1e9, ok
}

func twoDigits(s []byte) (uint64, bool) {
	a, b := s[0]-'0', s[1]-'0'
	return uint64(a)*10 + uint64(b), a <= 9 && b <= 9
}

// fractionOf reads the digits behind a decimal point, in nanoseconds; what
// follows the ninth is left out.
func fractionOf(s []byte) (uint64, bool) {
	if len(s) == 0 {
		return 0, true
	}
	s = s[:min(len(s), 9)]
	n, ok := input.Decimal(s)
	for range 9 - len(s) {
		n *= 10
	}
	return n, ok
}
