package status_test

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/status"
)

// Whatever a plugin prints that is a result at all makes a list, with
// one default and bare addresses, always the same.
func FuzzNetworks(f *testing.F) {
	for _, tt := range results {
		f.Add([]byte(tt.result), true)
	}
	for _, text := range whole {
		for _, data := range variants(f, text, "null", "[null]", "-1") {
			f.Add(data, false)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, def bool) {
		r, err := create.CreateFromBytes(data)
		if err != nil {
			return // no result
		}
		list, err := status.Networks("n", r, def)
		if err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		defaults := 0
		for _, n := range list {
			if n.Name != "n" || n.MTU < 0 {
				t.Errorf("%+v", n)
			}
			if n.Default {
				defaults++
			}
			for _, s := range slices.Concat(n.IPs, n.Gateway) {
				if a, err := netip.ParseAddr(s); err != nil || a.String() != s {
					t.Errorf("address %q", s)
				}
			}
		}
		if len(list) == 0 || def && defaults != 1 || !def && defaults != 0 {
			t.Errorf("%d interfaces, %d of them the default", len(list), defaults)
		}
		text, err := json.Marshal(list)
		nodetest.OK(t, err)
		again, err := status.Networks("n", r, def)
		if err != nil || !cmp.Equal(list, again) {
			t.Errorf("the second time %+v, %v; first %s", again, err, text)
		}
	})
}
