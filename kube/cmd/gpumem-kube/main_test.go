package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestParse(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	for _, c := range []struct{ args, err string }{
		{"agent --node n1", ""},
		{"agent --node n1 --publish sim --sim-gpus 2 --sim-memory 16GiB --reserve 1GiB --metrics=", ""},
		{"", "want the command agent"},
		{"agnet --node n1", "want the command agent"},
		{"agent", "--node: want the name of this node"},
		{"agent --node agent", ""},
		{"agent --node n1 agent", `"agent": no argument is taken`},
		{"agent --node n1 more", `"more": no argument is taken`},
		{"agent --node n1 --nodes x", "unknown flag: --nodes"},
		{"agent --node n1 --publish nvidia", "--publish nvidia: want none, sim or cuda"},
		{"agent --node n1 --past-library ignore", "--past-library ignore: want kill or report"},
		{"agent --node n1 --reserve 5", "--reserve: "},
		{"agent --node n1 --sim-memory lots", "--sim-memory: "},
		{"agent --node n1 --sim-gpus 0", "--sim-gpus 0: want 1 to 16"},
		{"agent --node n1 --sim-gpus many", "invalid argument"},
		{"agent --node n1 --run-dir run", "--run-dir run: want an absolute path"},
		{"agent --node n1 --cdi-dir=", "--cdi-dir : want an absolute path"},
		{"agent --node n1 --pool elastik", "--pool elastik: want a policy"},
		{"agent --node n1 --pool env", "--pool env: want a policy"},
		{"agent --node n1 --drivers=", "--drivers : want the names"},
	} {
		_, err := parse(strings.Fields(c.args))
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", c.args, err)
		}
	}
	if _, err := parse([]string{"--help"}); !errors.Is(err, pflag.ErrHelp) {
		t.Error(err)
	}
	t.Setenv("NODE_NAME", "n2")
	if o, err := parse([]string{"agent"}); err != nil || o.node != "n2" || o.simMemory != 24<<30 {
		t.Errorf("%+v, %v", o, err)
	}
}
