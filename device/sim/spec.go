package sim

import (
	"fmt"
	"strconv"
	"strings"

	"gpumem/size"
)

// ParseConfig reads what follows "sim:" on the command line:
// SIZE[,granularity=SIZE][,used=SIZE][,display=SIZE][,cc=MAJOR.MINOR][,name=TEXT].
// An error is one line that names the part that is wrong.
func ParseConfig(s string) (Config, error) {
	var cfg Config
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
				err = fmt.Errorf("granularity must be from 1 to 1TiB")
			}
		case "used":
			cfg.Used, err = size.Parse(val)
		case "display":
			cfg.Display, err = size.Parse(val)
		case "cc":
			cfg.CCMajor, cfg.CCMinor, err = parseCC(val)
		case "name":
			cfg.Name = val
		default:
			err = fmt.Errorf("unknown key %q; known are granularity, used, display, cc, name", key)
		}
		if err != nil {
			return cfg, fmt.Errorf("sim:%s: %v", s, err)
		}
	}
	if cfg.Name == "" {
		cfg.Name = "sim:" + s
	}
	return cfg, nil
}

// parseCC reads a compute capability such as 9.0 or 12.1.
func parseCC(s string) (major, minor int, err error) {
	a, b, ok := strings.Cut(s, ".")
	major, err1 := strconv.Atoi(a)
	minor, err2 := strconv.Atoi(b)
	if !ok || err1 != nil || err2 != nil || major < 1 || major > 99 || minor < 0 || minor > 9 {
		return 0, 0, fmt.Errorf("cc=%s is not a compute capability such as 9.0", s)
	}
	return major, minor, nil
}
