package sim_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpumem/device/sim"
)

func TestParseConfig(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       sim.Config
	}{
		{"size alone", "80GiB", sim.Config{Total: 80 * gib, Name: "sim:80GiB"}},
		{"size as everyone writes it", "80G", sim.Config{Total: 80 * gib, Name: "sim:80G"}},
		{"bytes", "5B", sim.Config{Total: 5, Name: "sim:5B"}},
		{"bytes as in JSON", "25769803776,name=x", sim.Config{Total: 24 * gib, Name: "x"}},
		{"exact placement", "1GiB,granularity=1", sim.Config{Total: gib, Granularity: 1, Name: "sim:1GiB,granularity=1"}},
		{"largest granularity", "2TiB,granularity=1TiB,name=x", sim.Config{Total: 2 << 40, Granularity: 1 << 40, Name: "x"}},
		{
			"everything", "24GiB,granularity=2MiB,used=3G,display=512MiB,cc=8.6,name=the old card",
			sim.Config{Total: 24 * gib, Granularity: 2 * mib, Used: 3 * gib, Display: 512 * mib, CCMajor: 8, CCMinor: 6, Name: "the old card"},
		},
		{"any order", "1G,name=x,used=0", sim.Config{Total: gib, Name: "x"}},
		{"two digits", "1G,cc=12.1,name=x", sim.Config{Total: gib, CCMajor: 12, CCMinor: 1, Name: "x"}},
		{"equals sign in the name", "1G,name=a=b", sim.Config{Total: gib, Name: "a=b"}},
		{"name in other letters", "1G,name=дом", sim.Config{Total: gib, Name: "дом"}},
		{
			"the device's nature", "1G,vmm=false,pools=0,managed=false,unified=1,mig=1g.10gb,context=500MiB,host=64GiB,name=x",
			sim.Config{Total: gib, NoPages: true, NoPools: true, NoManaged: true, Unified: true, MIG: "1g.10gb", Context: 500 * mib, Host: 64 * gib, Name: "x"},
		},
		{"as it is anyway", "1G,vmm=true,pools=1,managed=1,unified=false,context=0,name=x", sim.Config{Total: gib, Name: "x"}},
		{
			"faults", "1G,fail=3,above=2MiB,lose=9,slow=4:1.5ms,name=x",
			sim.Config{Total: gib, Faults: sim.Faults{FailAt: 3, RefuseAbove: 2 * mib, LoseAt: 9, SlowAt: 4, Slow: 1500 * time.Microsecond}, Name: "x"},
		},
		{"every call slow, the most", "1G,slow=0:1h,name=x", sim.Config{Total: gib, Faults: sim.Faults{Slow: time.Hour}, Name: "x"}},
		{"the last call", "1G,fail=18446744073709551615,name=x", sim.Config{Total: gib, Faults: sim.Faults{FailAt: 1<<64 - 1}, Name: "x"}},
		// For New to refuse, which knows the same of a Config from elsewhere.
		{"more used than there is", "1G,used=2G,name=x", sim.Config{Total: gib, Used: 2 * gib, Name: "x"}},
		{"nothing", "0", sim.Config{Name: "sim:0"}},
		{"a card", "v100-16gb,used=0", sim.Config{Total: 16906065018, CCMajor: 7, Name: "sim:v100-16gb,used=0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := sim.ParseConfig(tc.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("ParseConfig(%q) differs (-want +got):\n%s", tc.text, diff)
			}
		})
	}
}

// TestParseConfigErrors: one line that names the device and the part.
func TestParseConfigErrors(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"empty", "", `sim:: size "": want a number of bytes`},
		{"no unit", "24", `missing unit; write 24GiB, 24MiB or 24B`},
		{"no unit", "24G,used=3", `used: size "3": missing unit`},
		{"no size", "used=5", `sim:used=5: size "used=5"`},
		{"bad size", "1lots", `sim:1lots: size "1lots"`},
		{"unknown card", "RTX 4099", `sim:RTX 4099: no card is known by the name "RTX 4099"; did you mean RTX 4090?`},
		{"too large", "16EiB", `size "16EiB": too large`},
		{"trailing comma", "1G,", `sim:1G,: "" is not key=value`},
		{"no value", "1G,used", `sim:1G,used: "used" is not key=value`},
		{"unknown key", "1G,colour=red", `unknown key "colour"; known are granularity, used, display, context, host, cc, vmm, pools, managed, unified, mig, name, fail, above, lose, slow`},
		{"case of the key", "1G,Used=1", `unknown key "Used"`},
		{"blank before the key", "1G, used=1", `unknown key " used"`},
		{"empty key", "1G,=1", `unknown key ""`},
		{"used", "1G,used=lots", `sim:1G,used=lots: used: size "lots"`},
		{"display", "1G,display=", `display: size ""`},
		{"granularity", "1G,granularity=-1", `granularity: size "-1"`},
		{"no granularity", "1G,granularity=0", "granularity: 0 is not from 1 to 1TiB"},
		{"too coarse", "1G,granularity=1025GiB", "granularity: 1025GiB is not from 1 to 1TiB"},
		{"cc without point", "1G,cc=9", "cc: 9 is not a compute capability such as 9.0"},
		{"cc empty", "1G,cc=", "cc:  is not"},
		{"cc with patch", "1G,cc=9.0.1", "cc: 9.0.1 is not"},
		{"cc 0", "1G,cc=0.0", "cc: 0.0 is not"},
		{"cc two digits", "1G,cc=9.10", "cc: 9.10 is not"},
		{"cc three digits", "1G,cc=100.0", "cc: 100.0 is not"},
		{"cc plus sign", "1G,cc=+9.0", "cc: +9.0 is not"},
		{"cc minus zero", "1G,cc=9.-0", "cc: 9.-0 is not"},
		{"cc leading zero", "1G,cc=09.0", "cc: 09.0 is not"},
		{"cc blank", "1G,cc=9.0 ", "cc: 9.0  is not"},
		{"empty name", "1G,name=", "sim:1G,name=: name: no text"},
		{"empty mig", "1G,mig=", "mig: no text; leave the key out"},
		{"context", "1G,context=all", `context: size "all"`},
		{"host", "1G,host=big", `host: size "big"`},
		{"no host", "1G,host=0", "host: there is no host of 0 bytes"},
		{"managed", "1G,managed=no", `managed: "no" is not true or false`},
		{"vmm", "1G,vmm=no", `vmm: "no" is not true or false`},
		{"vmm empty", "1G,vmm=", `vmm: "" is not true or false`},
		{"pools in capitals", "1G,pools=TRUE", `pools: "TRUE" is not`},
		{"unified", "1G,unified=2", `unified: "2" is not`},
		{"fail at 0", "1G,fail=0", `fail: "0" is not the number of a driver call, 1 or more`},
		{"fail empty", "1G,fail=", `fail: "" is not`},
		{"fail negative", "1G,fail=-1", `fail: "-1" is not`},
		{"fail with a sign", "1G,fail=+1", `fail: "+1" is not`},
		{"fail too large", "1G,fail=18446744073709551616", `fail: "18446744073709551616" is not`},
		{"above nothing", "1G,above=0", "above: 0 would refuse nothing"},
		{"above", "1G,above=x", `above: size "x"`},
		{"lose at 0", "1G,lose=0", `lose: "0" is not the number`},
		{"slow without a call", "1G,slow=10ms", `slow: "10ms" is not N:DURATION, such as 3:10ms`},
		{"slow at x", "1G,slow=x:10ms", `slow: "x" is not the number of a driver call, 0 or more`},
		{"slow by nothing", "1G,slow=1:", `slow: "" is not a duration above 0 and up to 1h`},
		{"slow without a unit", "1G,slow=1:10", `slow: "10" is not a duration`},
		{"slow by 0", "1G,slow=1:0s", `slow: "0s" is not`},
		{"slow by less", "1G,slow=1:-1s", `slow: "-1s" is not`},
		{"slow by too much", "1G,slow=1:1h0m0.000000001s", `slow: "1h0m0.000000001s" is not`},
		{"slow twice over", "1G,slow=1:2:3s", `slow: "2:3s" is not`},
		{"twice", "1G,used=1B,used=1B", "sim:1G,used=1B,used=1B: used is given twice"},
		{"name twice", "1G,name=a,cc=9.0,name=a", "name is given twice"},
		{"line break", "1G\n", `sim: "1G\n" has a character that cannot be printed`},
		{"tab in the name", "1G,name=a\tb", `sim: "1G,name=a\tb" has`},
		{"not UTF-8", "1G,name=\xff", `sim: "1G,name=\xff" has`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, err := sim.ParseConfig(tc.text)
			if err == nil {
				t.Fatalf("ParseConfig(%q) = %+v and no error", tc.text, cfg)
			}
			if !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("ParseConfig(%q): %q is not one line with %q", tc.text, err, tc.want)
			}
		})
	}
}

// FuzzParseConfig: whatever is read, written out in full is read the same.
func FuzzParseConfig(f *testing.F) {
	for _, s := range []string{
		"", "80GiB", "1G,granularity=1", "24GiB,granularity=2MiB,used=3G,display=512MiB,cc=8.6,name=card",
		"1G,vmm=0,pools=false,managed=0,host=2G,unified=true,mig=1g.10gb,context=1G,fail=1,above=2,lose=3,slow=0:10ms", "1G,slow=1:2:3s", "1G,mig=name=",
		"1G,used", "1G,used=1,used=1", "1G,cc=9", "1G,name=", "1G\n", "0,cc=+9.0", "1B", "1.5E,name=\u00a0",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		cfg, err := sim.ParseConfig(s)
		if err != nil {
			if line := err.Error(); !strings.HasPrefix(line, "sim:") || strings.ContainsAny(line, "\n\r") {
				t.Errorf("ParseConfig(%q): %q", s, line)
			}
			return
		}
		full := fmt.Sprintf("%dB,used=%dB,display=%dB,context=%dB,vmm=%v,pools=%v,managed=%v,unified=%v,name=%s",
			cfg.Total, cfg.Used, cfg.Display, cfg.Context, !cfg.NoPages, !cfg.NoPools, !cfg.NoManaged, cfg.Unified, cfg.Name)
		for key, n := range map[string]uint64{"fail": cfg.Faults.FailAt, "lose": cfg.Faults.LoseAt} {
			if n != 0 {
				full += fmt.Sprintf(",%s=%d", key, n)
			}
		}
		for key, n := range map[string]uint64{"host": cfg.Host, "above": cfg.Faults.RefuseAbove, "granularity": cfg.Granularity} {
			if n != 0 {
				full += fmt.Sprintf(",%s=%dB", key, n)
			}
		}
		if cfg.Faults.Slow != 0 {
			full += fmt.Sprintf(",slow=%d:%v", cfg.Faults.SlowAt, cfg.Faults.Slow)
		}
		if cfg.MIG != "" {
			full += ",mig=" + cfg.MIG
		}
		if cfg.CCMajor != 0 {
			full += fmt.Sprintf(",cc=%d.%d", cfg.CCMajor, cfg.CCMinor)
		}
		// A name that was made from the text has its commas.
		if named := strings.Contains(s, ",name="); !named {
			full = strings.Replace(full, ",name="+cfg.Name, ",name=x", 1)
			cfg.Name = "x"
		}
		got, err := sim.ParseConfig(full)
		if diff := cmp.Diff(cfg, got); diff != "" || err != nil {
			t.Errorf("ParseConfig(%q) and ParseConfig(%q): %v\n%s", s, full, err, diff)
		}
		// New refuses what does not fit, and nothing else.
		_, err = sim.New(cfg)
		fits := cfg.Total > 0 && cfg.Used <= cfg.Total && cfg.Display <= cfg.Total-cfg.Used
		if (err == nil) != fits {
			t.Errorf("New(%+v): %v", cfg, err)
		}
	})
}
