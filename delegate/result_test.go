package delegate_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/status"
)

// wholeResult returns a result with something at every place of its version.
func wholeResult(version string) string {
	switch version {
	case "0.1.0", "0.2.0":
		return `{"cniVersion":"` + version + `",
			"ip4":{"ip":"10.0.0.2/24","gateway":"10.0.0.1","routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"}]},
			"ip6":{"ip":"fd00::2/64","gateway":"fd00::1","routes":[{"dst":"::/0","gw":"fd00::1"}]},
			"dns":{"nameservers":["10.0.0.1"],"domain":"x","search":["x"],"options":["y"]}}`
	}
	return `{"cniVersion":"` + version + `",
		"interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/run/netns/c1"}],
		"ips":[{"version":"4","interface":0,"address":"10.0.0.2/24","gateway":"10.0.0.1"}],
		"routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"}],
		"dns":{"nameservers":["10.0.0.1"],"domain":"x","search":["x"],"options":["y"]}}`
}

// Whatever a plugin prints, ADD attaches or leaves nothing, and what it attached
// can be printed or not, checked and removed.
func TestEveryTypeAtEveryPlaceOfAResult(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			for i, text := range nodetest.JSONVariants(t, wholeResult(version)) {
				x := fakes("last")
				x.Plugins["p"] = printing(text)
				iv := invoker(x)
				confVersion := []string{"0.1.0", "0.4.0", "1.1.0"}[i%3]
				a, err := iv.Add(t.Context(), attach(network(t, confVersion, "blue", "p", "last")))
				if err != nil {
					if !errors.Is(err, delegate.ErrResult) || len(x.Live()) > 0 {
						t.Errorf("%s: %v, left %q", text, err, x.Live())
					}
					continue
				}
				a.Result = json.RawMessage(text) // also where the last plugin printed another
				for _, to := range append([]string{"", "9.9.9"}, versions...) {
					_ = a.PrintTo(new(bytes.Buffer), to) // does not panic
				}
				if err := iv.Check(t.Context(), a); err != nil && !errors.Is(err, delegate.ErrResult) {
					t.Errorf("CHECK after %s: %v", text, err)
				}
				if err := iv.Del(t.Context(), a); err != nil || len(x.Live()) > 0 {
					t.Errorf("DEL after %s: %v, left %q", text, err, x.Live())
				}
			}
		})
	}
}

// A list with null in it is no result: the error says where, and the ADD is
// undone. As a result on disk, from an earlier version, it keeps no DEL from
// running.
func TestNullInAListIsNoResult(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ result, where string }{
		{`{"cniVersion":"1.0.0","interfaces":[null]}`, "interfaces[0]"},
		{`{"cniVersion":"1.1.0","interfaces":[{"name":"a"},null]}`, "interfaces[1]"},
		{`{"cniVersion":"0.4.0","ips":[null]}`, "ips[0]"},
		{`{"cniVersion":"0.3.1","routes":[null]}`, "routes[0]"},
		{`{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24","routes":[null]}}`, "ip4.routes[0]"},
		{`{"cniVersion":"0.1.0","ip6":{"ip":"fd00::2/64","routes":[null]}}`, "ip6.routes[0]"},
		{`{"cniVersion":"1.0.0","dns":{"nameservers":[null]}}`, "dns.nameservers[0]"},
	} {
		for _, confVersion := range []string{"0.2.0", "0.4.0", "1.0.0", "1.1.0"} {
			x := fakes("first")
			x.Plugins["p"] = printing(tt.result)
			a := attach(network(t, confVersion, "blue", "first", "p"))
			_, err := invoker(x).Add(t.Context(), a)
			if !errors.Is(err, delegate.ErrResult) || status.Code(err) != 6 || !strings.Contains(fmt.Sprint(err), tt.where+" is null") {
				t.Errorf("%s: %v", tt.result, err)
			}
			if got := strings.Join(x.Trace(), ", "); !strings.HasSuffix(got, "DEL p eth0, DEL first eth0") {
				t.Errorf("%s: %s", tt.result, got)
			}
			old := added(a, tt.result)
			if err := invoker(x).Del(t.Context(), old); err != nil {
				t.Errorf("DEL with %s: %v", tt.result, err)
			}
		}
	}
}

// A plugin that prints an error object has failed, even if it exits with status 0: the
// error has its code and its words, and the ADD is undone.
func TestErrorObjectIsNoResult(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ printed, says string }{
		{`{"cniVersion":"1.0.0","code":107,"msg":"no free address","details":"of 8"}`, "no free address; of 8"},
		{"loading\n" + `{"code":107,"msg":"no free address"}`, "no free address"},
		{`{"cniVersion":"1.0.0","ips":[],"code":107,"msg":"no free address"}` + "\n", "no free address"},
		{`{"cniVersion":"1.0.0"}` + "\n" + `{"code":107,"msg":"no free address"}`, "no free address"},
		{`{"code":107,"msg":"no token hunter2-hunter2"}`, "no token (hidden)"},
	} {
		for _, last := range []bool{false, true} {
			x := fakes("first", "last")
			x.Plugins["p"] = printing(tt.printed)
			chain := `{"type":"first"},{"type":"p","token":"hunter2-hunter2"}`
			if !last {
				chain += `,{"type":"last"}`
			}
			_, err := invoker(x).Add(t.Context(), attach(nodetest.Parse(`{"cniVersion":"1.0.0","name":"blue","plugins":[`+chain+`]}`)))
			if status.Code(err) != 107 || errors.Is(err, delegate.ErrResult) || !strings.HasSuffix(fmt.Sprint(err), tt.says) {
				t.Errorf("%s: code %d, %v", tt.printed, status.Code(err), err)
			}
			nodetest.Equal(t, tt.printed, strings.Join(x.Trace(), ", "), "ADD first eth0, ADD p eth0, DEL p eth0, DEL first eth0")
		}
	}
	x := fakes("p")
	x.Plugins["p"] = printing(`{"cniVersion":"1.0.0","code":107,"note":"a key of the plugin's own"}`)
	if _, err := invoker(x).Add(t.Context(), attach(network(t, "1.0.0", "blue", "p"))); err != nil {
		t.Errorf("a result with a key of its own: %v", err)
	}
}

// A version that has one place for each family expresses no second address.
func TestSecondAddressOfAFamilyIsNotDropped(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		ips  string
		code uint
	}{
		{`{"address":"10.0.0.2/24"}`, 0},
		{`{"address":"10.0.0.2/24"},{"address":"fd00::2/64"}`, 0},
		{`{"address":"10.0.0.2/24"},{"address":"10.0.1.2/24"}`, 1},
		{`{"address":"fd00::2/64"},{"address":"fd00::3/64"}`, 1},
	} {
		a := added(attach(network(t, "1.0.0", "blue", "p")), `{"cniVersion":"1.0.0","ips":[`+tt.ips+`]}`)
		for _, version := range []string{"0.1.0", "0.2.0"} {
			nodetest.Equal(t, fmt.Sprintf("%s in %s", tt.ips, version), status.Code(a.PrintTo(new(bytes.Buffer), version)), tt.code)
		}
		if err := a.PrintTo(new(bytes.Buffer), "0.4.0"); err != nil {
			t.Errorf("%s in 0.4.0: %v", tt.ips, err)
		}
	}
}

// What another version would make nonsense of is not printed in it, and is not
// the prevResult of a DEL.
func TestNonsenseIsNotPrinted(t *testing.T) {
	t.Parallel()
	a := added(attach(network(t, "1.1.0", "blue", "p")), `{"cniVersion":"1.0.0","ips":[{}]}`)
	var out bytes.Buffer
	if err := a.PrintTo(&out, "0.4.0"); status.Code(err) != 1 || out.Len() > 0 {
		t.Errorf("printed %s, %v", &out, err)
	}
	x := fakes("p")
	nodetest.OK(t, invoker(x).Del(t.Context(), a))
	nodetest.Equal(t, "prevResult", stdin(t, x.Calls()[0])["prevResult"], nil)
	nodetest.Is(t, invoker(x).Check(t.Context(), a), delegate.ErrResult)
}

// libcni decodes null into an empty result. We give it the version of its network.
func TestNullIsAnEmptyResult(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		x := fakes("last")
		x.Plugins["p"] = printing(" null\n")
		iv := invoker(x)
		a, err := iv.Add(t.Context(), attach(network(t, version, "blue", "p")))
		if want := `{"cniVersion":"` + cmp.Or(version, "0.1.0") + `"}`; err != nil || string(a.Result) != want {
			t.Errorf("%s: %s, %v, want %s", version, a.Result, err, want)
		}
		if err := iv.Check(t.Context(), a); err != nil {
			t.Errorf("%s: CHECK: %v", version, err)
		}
		if err := iv.Del(t.Context(), a); err != nil || len(x.Live()) > 0 {
			t.Errorf("%s: DEL: %v, left %q", version, err, x.Live())
		}
	}
}

func TestErrorSaysWhatCameInsteadOfAResult(t *testing.T) {
	t.Parallel()
	for printed, says := range map[string]string{
		`[]`:                       "stdout is an array, want an object",
		` [{"a":1}]`:               "stdout is an array, want an object",
		"[INFO] adding\n{}":        `stdout starts with "["`,
		"null null":                `stdout starts with "null null"`,
		strings.Repeat("x", 100):   `stdout starts with "` + strings.Repeat("x", 64) + `"`,
		`{"cniVersion":"1.0.0"}[]`: "after it stdout goes on with more JSON",
	} {
		x := fakes("last")
		x.Plugins["p"] = printing(printed)
		_, err := invoker(x).Add(t.Context(), attach(network(t, "1.0.0", "blue", "p")))
		if !errors.Is(err, delegate.ErrResult) || status.Code(err) != 6 || !strings.Contains(fmt.Sprint(err), says) {
			t.Errorf("%s: %v, want it to say %s", printed, err, says)
		}
	}
}
