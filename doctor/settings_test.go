package doctor

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/policy/frameworks"
)

// TestSettingSeen: a variable that is set in a log, in each way of setting it.
func TestSettingSeen(t *testing.T) {
	tests := []struct{ name, line, value string }{
		{"shell", `NAME=VALUE`, "VALUE"},
		{"shell, before a command", `$ NAME=VALUE python train.py`, "VALUE"},
		{"export", `export NAME=VALUE`, "VALUE"},
		{"export, traced", `+ export NAME=VALUE`, "VALUE"},
		{"export, in quotes", `export NAME="VALUE"`, "VALUE"},
		{"export, with a comment", `export NAME=VALUE  # all of it`, "VALUE"},
		{"export, and more", `export NAME=VALUE; python train.py`, "VALUE"},
		{"exported already", `declare -x NAME="VALUE"`, "VALUE"},
		{"powershell", `$env:NAME = "VALUE"`, "VALUE"},
		{"several words", `export NAME="--first=1 --second"`, "--first=1 --second"},
		{"several words of Python", `NAME='--first=1 --second'`, "--first=1 --second"},
		{"colons", `NAME=:4096:8`, ":4096:8"},
		{"a list", `NAME=0,1`, "0,1"},
		{"a number", `NAME=.45`, ".45"},
		{"one letter", `NAME=0`, "0"},
		{"a sentence's end", `run with NAME=.45.`, ".45"},
		{"empty", `export NAME=""`, ""},
		{"os.environ", `os.environ["NAME"] = "VALUE"`, "VALUE"},
		{"os.environ, one quote", `os.environ['NAME']='VALUE'`, "VALUE"},
		{"os.environ, empty", `os.environ['NAME'] = ''`, ""},
		{"a notebook", `%env NAME=VALUE`, "VALUE"},
		{"a dict of Python", `environ({'HOME': '/root', 'NAME': 'VALUE', 'A': 'b'})`, "VALUE"},
		{"json", `{"NAME": "VALUE", "A": "b"}`, "VALUE"},
		{"json, short", `{"NAME":"VALUE"}`, "VALUE"},
		{"dockerfile", `ENV NAME VALUE`, "VALUE"},
		{"dockerfile, built", `Step 3/9 : ENV NAME VALUE`, "VALUE"},
		{"dockerfile, today", `#7 [3/9] ENV NAME=VALUE A=b`, "VALUE"},
		{"dockerfile, several words", `ENV NAME --first=1 --second`, "--first=1 --second"},
		{"docker run", `docker run --gpus all -e NAME=VALUE image`, "VALUE"},
		{"docker run, in quotes", `docker run -e "NAME=VALUE" image`, "VALUE"},
		{"docker run, long", `docker run --env NAME=VALUE image`, "VALUE"},
		{"compose, a map", `      NAME: VALUE`, "VALUE"},
		{"compose, a map with quotes", `      NAME: "VALUE"`, "VALUE"},
		{"compose, a list", `      - NAME=VALUE`, "VALUE"},
		{"compose, a list with quotes", `      - "NAME=VALUE"`, "VALUE"},
		{"kubectl describe", `      NAME:          VALUE`, "VALUE"},
		{"slurm", `srun --export=ALL,NAME=VALUE python train.py`, "VALUE"},
		{"markdown", "I run it with `NAME=VALUE`, and it fails", "VALUE"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, v := range frameworks.Variables() {
				line := strings.ReplaceAll(tt.line, "NAME", v.Name)
				want := []Fact{{Kind: SettingSeen, Line: 1, Text: strings.TrimSpace(line), Device: -1, Name: v.Name, Value: tt.value}}
				if d := cmp.Diff(want, facts(t, line)); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

// TestSettingNotSeen: a variable that is named and not set.
func TestSettingNotSeen(t *testing.T) {
	for _, line := range []string{
		"NAME", "NAME=", "NAME= ", "$NAME", "unset NAME", `if NAME == "VALUE":`, `os.environ["NAME"] == "VALUE"`, `os.environ.get("NAME", "VALUE")`,
		"MY_NAME=VALUE", "NAME_OF=VALUE", "NAMES=VALUE", "ENV NAME", "MYENV NAME VALUE", "echo ${NAME:-VALUE}", "${NAME:=VALUE}",
		"try NAME=VALUE", "Try setting NAME=VALUE", "You may set `NAME=VALUE`", "consider the environment variable 'NAME=VALUE'", "NAME: the part of the memory", "see NAME: it helps",
	} {
		for _, v := range frameworks.Variables() {
			for _, f := range facts(t, strings.ReplaceAll(line, "NAME", v.Name)) {
				t.Errorf("%q: %+v", line, f)
			}
		}
	}
}

// TestQuotaSeen: the variables of HAMi, which are no framework's.
func TestQuotaSeen(t *testing.T) {
	for _, name := range []string{"CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_MEMORY_LIMIT_15"} {
		got := facts(t, name+"=3000m")
		if len(got) != 1 || got[0].Name != name || got[0].Value != "3000m" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
