package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"gpumem/device/card"
	"gpumem/size"
)

// ParseConfig reads what follows "sim:" on the command line:
// SIZE[,KEY=VALUE...]. In the place of SIZE may be a card's name, as card.Find knows it,
// which has the least total that is known of it, and its compute capability. The keys are
// those of a [Config]:
//
//	granularity=SIZE   of a plain grant, 1 to 1TiB
//	used=SIZE          held by another program
//	display=SIZE       held by the desktop
//	context=SIZE       taken by the program's first driver call
//	host=SIZE          of the host's memory, for managed grants; 256GiB unless given
//	cc=MAJOR.MINOR     compute capability
//	vmm=BOOL           virtual memory; true unless given
//	pools=BOOL         stream-ordered pools; true unless given
//	managed=BOOL       managed memory; true unless given
//	unified=BOOL       memory that is the host's
//	mig=TEXT           it is a slice of a GPU, of this name
//	name=TEXT
//
// and its faults:
//
//	fail=N             the N-th driver call fails, from 1
//	above=SIZE         larger requests are refused
//	lose=N             from the N-th driver call on the device is lost
//	slow=N:DURATION    the N-th driver call takes that much longer, up to 1h; 0
//	                   means every one
//
// BOOL is true or false, 1 or 0. A key may be given once; one that is not given has its default, and a name
// that is not given is the text itself. Whether what others hold fits in the
// total is for [New] to say. An error is one line that names the part that is
// wrong.
func ParseConfig(s string) (Config, error) {
	// The text becomes the device's name and so part of messages and reports,
	// which are lines.
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return Config{}, fmt.Errorf("sim: %q has a character that cannot be printed", s)
	}
	cfg, err := parseConfig(strings.Split(s, ","))
	if err != nil {
		return cfg, fmt.Errorf("sim:%s: %w", s, err)
	}
	if cfg.Name == "" {
		cfg.Name = "sim:" + s
	}
	return cfg, nil
}

// parseConfig is ParseConfig of words that were split at commas. A name that is not given stays empty.
func parseConfig(parts []string) (cfg Config, err error) {
	if first, _ := utf8.DecodeRuneInString(parts[0]); unicode.IsLetter(first) && !strings.Contains(parts[0], "=") {
		var c card.Card
		c, err = card.Find(parts[0])
		cfg.Total, cfg.CCMajor, cfg.CCMinor = c.Least(), c.CCMajor, c.CCMinor
	} else {
		cfg.Total, err = size.ParseFlag(parts[0])
	}
	if err != nil {
		return cfg, err
	}
	seen := map[string]bool{}
	for _, part := range parts[1:] {
		key, val, ok := strings.Cut(part, "=")
		if !ok {
			return cfg, fmt.Errorf("%q is not key=value", part)
		}
		if seen[key] {
			return cfg, fmt.Errorf("%s is given twice", key)
		}
		seen[key] = true
		if !slices.Contains(keys, key) {
			return cfg, fmt.Errorf("unknown key %q; known are %s", key, strings.Join(keys, ", "))
		}
		if err := cfg.set(key, val); err != nil {
			return cfg, fmt.Errorf("%s: %w", key, err)
		}
	}
	return cfg, nil
}

// keys are those that set knows, those of faults last.
var keys = strings.Fields("granularity used display context host cc vmm pools managed unified mig name fail above lose slow")

// set sets the field of a key.
func (c *Config) set(key, val string) (err error) {
	switch key {
	case "granularity":
		c.Granularity, err = size.Parse(val)
		if err == nil && (c.Granularity == 0 || c.Granularity > 1<<40) {
			err = fmt.Errorf("%s is not from 1 to 1TiB", val)
		}
	case "used":
		c.Used, err = size.ParseFlag(val)
	case "display":
		c.Display, err = size.ParseFlag(val)
	case "context":
		c.Context, err = size.ParseFlag(val)
	case "host":
		c.Host, err = size.ParseFlag(val)
		if err == nil && c.Host == 0 {
			err = fmt.Errorf("there is no host of 0 bytes; give at least 1")
		}
	case "cc":
		c.CCMajor, c.CCMinor, err = parseCC(val)
	case "vmm":
		err = parseBool(val, &c.NoPages, false)
	case "pools":
		err = parseBool(val, &c.NoPools, false)
	case "managed":
		err = parseBool(val, &c.NoManaged, false)
	case "unified":
		err = parseBool(val, &c.Unified, true)
	case "mig":
		c.MIG, err = parseText(val)
	case "name":
		c.Name, err = parseText(val)
	case "fail":
		c.Faults.FailAt, err = parseCall(val, 1)
	case "above":
		c.Faults.RefuseAbove, err = size.Parse(val)
		if err == nil && c.Faults.RefuseAbove == 0 {
			err = fmt.Errorf("0 would refuse nothing; give at least 1")
		}
	case "lose":
		c.Faults.LoseAt, err = parseCall(val, 1)
	case "slow":
		c.Faults.SlowAt, c.Faults.Slow, err = parseSlow(val)
	}
	return err
}

// parseCC reads a compute capability such as 9.0 or 12.1.
func parseCC(s string) (major, minor int, err error) {
	a, b, _ := strings.Cut(s, ".")
	major, _ = strconv.Atoi(a)
	minor, _ = strconv.Atoi(b)
	// Written out again it is the same, so there are no signs, leading zeros or
	// other tails; what Atoi refused is 0 and is not.
	if major < 1 || major > 99 || minor < 0 || minor > 9 || fmt.Sprintf("%d.%d", major, minor) != s {
		return 0, 0, fmt.Errorf("%s is not a compute capability such as 9.0", s)
	}
	return major, minor, nil
}

// parseBool sets a flag, or its opposite if the key means that.
func parseBool(s string, flag *bool, means bool) error {
	switch s {
	case "true", "1":
		*flag = means
	case "false", "0":
		*flag = !means
	default:
		return fmt.Errorf("%q is not true or false", s)
	}
	return nil
}

// parseText refuses an empty text: "name=" is never meant as the default; an
// empty variable in a script does.
func parseText(s string) (string, error) {
	if s == "" {
		return "", fmt.Errorf("no text; leave the key out for the default")
	}
	return s, nil
}

// parseCall reads the number of a driver call, at least min.
func parseCall(s string, min uint64) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n < min {
		return 0, fmt.Errorf("%q is not the number of a driver call, %d or more", s, min)
	}
	return n, nil
}

// parseSlow reads N:DURATION.
func parseSlow(s string) (n uint64, by time.Duration, err error) {
	call, text, ok := strings.Cut(s, ":")
	if !ok {
		return 0, 0, fmt.Errorf("%q is not N:DURATION, such as 3:10ms", s)
	}
	if n, err = parseCall(call, 0); err != nil {
		return 0, 0, err
	}
	by, err = time.ParseDuration(text)
	if err != nil || by <= 0 || by > time.Hour {
		return 0, 0, fmt.Errorf("%q is not a duration above 0 and up to 1h, such as 10ms", text)
	}
	return n, by, nil
}

// ParseFaults reads the keys of [ParseConfig] that are a program's own and not
// the device's, for a device that others describe: fail, above, lose and slow,
// each as key=value. An error names the part that is wrong.
func ParseFaults(parts []string) (Faults, error) {
	for _, part := range parts {
		if key, _, _ := strings.Cut(part, "="); !slices.Contains(keys[len(keys)-4:], key) {
			return Faults{}, fmt.Errorf("unknown key %q; known for a device that is there are device, fail, above, lose, slow", key)
		}
	}
	cfg, err := ParseConfig(strings.Join(append([]string{"1B"}, parts...), ","))
	return cfg.Faults, err
}
