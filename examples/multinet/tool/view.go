package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
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

// view returns r without the configurations of its networks, which may hold secrets, and
// without results.
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

func (p podView) String() string { return nad.Pod{Namespace: p.Namespace, Name: p.Name}.String() }

func (t *tool) list(flags *flag.FlagSet) runner {
	return t.onRecords(flags, func(ctx context.Context, _ []string) error {
		return t.listRecords(ctx, func(lifecycle.Record) bool { return true })
	})
}

// listRecords prints the attachments of the records that wanted accepts.
func (t *tool) listRecords(ctx context.Context, wanted func(lifecycle.Record) bool) error {
	all, err := t.records(ctx, wanted)
	out := newOutput("CONTAINER POD INTERFACE NETWORK NAD USE STATE SINCE RECORD")
	for _, r := range all {
		v := view(r)
		out.list = append(out.list, v)
		for _, a := range slices.Concat(v.Attachments, v.Leftovers) {
			o := nad.ParseOrigin(a.Origin)
			out.row([]string{
				v.Container, v.Pod.String(), a.Interface, a.Network, o.Definition.String(), string(o.Use),
				a.State, v.Created.Format(time.RFC3339), v.Network + " " + v.Interface,
			})
		}
	}
	return errors.Join(t.print(out), err)
}

// show prints the records of a container, with the results.
func (t *tool) show(flags *flag.FlagSet) runner {
	return t.onRecords(flags, func(ctx context.Context, words []string) error {
		all, err := t.of(ctx, words[0])
		if all == nil {
			return err
		}
		out := newOutput("")
		for _, r := range all {
			v := view(r)
			for i, a := range r.Attached {
				v.Attachments[i].Result = a.Result
			}
			out.list = append(out.list, v)
			v.write(&out.text)
		}
		return errors.Join(t.print(out), err)
	})
}

// write writes v for people.
func (v recordView) write(to io.Writer) {
	fmt.Fprintf(to, "%s/%s/%s: %s, created %s, last changed %s\n",
		v.Network, v.Container, v.Interface, v.State, v.Created.Format(time.RFC3339), v.Updated.Format(time.RFC3339))
	if v.Pod != (podView{}) {
		fmt.Fprintf(to, "  pod %s, UID %s\n", v.Pod, cmp.Or(v.Pod.UID, "unknown"))
	}
	for _, a := range v.Attachments {
		fmt.Fprintf(to, "  %s: network %q (%s) in %s\n", a.Interface, a.Network, strings.Join(a.Plugins, ", "), a.NetNS)
		if a.Origin != nil {
			fmt.Fprintf(to, "    origin %s\n", describe(nad.ParseOrigin(a.Origin)))
		}
		fmt.Fprintf(to, "    result %s\n", cmp.Or(string(a.Result), "none"))
	}
}

// describe returns o in words.
func describe(o nad.Origin) string {
	parts := []string{cmp.Or(string(o.Use), "unknown")}
	if name := o.Definition.String(); name != "" {
		parts = append(parts, fmt.Sprintf("NAD %s (UID %s, version %s)", name, cmp.Or(o.UID, "unknown"), cmp.Or(o.Version, "unknown")))
	}
	if c := o.Claim; o.Use == nad.Claimed {
		parts = append(parts, fmt.Sprintf("claim %q (UID %s), request %q, device %q of pool %q", c.Name, cmp.Or(c.UID, "unknown"), c.Request, c.Device, c.Pool))
		if c.Share != "" {
			parts = append(parts, "share "+c.Share)
		}
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
