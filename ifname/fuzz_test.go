package ifname_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/ifname"
)

// What Validate accepts, libcni and skel accept too, and it is legible.
func FuzzValidate(f *testing.F) {
	for _, tt := range names {
		f.Add(tt.name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		err := ifname.Validate(name)
		if err != nil {
			var e *ifname.Error
			if !errors.Is(err, ifname.ErrInvalid) || !errors.As(err, &e) || e.Name != name || e.CNICode() != 4 {
				t.Errorf("error %v", err)
			}
			return
		}
		if e := utils.ValidateInterfaceName(name); e != nil {
			t.Errorf("%q is valid here, and for libcni: %v", name, e)
		}
		if len(name) == 0 || len(name) > 15 || strings.ContainsAny(name, "/:% \t\n\v\f\r\x00\x7f") || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == '\uFFFD' && !strings.Contains(name, "\uFFFD") }) {
			t.Errorf("%q is valid", name)
		}
	})
}

// A plan keeps what was asked for, has no duplicates and nothing taken, and
// every name in it is valid.
func FuzzPlan(f *testing.F) {
	f.Add("eth0", "", "lo,net1", ",,net2,")
	f.Add("net1", "net", "", ",,")
	f.Add("eth0", "eth", "eth1", "a,b,,eth2")
	f.Add("", "x", "", "a,a")
	f.Fuzz(func(t *testing.T, primary, prefix, taken, requests string) {
		s := ifname.Scheme{Primary: primary, Prefix: prefix, Taken: strings.Split(taken, ",")}
		asked := strings.Split(requests, ",")
		got, err := s.Plan(asked...)
		again, err2 := s.Plan(asked...)
		if !slices.Equal(got, again) || (err == nil) != (err2 == nil) {
			t.Fatalf("first %q, %v, then %q, %v", got, err, again, err2)
		}
		if err != nil {
			var e *ifname.Error
			if got != nil || !errors.As(err, &e) || e.CNICode() != 4 && e.CNICode() != 7 {
				t.Errorf("%q, error %v", got, err)
			}
			return
		}
		seen := map[string]bool{}
		for i, name := range got {
			if ifname.Validate(name) != nil || seen[name] || slices.Contains(s.Taken, name) {
				t.Errorf("%q: %q is invalid, there twice, or taken", got, name)
			}
			seen[name] = true
			if asked[i] != "" && asked[i] != name {
				t.Errorf("asked for %q, got %q", asked[i], name)
			}
		}
		if len(got) != len(asked) || asked[0] == "" && got[0] != primary {
			t.Errorf("asked %q, got %q", asked, got)
		}
	})
}
