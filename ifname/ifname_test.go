package ifname_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/ifname"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// names are what Validate is tried on, here against what is written and in
// TestValidateAgreesWithKernel against the kernel.
var names = []struct {
	name string
	why  string // part of the error; "" when the name is valid
}{
	{"eth0", ""},
	{"net1", ""},
	{"a", ""},
	{"123456789012345", ""},
	{"-", `starts with "-"`},
	{"A.b_c@d,e+f", ""},
	{`a"b\c'd`, ""},
	{"é", ""},
	{"ALL", ""},

	{"", "empty"},
	{"1234567890123456", "16 bytes"},
	{"日本語日本語", "18 bytes"}, // six characters
	{".", "directory"},
	{"..", "directory"},
	{"a/b", `'/'`},
	{"a:1", `':'`},
	{"net%d", `'%'`}, // The kernel creates net0
	{"a b", "space"},
	{"a\n", "space"},
	{"a\u00a0b", "space"},
	{"a\u2003b", "space"},
	{"a\x00b", "control"}, // The kernel creates a
	{"a\x01b", "control"},
	{"a\x7fb", "control"},
	{"à", "kernel sees a space"}, // C3 A0
	{"a\xff", "not UTF-8"},
	{"a\xa0", "not UTF-8"},
	{"-rf", `starts with "-"`},
	{"lo", "loopback"},
	{"all", "reserved"},
	{"default", "reserved"},
}

// No name that the kernel would refuse or change gets through.
func TestValidate(t *testing.T) {
	t.Parallel()
	for _, tt := range names {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := ifname.Validate(tt.name)
			if tt.why == "" {
				if err != nil {
					t.Errorf("Validate(%q) = %v, want nil", tt.name, err)
				}
				return
			}
			checkError(t, err, ifname.ErrInvalid, 4, tt.name, tt.why)
		})
	}
}

// checkError checks that err is an *ifname.Error of that kind, code and name,
// with text in its message.
func checkError(t *testing.T, err, kind error, code uint, name, text string) {
	t.Helper()
	var e *ifname.Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v is %T, want *ifname.Error", err, err)
	}
	if !errors.Is(err, kind) || e.CNICode() != code || e.Name != name {
		t.Errorf("error %v: kind %v, code %d, name %q; want %v, %d, %q", err, e.Err, e.CNICode(), e.Name, kind, code, name)
	}
	nodetest.Says(t, err, text)
}

type scheme = ifname.Scheme

// Names are settled before anything runs, the same every time.
func TestPlan(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		scheme   scheme
		requests []string
		want     []string
	}{
		{"nothing", scheme{}, nil, nil},
		{"primary", scheme{Primary: "eth0"}, []string{""}, []string{"eth0"}},
		{"by position", scheme{Primary: "eth0"}, []string{"", "", "", ""}, []string{"eth0", "net1", "net2", "net3"}},
		{"position counts those with names", scheme{Primary: "eth0"}, []string{"", "x", ""}, []string{"eth0", "x", "net2"}},
		{"all asked for", scheme{}, []string{"a", "b"}, []string{"a", "b"}},
		{"first asked for", scheme{Primary: "eth0"}, []string{"a", ""}, []string{"a", "net1"}},
		{"steps aside", scheme{Primary: "eth0"}, []string{"", "", "storage0", "net1"}, []string{"eth0", "net2", "storage0", "net1"}},
		{"steps aside for the primary", scheme{Primary: "net1"}, []string{"", ""}, []string{"net1", "net2"}},
		{"stays clear of an unused primary", scheme{Primary: "net1"}, []string{"a", ""}, []string{"a", "net2"}},
		{"unused primary asked for", scheme{Primary: "eth0"}, []string{"a", "eth0"}, []string{"a", "eth0"}},
		{"taken", scheme{Primary: "eth0", Taken: []string{"lo", "net1", "net2"}}, []string{"", "", ""}, []string{"eth0", "net3", "net4"}},
		{"prefix", scheme{Primary: "eth0", Prefix: "eth"}, []string{"", "", ""}, []string{"eth0", "eth1", "eth2"}},
		{"taken is not validated", scheme{Primary: "eth0", Taken: []string{"", "a/b"}}, []string{"", ""}, []string{"eth0", "net1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			asked, taken := slices.Clone(tt.requests), slices.Clone(tt.scheme.Taken)
			for range 3 {
				got, err := tt.scheme.Plan(tt.requests...)
				nodetest.OK(t, err)
				nodetest.Equal(t, "plan", got, tt.want)
			}
			if !slices.Equal(asked, tt.requests) || !slices.Equal(taken, tt.scheme.Taken) {
				t.Error("Plan changed its arguments")
			}
		})
	}
}

func TestPlanErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		scheme   scheme
		requests []string
		kind     error
		code     uint
		bad      string
		text     string
	}{
		{"no primary", scheme{}, []string{""}, ifname.ErrInvalid, 4, "", "first interface"},
		{"bad primary", scheme{Primary: "net%d"}, []string{""}, ifname.ErrInvalid, 4, "net%d", "%"},
		{"bad request", scheme{Primary: "eth0"}, []string{"", "1234567890123456"}, ifname.ErrInvalid, 4, "1234567890123456", "16 bytes"},
		{"bad prefix", scheme{Primary: "eth0", Prefix: "n:"}, []string{"", ""}, ifname.ErrInvalid, 4, "n:1", "':'"},
		{"long prefix", scheme{Primary: "eth0", Prefix: "123456789012345"}, []string{"", ""}, ifname.ErrInvalid, 4, "1234567890123451", "16 bytes"},
		{"twice", scheme{Primary: "eth0"}, []string{"", "a", "b", "a"}, ifname.ErrTaken, 7, "a", "interfaces 2 and 4"},
		{"primary asked for again", scheme{Primary: "eth0"}, []string{"", "eth0"}, ifname.ErrTaken, 7, "eth0", "interfaces 1 and 2"},
		{"in the namespace", scheme{Primary: "eth0", Taken: []string{"a"}}, []string{"", "a"}, ifname.ErrTaken, 7, "a", "in use"},
		{"primary in the namespace", scheme{Primary: "eth0", Taken: []string{"eth0"}}, []string{""}, ifname.ErrTaken, 7, "eth0", "in use"},
		{"the first is reported", scheme{Primary: "eth0", Taken: []string{"a"}}, []string{"", "b", "b", "a", "c/d"}, ifname.ErrTaken, 7, "b", "2 and 3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := tt.scheme.Plan(tt.requests...)
			if got != nil {
				t.Errorf("names %q with an error", got)
			}
			checkError(t, err, tt.kind, tt.code, tt.bad, tt.text)
		})
	}
}

// An error about a namespace names it, and has a code of its own.
func TestErrorsAboutNamespaces(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  ifname.Error
		text string
		code uint
	}{
		{ifname.Error{NetNS: "/n", Err: errors.New("boom")}, `network namespace "/n": boom`, 5},
		{ifname.Error{Err: errors.New("boom")}, `network namespace "": boom`, 5},
		{ifname.Error{NetNS: "/n", Err: errors.ErrUnsupported}, `network namespace "/n": unsupported operation`, 0},
	} {
		if tt.err.Error() != tt.text || tt.err.CNICode() != tt.code {
			t.Errorf("%v, code %d, want %s, code %d", &tt.err, tt.err.CNICode(), tt.text, tt.code)
		}
	}
}

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
