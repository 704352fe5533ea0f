package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// list prints the attachments of the records that want accepts.
func (t *tool) list(ctx context.Context, want func(lifecycle.Record) bool) error {
	all := []recordView{}
	var rows [][]string
	err := t.each(ctx, func(r lifecycle.Record) error {
		if !want(r) {
			return nil
		}
		all = append(all, view(r))
		for i, a := range slices.Concat(r.Attached, r.Leftovers) {
			o := nad.ParseOrigin(a.Origin)
			rows = append(rows, []string{
				a.ContainerID, cmp.Or(multinet.PodOf(r).String(), "-"), a.IfName, a.Network.Name(), cmp.Or(o.NetworkName(""), "-"), cmp.Or(string(o.Use), "-"),
				stateOf(r, i), r.Created.Format(time.RFC3339), r.Key.Network + " " + r.Key.IfName,
			})
		}
		return nil
	})
	return errors.Join(t.print(all, "CONTAINER POD INTERFACE NETWORK NAD USE STATE SINCE RECORD", rows), err)
}

// show prints the records of a container, without the configurations of its networks,
// which may hold secrets.
func (t *tool) show(ctx context.Context, container string) error {
	all := []recordView{}
	var text strings.Builder
	err := t.of(ctx, container, func(r lifecycle.Record) error {
		v := view(r)
		fmt.Fprintf(&text, "%s: %s, created %s, last changed %s\n", r.Key, state(r), r.Created.Format(time.RFC3339), r.Updated.Format(time.RFC3339))
		if p := multinet.PodOf(r); p.String() != "" {
			fmt.Fprintf(&text, "  pod %s, UID %s\n", p, cmp.Or(p.UID, "unknown"))
		}
		for i, a := range r.Attached {
			v.Attachments[i].Result = a.Result
			result := string(a.Result)
			if a.Result == nil {
				result = "none"
			}
			fmt.Fprintf(&text, "  %s: network %q (%s) in %s\n", a.IfName, a.Network.Name(), strings.Join(v.Attachments[i].Plugins, ", "), a.NetNS)
			if v.Attachments[i].Origin != nil {
				fmt.Fprintf(&text, "    origin %s\n", describe(nad.ParseOrigin(a.Origin)))
			}
			fmt.Fprintf(&text, "    result %s\n", result)
		}
		all = append(all, v)
		return nil
	})
	switch {
	case errors.Is(err, errNoRecord):
		return err
	case t.form == "json":
		return errors.Join(t.print(all, "", nil), err)
	}
	_, werr := io.WriteString(t.out, text.String())
	return errors.Join(werr, err)
}

// describe returns o in words.
func describe(o nad.Origin) string {
	parts := []string{cmp.Or(string(o.Use), "unknown")}
	if name := o.NetworkName(""); name != "" {
		parts = append(parts, fmt.Sprintf("NAD %s (UID %s, version %s)", name, cmp.Or(o.UID, "unknown"), cmp.Or(o.Version, "unknown")))
	}
	if o.Use == nad.Claimed {
		parts = append(parts, describeClaim(o.Claim))
	}
	var s netconf.Selection
	if json.Unmarshal(o.Selection, &s) == nil && s.IPAMClaimReference != "" {
		parts = append(parts, "IPAM claim "+strconv.Quote(s.IPAMClaimReference))
	}
	if o.PodSource != "" {
		parts = append(parts, "pod from "+strconv.Quote(o.PodSource))
	}
	return strings.Join(parts, ", ")
}

// describeClaim returns c in words.
func describeClaim(c nad.Claim) string {
	text := fmt.Sprintf("claim %q (UID %s), request %q, device %q of pool %q", c.Name, cmp.Or(c.UID, "unknown"), c.Request, c.Device, c.Pool)
	if c.Share != "" {
		text += fmt.Sprintf(", share %s", c.Share)
	}
	return text
}

// state returns the state of a record as operators see it.
func state(r lifecycle.Record) string {
	if r.State == scratch.Partial {
		return "incomplete" // one more network is being attached, or could not be detached
	}
	return string(r.State)
}

// stateOf returns the state of the i-th of r.Attached and r.Leftovers: the others are
// attached even if one is incomplete.
func stateOf(r lifecycle.Record, i int) string {
	switch {
	case i >= len(r.Attached):
		return string(scratch.Leftover)
	case r.State == scratch.Partial && r.Whole(i):
		return string(scratch.Added)
	}
	return state(r)
}

// The views are what -o json prints. Programs rely on them.
type (
	keyView struct {
		Network   string `json:"network"`
		Container string `json:"container"`
		Interface string `json:"interface"`
	}
	recordView struct {
		keyView
		Pod         podView          `json:"pod,omitzero"`
		State       string           `json:"state"`
		Created     time.Time        `json:"created"`
		Updated     time.Time        `json:"updated"`
		Attachments []attachmentView `json:"attachments"`
		Leftovers   []attachmentView `json:"leftovers,omitempty"`
	}
	podView struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
		UID       string `json:"uid,omitempty"`
	}
	attachmentView struct {
		Network   string          `json:"network"`
		Interface string          `json:"interface"`
		State     string          `json:"state"`
		NetNS     string          `json:"netns,omitempty"`
		Plugins   []string        `json:"plugins"`
		Origin    json.RawMessage `json:"origin,omitempty"` // of [nad.Origin.JSON]
		Result    json.RawMessage `json:"result,omitempty"`
	}
	damagedView struct {
		keyView
		Error string `json:"error"`
	}
)

func viewKey(k scratch.Key) keyView { return keyView{k.Network, k.ContainerID, k.IfName} }

func view(r lifecycle.Record) recordView {
	v := recordView{keyView: viewKey(r.Key), State: state(r), Created: r.Created, Updated: r.Updated, Attachments: []attachmentView{}}
	if p := multinet.PodOf(r); p.String() != "" {
		v.Pod = podView{p.Namespace, p.Name, p.UID}
	}
	for i, a := range slices.Concat(r.Attached, r.Leftovers) {
		av := attachmentView{Network: a.Network.Name(), Interface: a.IfName, State: stateOf(r, i), NetNS: a.NetNS, Plugins: []string{}, Origin: nad.ParseOrigin(a.Origin).JSON()}
		for _, p := range a.Network.Plugins() {
			av.Plugins = append(av.Plugins, p.Type())
		}
		if i < len(r.Attached) {
			v.Attachments = append(v.Attachments, av)
		} else {
			v.Leftovers = append(v.Leftovers, av)
		}
	}
	return v
}
