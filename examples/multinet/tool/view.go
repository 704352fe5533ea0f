package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/multinet/doctor"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
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
		Life        string           `json:"life"`           // "alive", "dead" or "unknown"
		Why         string           `json:"why"`            // the proof, or why there is none
		Todo        string           `json:"todo,omitempty"` // if it is unknown
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
	stageView struct {
		Stage string `json:"stage"` // "lock", "record", "whole", or a command and the plugin's type
		keyView
		Seconds float64 `json:"seconds"`
	}
	damagedView struct {
		keyView
		Error string `json:"error"`
	}
)

func viewKey(k scratch.Key) keyView { return keyView{k.Network, k.ContainerID, k.IfName} }

// view returns r and what is known of its container, without the configurations of its networks, which may hold secrets, and
// with results if they are asked for.
func (t *tool) view(r lifecycle.AddRecord, j lifecycle.Judgement, results bool) recordView {
	v := recordView{keyView: viewKey(r.Key), State: state(r), Life: j.Life.String(), Why: j.Why, Todo: t.todo(r, j), Created: r.Created, Updated: r.Updated, Attachments: []attachmentView{}}
	if p := multinet.PodOf(r); p.String() != "" {
		v.Pod = podView{p.Namespace, p.Name, p.UID}
	}
	for i, a := range slices.Concat(r.Attached, r.Leftovers) {
		av := attachmentView{Network: a.Network.Name(), Interface: a.IfName, State: string(scratch.Leftover), NetNS: a.NetNS, Plugins: []string{}, Origin: nad.ParseOrigin(a.Origin).JSON()}
		for _, p := range a.Network.Plugins() {
			name := p.Type()
			if p.Step() != "" {
				name += "/" + p.Step()
			}
			av.Plugins = append(av.Plugins, name)
		}
		if results {
			av.Result = a.Result
		}
		if i < len(r.Attached) {
			av.State = multinet.State(r, i)
			v.Attachments = append(v.Attachments, av)
		} else {
			v.Leftovers = append(v.Leftovers, av)
		}
	}
	return v
}

// state returns the state of a record as operators see it.
func state(r lifecycle.AddRecord) string {
	if r.State == scratch.Partial {
		return "incomplete" // one more network is being attached, or could not be detached
	}
	return string(r.State)
}

func (t *tool) list(flags *flag.FlagSet) runner {
	return t.onRecords(flags, func(ctx context.Context, _ []string) error {
		all, err := t.records(ctx, attachments)
		return errors.Join(t.printRecords(all, false), err)
	})
}

// show prints the records of a container, with the results. They fit into no table.
func (t *tool) show(flags *flag.FlagSet) runner {
	timing := flags.Bool("timing", false, "print where the time of the last ADD went")
	return t.onRecords(flags, func(ctx context.Context, words []string) error {
		all, err := t.of(ctx, words[0])
		switch {
		case all == nil:
			return err
		case *timing:
			return errors.Join(t.printTiming(all), err)
		}
		t.form = cmp.Or(t.form, "json")
		return errors.Join(t.printRecords(all, true), err)
	})
}

// errNoTiming is returned for a record without times: it was adopted, or its ADD has failed.
var errNoTiming = errors.New("the record does not say how long the ADD took")

// printTiming prints where the time of the last ADD of each record went.
func (t *tool) printTiming(all []lifecycle.AddRecord) (err error) {
	out := newOutput("STAGE NETWORK IFNAME TIME")
	for _, r := range all {
		timing := r.Timing()
		if timing.Plugins == nil {
			err = errors.Join(err, fmt.Errorf("network %q, %s: %w", r.Key.Network, r.Key.IfName, errNoTiming))
			continue
		}
		add := func(stage, network, ifname string, took time.Duration) {
			out.add(stageView{stage, keyView{network, r.Key.ContainerID, ifname}, took.Seconds()}, stage, network, ifname, took.String())
		}
		add("lock", r.Key.Network, r.Key.IfName, timing.Lock)
		add("record", r.Key.Network, r.Key.IfName, timing.Record)
		for _, p := range timing.Plugins {
			add(string(p.Command)+" "+p.Plugin, p.Network, p.IfName, p.Took)
		}
		add("whole", r.Key.Network, r.Key.IfName, timing.Whole)
	}
	if len(out.list) == 0 {
		return err
	}
	if t.form != "wide" {
		const stage, network = 0, 1
		out.fit(stage, network)
	}
	return errors.Join(t.print(out), err)
}

// printRecords prints the attachments of records, in JSON with their results if that is asked for.
// The table has the columns that fit on a screen, the wide one all.
func (t *tool) printRecords(all []lifecycle.AddRecord, results bool) error {
	out := newOutput("CONTAINER POD IFNAME NETWORK USE STATE LIFE AGE")
	if t.form == "wide" {
		out = newOutput("CONTAINER POD INTERFACE NETWORK NAD USE STATE LIFE SINCE RECORD WHY")
	}
	todo, unknown := "", 0
	for i, j := range t.life.Judge(all) {
		r := all[i]
		v := t.view(r, j, results)
		if v.Todo != "" {
			todo = cmp.Or(todo, v.Todo)
			unknown++
		}
		out.list = append(out.list, v)
		pod := multinet.PodOf(r).String()
		if strings.HasSuffix(pod, "/") {
			pod += "-" // the runtime has not told the name
		}
		for _, a := range slices.Concat(v.Attachments, v.Leftovers) {
			o := nad.ParseOrigin(a.Origin)
			definition, use := o.Definition.String(), string(o.Use)
			row := []string{v.Container[:min(len(v.Container), shown)], pod, a.Interface, cmp.Or(definition, a.Network), use, a.State, v.Life, age(v.Created)}
			if t.form == "wide" {
				row = []string{v.Container, pod, a.Interface, a.Network, definition, use, a.State, v.Life, v.Created.Format(time.RFC3339), v.Network + " " + v.Interface, v.Why}
			}
			out.row(row...)
		}
	}
	if t.form != "wide" {
		const pod, network = 1, 3
		out.fit(pod, network)
	}
	if unknown > 0 && t.form != "json" { // which has it
		t.say("it is not known whether the containers of %d of %d records live: %s", unknown, len(all), todo)
	}
	return t.print(out)
}

// todo returns what an operator can do about r if it is attached, and nobody knows whether its
// container lives.
func (t *tool) todo(r lifecycle.AddRecord, j lifecycle.Judgement) string {
	if j.Life != lifecycle.Unknown || !r.State.Attached() {
		return ""
	}
	gc := "multinet gc --unknown --dry-run"
	if t.life.Dir != multinet.DefaultStateDir {
		gc += " --dir " + t.life.Dir
	}
	return doctor.Undecided(j.Why, gc)
}

// age returns how long ago something was, in its largest unit.
func age(then time.Time) string {
	switch d := time.Since(then); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}
