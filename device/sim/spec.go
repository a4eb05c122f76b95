package sim

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"gpumem/size"
)

// ParseConfig reads what follows "sim:" on the command line:
// SIZE[,granularity=SIZE][,used=SIZE][,display=SIZE][,cc=MAJOR.MINOR][,name=TEXT].
// A key may be given once; one that is not given has its default, and a name
// that is not given is the text itself. Whether what others hold fits in the
// total is for [New] to say. An error is one line that names the part that is
// wrong.
func ParseConfig(s string) (Config, error) {
	var cfg Config
	// The text becomes the device's name and so part of messages and reports,
	// which are lines.
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return cfg, fmt.Errorf("sim: %q has a character that cannot be printed", s)
	}
	parts := strings.Split(s, ",")
	total, err := size.Parse(parts[0])
	if err != nil {
		return cfg, fmt.Errorf("sim:%s: %v", s, err)
	}
	cfg.Total = total
	seen := map[string]bool{}
	for _, part := range parts[1:] {
		key, val, ok := strings.Cut(part, "=")
		if !ok {
			return cfg, fmt.Errorf("sim:%s: %q is not key=value", s, part)
		}
		if seen[key] {
			return cfg, fmt.Errorf("sim:%s: %s is given twice", s, key)
		}
		seen[key] = true
		switch key {
		case "granularity":
			cfg.Granularity, err = size.Parse(val)
			if err == nil && (cfg.Granularity == 0 || cfg.Granularity > 1<<40) {
				err = fmt.Errorf("%s is not from 1 to 1TiB", val)
			}
		case "used":
			cfg.Used, err = size.Parse(val)
		case "display":
			cfg.Display, err = size.Parse(val)
		case "cc":
			cfg.CCMajor, cfg.CCMinor, err = parseCC(val)
		case "name":
			// Nobody writes "name=" to get the default; an empty variable in a
			// script does.
			if cfg.Name = val; val == "" {
				err = fmt.Errorf("no text; leave the key out for the default name")
			}
		default:
			return cfg, fmt.Errorf("sim:%s: unknown key %q; known are granularity, used, display, cc, name", s, key)
		}
		if err != nil {
			return cfg, fmt.Errorf("sim:%s: %s: %v", s, key, err)
		}
	}
	if cfg.Name == "" {
		cfg.Name = "sim:" + s
	}
	return cfg, nil
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
