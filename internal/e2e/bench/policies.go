//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// gaps are the pauses after each command. A node has pauses: what a daemon does after the
// result of an ADD delays nobody then.
var gaps = []time.Duration{0, 100 * time.Millisecond} //nolint:gochecknoglobals // a table

// A shimTask is a kind of networks and a gap, and their cost for each rival in each round.
type shimTask struct {
	kind  string
	gap   time.Duration
	stdin []string
	add   [][]sample
	del   [][]sample
}

// policies lets the rivals attach and detach pods that select one network, and counts
// their requests.
func (r *rig) policies(ctx context.Context, w io.Writer, a *api) (err error) {
	var daemons []*daemon
	defer func() {
		for _, d := range daemons {
			err = errors.Join(err, d.stop())
		}
	}()
	for _, rival := range rivals {
		d, _, _, err := r.rival(ctx, a, "bin", rival, nil)
		if err != nil {
			return err
		}
		daemons = append(daemons, d)
	}
	var tasks []*shimTask
	for _, kind := range r.kinds() {
		for _, gap := range gaps {
			t := &shimTask{kind: kind, gap: gap, add: make([][]sample, len(rivals)), del: make([][]sample, len(rivals))}
			for _, d := range daemons {
				stdin, err := r.shim(d, definition(kind), r.annotated(kind))
				if err != nil {
					return err
				}
				t.stdin = append(t.stdin, stdin)
			}
			tasks = append(tasks, t)
		}
	}
	requests := table{text: 3, head: []string{"Kubernetes", "command", "request", "per pod"}}
	made := make([]map[string]int, len(rivals))
	for i := range made {
		made[i] = map[string]int{}
	}
	pods := 0
	order := rand.New(rand.NewPCG(1, 2))
	for round := range r.rounds + 1 {
		for _, t := range tasks {
			if round > 0 && t.gap > 0 {
				pods++
			}
			if err := r.shimRound(ctx, a, t, order.Perm(len(rivals)), made, round > 0); err != nil {
				return err
			}
		}
	}
	if err := printPolicies(w, tasks); err != nil {
		return err
	}
	for i, rival := range rivals {
		for _, of := range slices.Sorted(maps.Keys(made[i])) {
			command, request, _ := strings.Cut(of, " ")
			requests.row(rival, command, request, figure(float64(made[i][of])/float64(pods)))
		}
	}
	return requests.print(w, "### Requests to the Kubernetes API\n\nAll but watches, until the end of the gap after the command.")
}

// shimRound runs t once for each rival, in the given order, and adds their requests to made.
func (r *rig) shimRound(ctx context.Context, a *api, t *shimTask, order []int, made []map[string]int, counts bool) (err error) {
	runtime.GC()
	defer func() { err = errors.Join(err, r.sweep()) }()
	if err := pause(ctx, t.gap); err != nil { // for the requests of the round before
		return err
	}
	for _, i := range order {
		p, err := r.member(a)
		if err != nil {
			return err
		}
		for _, c := range []struct {
			command string
			samples [][]sample
		}{{"ADD", t.add}, {"DEL", t.del}} {
			before, err := a.requests()
			if err != nil {
				return err
			}
			s, err := r.run(ctx, call{program: "multinet-shim", command: c.command, pod: p, stdin: t.stdin[i]})
			if err != nil {
				return err
			}
			if t.gap > 0 {
				if err := pause(ctx, t.gap); err != nil {
					return err
				}
			}
			after, err := a.requests()
			if err != nil {
				return err
			}
			if !counts {
				continue
			}
			c.samples[i] = append(c.samples[i], s)
			for request, n := range after {
				if t.gap > 0 && n > before[request] && !strings.HasPrefix(request, "watch ") {
					made[i][c.command+" "+request] += n - before[request]
				}
			}
		}
	}
	return nil
}

func printPolicies(w io.Writer, tasks []*shimTask) error {
	t := table{text: 3, head: []string{"networks", "gap, ms", "command"}}
	for _, rival := range rivals {
		t.head = append(t.head, rival+", min", "median")
	}
	for _, task := range tasks {
		for _, c := range []struct {
			name    string
			samples [][]sample
		}{{"ADD", task.add}, {"DEL", task.del}} {
			row := []string{task.kind, strconv.FormatInt(task.gap.Milliseconds(), 10), c.name}
			base := of(c.samples[0], wall)
			for i, s := range c.samples {
				values := of(s, wall)
				text := figure(median(values))
				if i > 0 {
					text = times(median(values), ratio(values, base))
				}
				row = append(row, figure(slices.Min(values)), text)
			}
			t.row(row...)
		}
	}
	return t.print(w, fmt.Sprintf("### multinet-shim and multinetd in a Kubernetes cluster, ms\n\n"+
		"Pods with two networks, one of which they select, in turn without Kubernetes and with either policy for the status. "+
		"There are %d definitions.\nIn parentheses: ratio to none in the same round.", definitions))
}
