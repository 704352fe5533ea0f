package device

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// FuzzOrder shows that the order of IDs is one: any three IDs can be put in one order only.
func FuzzOrder(f *testing.F) {
	f.Add("vf1", "vf01", "vf10")
	f.Add("0000:3b:02.1", "0000:3b:0a.1", "3b:0a.1")
	f.Add("", "0", "00")
	f.Add("a0", "a", "a00b")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		sign := func(n int) int { return max(-1, min(1, n)) }
		for _, x := range []string{a, b, c} {
			for _, y := range []string{a, b, c} {
				if sign(compareIDs(x, y)) != -sign(compareIDs(y, x)) || (compareIDs(x, y) == 0) != (x == y) {
					t.Errorf("%q and %q have no order", x, y)
				}
				for _, z := range []string{a, b, c} {
					if compareIDs(x, y) <= 0 && compareIDs(y, z) <= 0 && compareIDs(x, z) > 0 {
						t.Errorf("%q, %q and %q have no order", x, y, z)
					}
				}
			}
		}
	})
}

// FuzzAllocate shows that two requests never get the same device, and that none goes
// without.
func FuzzAllocate(f *testing.F) {
	f.Add("a:1 b:1|a:2 c:1", "a: b: a:2", "c:1")
	f.Add("a:10 a:9", "a: a: a:", "")
	f.Add("a:1 a:2", ":1 a:", ":3")
	f.Fuzz(func(t *testing.T, pod, asked, recorded string) {
		devices := func(text string) (ds []Device) {
			for word := range strings.FieldsSeq(text) {
				resource, id, _ := strings.Cut(word, ":")
				ds = append(ds, Device{Resource: resource, ID: id, NUMA: len(id) % 3})
			}
			return ds
		}
		var containers []Container
		has := make(map[Device]bool)
		for text := range strings.SplitSeq(pod, "|") {
			c := Container{Devices: devices(text)}
			containers = append(containers, c)
			for _, d := range c.Devices {
				has[Device{Resource: d.Resource, ID: d.ID}] = true
			}
		}
		var requests []Request
		for _, d := range devices(asked) {
			requests = append(requests, Request{Resource: d.Resource, ID: d.ID})
		}
		used := devices(recorded)
		ids, err := Allocate(containers, used, requests...)
		again, errAgain := Allocate(containers, used, requests...)
		if !slices.Equal(ids, again) || (err == nil) != (errAgain == nil) || err != nil && err.Error() != errAgain.Error() {
			t.Fatal("the same arguments have two results")
		}
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Request != requests[e.At] {
				t.Fatalf("%#v is not an error of a request", err)
			}
			return
		}
		given := make(map[Device]bool)
		for _, d := range used {
			given[Device{Resource: d.Resource, ID: d.ID}] = true
		}
		for i, r := range requests {
			d := Device{Resource: r.Resource, ID: ids[i]}
			switch {
			case r.ID != "" && r.ID != d.ID:
				t.Errorf("request %d gets %q instead of %q", i, d.ID, r.ID)
			case r.Resource == "":
			case !has[d] || d.ID == "":
				t.Errorf("request %d gets %v, which the pod does not have", i, d)
			case given[d] || given[Device{ID: d.ID}]:
				t.Errorf("%v is given twice", d)
			}
			given[d] = true
		}
	})
}
