package tape

import (
	"errors"
	"testing"
)

func TestErrorText(t *testing.T) {
	cause := errors.New("cause")
	for _, c := range []struct {
		err  Error
		want string
	}{
		{Error{File: "x", Msg: "bad"}, "x: bad"},
		{Error{File: "x", Line: 3, Offset: 9, Msg: "bad"}, "x:3: bad"},
		{Error{File: "x", Offset: 9, Msg: "bad"}, "x: byte 9: bad"},
		{Error{File: "x", Err: cause}, "x: cause"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	if !errors.Is(&Error{Err: cause}, cause) {
		t.Error("the cause is lost")
	}
	if got := []string{Alloc.String(), Free.String(), Op(7).String()}; got[0] != "alloc" || got[1] != "free" || got[2] != "unknown" {
		t.Error(got)
	}
}
