package cuda

import (
	"errors"
	"strings"
	"testing"

	"gpumem/device"
)

func TestCodes(t *testing.T) {
	fatal := map[Code]bool{
		46: true, 214: true, 220: true, 226: true, 700: true, 702: true, 709: true, 710: true, 714: true, 715: true,
		716: true, 717: true, 718: true, 719: true, 721: true, 810: true, 911: true,
	}
	is := map[Code]error{
		1: device.ErrInvalidValue, 2: device.ErrOutOfMemory, 36: device.ErrNotSupported, 102: device.ErrNotPermitted,
		400: device.ErrInvalidHandle, 700: device.ErrIllegalAddress, 800: device.ErrNotPermitted, 801: device.ErrNotSupported,
		900: device.ErrNotPermitted,
	}
	for c, text := range codes {
		if !strings.HasPrefix(text.name, "CUDA_ERROR_") || text.text == "" || c <= 0 {
			t.Errorf("%d is %+v", c, text)
		}
		if c.fatal() != fatal[c] {
			t.Errorf("%v: fatal %v", c, c.fatal())
		}
		want := is[c]
		if fatal[c] && c != 700 {
			want = device.ErrLost
		}
		if text.is != want {
			t.Errorf("%v stands for %v, want %v", c, text.is, want)
		}
		if fatal[c] && !strings.Contains(c.Error(), "restart") {
			t.Errorf("%v does not say to restart", c)
		}
		if !strings.HasPrefix(c.Error(), c.Name()+": "+text.text) {
			t.Errorf("%d reads %q", c, c.Error())
		}
	}
	if c := Code(31337); c.Name() != "CUresult(31337)" || c.fatal() || errors.Is(c, device.ErrLost) || errors.Is(c, nil) {
		t.Errorf("%v", c)
	}
}
