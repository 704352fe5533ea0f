package lifecycle

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/metacni/metacni/scratch"
)

// made is the result of a plugin that has made eth0.
const made = `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/ns"}],"ips":[{"address":"10.0.0.2/24"}]}`

// An interface that was attached and is not in its namespace any more was detached by
// another program: an ADD removes the rest, and attaches anew. Without an interface in
// the result nobody knows, and the attachment counts as attached.
func TestAddAgainAfterTheInterfaceWasRemoved(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		result string
		there  []string
		again  bool
	}{
		"gone":                       {made, []string{"lo"}, true},
		"there":                      {made, []string{"lo", "eth0"}, false},
		"not known":                  {made, nil, false},
		"none was made":              {`{"cniVersion":"1.1.0"}`, []string{"lo"}, false},
		"made without a MAC address": {strings.Replace(made, "mac", "x", 1), []string{"lo"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, netns := newNode(t), newNetNS(t)
			n.printing("tuning", tt.result)
			n.addIn(eth0, netns)
			n.InterfaceNames = func(string) ([]string, error) { return tt.there, nil }
			before := len(n.trace())
			tr := pair(eth0)
			tr.Plan = inNetNS(tr.Plan, netns)
			_, err := n.Add(t.Context(), eth0, tr)
			if !tt.again {
				if !errors.Is(err, ErrAdded) || len(n.trace()) > before {
					t.Errorf("ran %q: %v", n.trace()[before:], err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := []string{"DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0", "ADD bridge eth0", "ADD tuning eth0", "ADD macvlan net0"}
			if d := cmp.Diff(want, n.trace()[before:]); d != "" {
				t.Errorf("calls (-want +got):\n%s", d)
			}
		})
	}
}

// What has ended of the container's other attachments is removed before an ADD attaches
// anything: another program may have detached it, or its network namespace is gone. Later
// it would be in the way of an ADD with the same interface name, and its DEL could remove
// what plugins keep for the container, such as its published ports.
func TestAddRemovesOtherAttachmentsThatHaveEnded(t *testing.T) {
	t.Parallel()
	other, removed := scratch.Key{Network: "other", ContainerID: "c1", IfName: "eth0"}, []string{"DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0"}
	for name, tt := range map[string]struct {
		there []string // interfaces when the second ADD comes
		gone  bool     // the namespace of the first
		fails string   // what the DEL of the first does
		add   string   // the interface of the second
		code  uint
		calls []string
		left  []string
	}{
		"the interface is gone": {
			there: []string{"lo"}, add: "eth0",
			calls: append(removed[:3:3], "ADD bridge eth0"), left: []string{"c1/eth0 added"},
		},
		"the interface is gone, another name": {
			there: []string{"lo"}, add: "eth1",
			calls: append(removed[:3:3], "ADD bridge eth1"), left: []string{"c1/eth1 added"},
		},
		"the namespace is gone": {
			there: []string{"lo"}, gone: true, add: "eth1",
			calls: append(removed[:3:3], "ADD bridge eth1"), left: []string{"c1/eth1 added"},
		},
		"it is attached": {
			there: []string{"lo", "eth0"}, add: "eth1",
			calls: []string{"ADD bridge eth1"}, left: []string{"c1/eth1 added", "c1/eth0 added"},
		},
		"it is attached, and has the name": {
			there: []string{"lo", "eth0"}, add: "eth0", code: 7, left: []string{"c1/eth0 added"},
		},
		"its DEL fails": {
			there: []string{"lo"}, fails: "DEL tuning", add: "eth1",
			calls: append(removed[:3:3], "ADD bridge eth1"), left: []string{"c1/eth1 added", "c1/eth0 deleting"},
		},
		"its DEL fails, and it has the name": {
			there: []string{"lo"}, fails: "DEL tuning", add: "eth0", code: 7,
			calls: removed, left: []string{"c1/eth0 deleting"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, before, now := newNode(t), newNetNS(t), newNetNS(t)
			if !tt.gone {
				now = before
			}
			n.printing("tuning", made)
			n.addIn(other, before)
			n.InterfaceNames = func(string) ([]string, error) { return tt.there, nil }
			if tt.gone {
				unlink(t, before)
			}
			if tt.fails != "" {
				n.failOn(tt.fails, 104)
			}
			ran := len(n.trace())
			k := key("c1", tt.add)
			plan := Plan(attachment(network("blue", "bridge"), "c1", tt.add))
			_, err := n.Add(t.Context(), k, Transaction{NetNS: now, Plan: inNetNS(plan, now)})
			wantCode(t, err, tt.code)
			if d := cmp.Diff(tt.calls, n.trace()[ran:], cmpopts.EquateEmpty()); d != "" {
				t.Errorf("calls (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.left, n.records()); d != "" {
				t.Errorf("records (-want +got):\n%s", d)
			}
		})
	}
}
